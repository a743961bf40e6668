"""Text from other machines is printed as one value, and acts on no terminal."""

from __future__ import annotations

import pytest

from unalike._utils.printable import all_printable, one_word, printable


def test_printable_has_no_control_characters_and_no_change_of_direction():
    assert printable("\x1b[2Jgone\nfor\u202egood\x9b") == " [2Jgone for good "
    assert printable("Köln, 東京") == "Köln, 東京"


def test_all_printable_reaches_every_text():
    found = all_printable({"a\n": ["\x1b", {"b": ("\t", 1, None)}], "n": 2.5})
    assert found == {"a ": [" ", {"b": [" ", 1, None]}], "n": 2.5}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("north", "north"),
        (3, "3"),
        ("", '""'),
        ("a=b c=d", '"a=b c=d"'),
        ('x" why="y', '"x\\" why=\\"y"'),
        ("one\n2026-11-29 07:00:00 revoked client=x", '"one 2026-11-29 07:00:00 revoked client=x"'),
    ],
)
def test_one_word_is_one_value(value, shown):
    assert one_word(value) == shown
