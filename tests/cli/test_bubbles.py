"""The chart of characters that `unalike partition` prints."""

import numpy as np

from unalike.cli.terminal_tables import BUBBLES, MAX_BUBBLE_CLASSES, MAX_BUBBLE_CLIENTS, bubbles


def test_bubbles_grow_with_the_count():
    counts = np.arange(1, 31)[:, None]
    row = bubbles(counts, ["a"]).split("\n")[0].split("  ")[1].split(" ")
    places = [BUBBLES.index(sign) for sign in row]
    assert places[0] == 1 and places[-1] == len(BUBBLES) - 1 and places == sorted(places)


def test_bubbles_too_large_for_a_terminal_are_empty():
    assert bubbles(np.ones((MAX_BUBBLE_CLIENTS + 1, 2), int), ["a", "b"]) == ""
    assert (
        bubbles(np.ones((2, MAX_BUBBLE_CLASSES + 1), int), ["c"] * (MAX_BUBBLE_CLASSES + 1)) == ""
    )


def test_bubbles_narrow_terminal_continues_below():
    lines = bubbles(np.ones((50, 2), int), ["a", "bb"], 80).split("\n")
    assert max(map(len, lines)) <= 80
    assert sum(line.count(BUBBLES[-1]) for line in lines if line[:1] in ("a", "b")) == 100
    assert next(line for line in lines if line.startswith("clients")) == "clients 0..37"
    assert lines[-1].startswith("clients 38..49, largest")
