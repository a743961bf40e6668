"""The citation file agrees with the package."""

import re
from pathlib import Path

import unalike

CITATION = Path(__file__).parents[2] / "CITATION.cff"


def test_citation_names_the_version_of_the_package():
    assert re.findall(r"^version: (.+)$", CITATION.read_text(), re.MULTILINE) == [
        unalike.__version__
    ]
