"""The federation file: what is read is what was written, and mistakes in it are found when it is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import federation_of, key_of, people

import unalike as ua
from unalike.core.errors import UnalikeError
from unalike.deploy.federation import Enrolled, Federation
from unalike.deploy.keys import public_text


def test_it_is_read_as_it_was_written(tmp_path):
    for more in ({}, {"guard": 3.0, "participation": 2, "quorum": 0.5, "work": ua.Work(batch_size=None, steps=3)}):
        made = federation_of(people(), **more)
        made.save(tmp_path / "federation.toml")
        assert Federation.load(tmp_path / "federation.toml") == made
    assert Federation.load(tmp_path / "federation.toml").terms == made.terms


def test_shares_and_numbers_of_sites():
    made = federation_of(people(), participation=0.5, quorum=2)
    assert [made.asked(n) for n in (1, 2, 3, 5, 10)] == [1, 1, 2, 3, 5]  # as a simulation rounds
    assert [made.enough(n) for n in (1, 2, 5)] == [1, 2, 2]
    made = replace(made, participation=3, quorum=0.6)
    assert [made.asked(n) for n in (1, 3, 10)] == [1, 3, 3]
    assert [made.enough(n) for n in (1, 3, 5)] == [1, 2, 3]


def test_the_terms_are_what_a_site_agrees_to():
    made = federation_of(people())
    for change in ({"method": "scaffold"}, {"seed": 1}, {"work": ua.Work(lr=1.0)}, {"protocol": ("local",)}):
        assert replace(made, **change).terms != made.terms
    revoked = tuple(replace(s, revoked=True) for s in made.sites)
    for change in ({"rounds": 9}, {"quorum": 1}, {"deadline": 1.0}, {"sites": revoked}):
        assert replace(made, **change).terms == made.terms


def test_mistakes_are_found(tmp_path):
    made = federation_of(people())
    twice = (Enrolled("a", public_text(key_of(1)), 5), Enrolled("b", public_text(key_of(1)), 5))
    for change, word in (
        ({"sites": twice}, "two sites have one key"),
        ({"sites": (twice[0], replace(twice[0], key=public_text(key_of(2))))}, "two sites have one name"),
        ({"coordinator": made.sites[0].key}, "a site has the coordinator's key"),
        ({"coordinator": "abc"}, "64 hexadecimal digits"),
        ({"participation": 0.0}, "participation"),
        ({"quorum": True}, "quorum"),
        ({"sites": ()}, "sites"),
    ):
        with pytest.raises(UnalikeError, match=word):
            replace(made, **change)
    with pytest.raises(UnalikeError, match="cannot read"):
        Federation.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(UnalikeError, match="expected a federation file"):
        Federation.load(tmp_path / "bad.toml")
