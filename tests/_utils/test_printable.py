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


def test_names_of_data_reach_a_terminal_without_control_characters(capsys):
    from unalike.cli.terminal_tables import sentences, tables

    name = "ill\x1b[31m\x9b2Jness"
    tables(("class", "samples"), [(name, "3"), ("a\u00a0b", "4")])
    sentences([f"the class {name}\nsecond line"])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x9b" not in shown
    assert "ill [31m 2Jness" in shown and "a\u00a0b" in shown and "\nsecond line" in shown
