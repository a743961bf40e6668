"""Griffe extension of the documentation site: doctests in docstrings are shown as code, without the flags for doctest."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
FLAG = re.compile(r"\s*# doctest:.*")
SECTION = re.compile(r"^Examples?:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Puts doctests of every docstring between fences."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute that has doctests."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            text = SECTION.sub(lambda found: re.sub("(?m)^ {4}", "", found[1]), obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{FLAG.sub('', found[0])}\n```\n", text)
