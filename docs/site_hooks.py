"""Hooks of the documentation site: pages whose text stands elsewhere, and links to files outside `docs`.

`contributing.md` and `changelog.md` show CONTRIBUTING.md and CHANGELOG.md; docstrings tell the rest.
"""

from __future__ import annotations

import functools
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import make_methods  # noqa: E402
import site_catalogue  # noqa: E402
import site_cli  # noqa: E402
import site_flags  # noqa: E402
import site_roles  # noqa: E402

INCLUDED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Page -> the file in the root of the repository that it shows."""

WRITTEN = {
    "reference/catalogue.md": site_catalogue.page,
    "reference/command_line.md": site_cli.page,
    "reference/class_flags.md": site_flags.page,
    "reference/hooks.md": site_roles.page,
}
"""Page -> the function that writes its text."""

pages_of_methods = functools.cache(make_methods.pages)

LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(#[^)\s]*)?(?=\))")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Insert the included file, and lead links out of `docs` to the repository or to the page that shows the file."""
    source = page.file.src_uri
    here = posixpath.join("docs", posixpath.dirname(source))
    folder, repository = here, config["extra"]["repository"]
    if source in INCLUDED:
        markdown, folder = (ROOT / INCLUDED[source]).read_text(encoding="utf-8"), ""
    if source in WRITTEN:
        markdown = WRITTEN[source]()
    if source.startswith("methods/"):
        markdown = pages_of_methods(in_full=True)[posixpath.basename(source)]
    return LINK.sub(
        lambda link: _target(link[1], folder, here, repository) + (link[2] or ""), markdown
    )


def _target(link: str, folder: str, here: str, repository: str) -> str:
    """Target of a link of the site; `folder` is that of the file with the link, `here` that of the page."""
    path = posixpath.normpath(posixpath.join(folder, link))
    shown = {file: posixpath.join("docs", page) for page, file in INCLUDED.items()}
    path = shown.get(path, path)
    if path.startswith("docs/"):
        return posixpath.relpath(path, here)
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{repository}/{kind}/main/{path}"
