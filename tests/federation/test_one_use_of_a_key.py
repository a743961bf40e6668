"""Secure aggregation against a coordinator that asks for anything, in any order: one use of a key, one summand, one sum."""

from __future__ import annotations

import random
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small_federation import federation_of, key_of, make_clients

from unalike._utils.errors import UnalikeError
from unalike.federation.protocol.envelope import Head
from unalike.federation.protocol.messages import (
    Declined,
    MaskedTrainRequest,
    SetupRequest,
    UnmaskRequest,
)
from unalike.federation.secure_aggregation.arithmetic import decode
from unalike.federation.secure_aggregation.masks import mask, rows
from unalike.federation.secure_aggregation.setup import is_in_order
from unalike.federation.secure_aggregation.sum_ledger import KnownSum, SumLedger
from unalike.federation.site import secure_sums
from unalike.federation.site.secure_sums import PRIVATE_MASK, SecureSums

CLIENTS = make_clients(((20, 8), (12, 6), (16, 6), (9, 5)))
FEDERATION = federation_of(CLIENTS, secure_aggregation=True, threshold=3)
NAMES = [client.name for client in CLIENTS]
RUNS = [f"{n:020d}-{n:016x}" for n in (1, 2)]


class Uses:
    """Every use of a key: (key, nonce) of a cipher and (site, secret, context) of a mask -> what it hides."""

    def __init__(self):
        self.ciphers, self.masks, self.values = {}, {}, b""

    @contextmanager
    def recorded(self):
        uses = self
        real_cipher, real_mask, real_masked = (
            secure_sums.ChaCha20Poly1305,
            secure_sums.mask,
            SecureSums.masked,
        )

        class Cipher:
            def __init__(self, key):
                self.key, self.real = key, real_cipher(key)

            def encrypt(self, nonce, data, about):
                assert uses.ciphers.setdefault((self.key, nonce), data) == data
                return self.real.encrypt(nonce, data, about)

            def decrypt(self, nonce, data, about):
                return self.real.decrypt(nonce, data, about)

        def masked(sums, masks, values):
            uses.values = values.tobytes()
            uses.site = sums.name
            return real_masked(sums, masks, values)

        def mask(secret, context, length):
            use = (uses.site, secret, context)
            assert uses.masks.setdefault(use, uses.values) == uses.values
            return real_mask(secret, context, length)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secure_sums, "ChaCha20Poly1305", Cipher)
            patch.setattr(secure_sums, "mask", mask)
            patch.setattr(SecureSums, "masked", masked)
            yield self


class Sites:
    """Sites that are begun anew for each request, as after a kill, and what a coordinator has heard from them."""

    def __init__(self, folder, federation=FEDERATION):
        self.folder, self.federation = folder, federation
        self.keys, self.sealed, self.sums = {}, {}, {}

    def site(self, name, run):
        home = self.folder / name
        ledger = SumLedger(home / "sums.jsonl")
        key = key_of(NAMES.index(name))
        return SecureSums(self.federation, name, key, home / run, ledger)

    def head(self, name, run, round, kind):
        return Head(run=run, stage=1, round=round, site=name, kind=kind)

    def ask_keys(self, name, run, setup, round):
        asked = SetupRequest(terms=self.federation.terms, setup=setup, rounds=2)
        answer = self.site(name, run).keys(self.head(name, run, round, "keys"), asked, {})
        self.keys[run, setup, name] = answer

    def ask_shares(self, name, run, setup, members):
        found = [self.keys[run, setup, member] for member in members]
        asked = SetupRequest(
            terms=self.federation.terms, setup=setup, rounds=2, members=tuple(members)
        )
        tensors = {
            "keys": torch.stack([answer["keys"] for answer in found]),
            "signatures": torch.stack([answer["signature"] for answer in found]),
        }
        answer = self.site(name, run).shares(self.head(name, run, 0, "shares"), asked, tensors)
        assert is_in_order(members, self.federation)
        earlier = self.sealed.setdefault((run, setup, name), (members, answer["shares"]))
        assert earlier[0] == members and earlier[1].equal(answer["shares"])

    def ask_summand(self, name, run, setup, round, cohort, model, accepted):
        # what a site adds follows from all that it is asked
        values = np.array([model, 0.0 if accepted is None else 1.0 + accepted, round, setup])
        self.summand(name, run, setup, round, cohort, model, accepted, values)

    def summand(
        self, name, run, setup, round, cohort, model, accepted, values, history=None, factor=1.0
    ):
        """`history` is that of sites that keep states; None: they keep none. `factor` is that of the update in the sum."""
        asked = MaskedTrainRequest(
            terms=self.federation.terms,
            rounds=4,
            samples=57,
            outcomes=(),
            derived=False,
            method="FedAvg()",
            group=0,
            round=round,
            accepted=accepted,
            share=1.0,
            lr=0.1,
            train=True,
            evaluate=(),
            local=False,
            fixed="",
            setup=setup,
            clients=4,
            cohort=tuple(cohort),
            history=history or "",
        )
        sums = self.site(name, run)
        head = self.head(name, run, round, "train")
        tensors = {"params/w": torch.full((3,), float(model))}
        keeps_states = history is not None
        masks = sums.begin_summand(head, asked, tensors, keeps_states=keeps_states, factor=factor)
        return masks, sums.masked(masks, values)

    def ask_unmask(self, name, run, setup, round, alive, dropped):
        sums = self.site(name, run)
        head = self.head(name, run, round, "unmask")
        names = [*alive, *dropped]
        sealed = []
        for other in names:
            members, shares = self.sealed[run, setup, other]
            sealed.append(shares[members.index(name), (round - sums.setup.first) % 2])
        asked = UnmaskRequest(
            terms=self.federation.terms, setup=setup, alive=tuple(alive), dropped=tuple(dropped)
        )
        summand = sums._summand_at(head.place)
        sums.unmask(head, asked, {"shares": torch.stack(sealed)})
        # one sum for a round of a run, and one for a model in all runs; never both kinds of shares of a site
        for what in (("place", name, run, round), ("model", name, summand.model)):
            assert self.sums.setdefault(what, tuple(alive)) == tuple(alive)
        assert not set(alive) & set(dropped)


class Coordinator:
    """A coordinator that goes on with setups and rounds as it should, and in between asks for whatever it likes."""

    COHORTS = (NAMES, NAMES[:3], NAMES[1:], [NAMES[0], *NAMES[2:]])
    DIVISIONS = ((NAMES, []), (NAMES[:3], [NAMES[3]]), (NAMES[1:], [NAMES[0]]), (NAMES[:3], []))

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.run, self.setup, self.first = RUNS[0], 0, self.rng.choice((0, 1))

    def requests(self, count):
        for number in range(count):
            if number == count // 2:
                self.run, self.setup = RUNS[1], 0
            if number % (count // 2) == 0 or self.rng.random() < 0.05:
                self.setup += 1
                yield NAMES, ("ask_keys", self.run, self.setup, self.first)
                yield NAMES, ("ask_shares", self.run, self.setup, NAMES)
                yield NAMES, ("ask_summand", self.run, self.setup, self.first, NAMES, 0, None)
                yield NAMES, ("ask_unmask", self.run, self.setup, self.first, NAMES, [])
            some = self.rng.sample(NAMES, self.rng.choice((1, 4)))
            yield some, self.rng.choice((self.keys, self.shares, self.summand, self.unmask))()

    def setup_or_other(self):
        return self.run, self.setup - (self.rng.random() < 0.1)

    def keys(self):
        return "ask_keys", *self.setup_or_other(), self.rng.choice((self.first, self.first + 1))

    def shares(self):
        members = self.rng.sample(NAMES, self.rng.choice((2, 3, 4, 4, 4)))
        return "ask_shares", *self.setup_or_other(), self.rng.choice((members, NAMES))

    def summand(self):
        round = self.first + self.rng.choice((0, 0, 1))
        cohort = self.rng.choice((*self.COHORTS, self.rng.sample(NAMES, 4), NAMES, NAMES))
        model, accepted = self.rng.choice((0, 0, 1)), self.rng.choice((None, None, 0))
        return "ask_summand", *self.setup_or_other(), round, cohort, model, accepted

    def unmask(self):
        round = self.first + self.rng.choice((0, 0, 1))
        return "ask_unmask", *self.setup_or_other(), round, *self.rng.choice(self.DIVISIONS)


@settings(max_examples=5, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32))
def test_no_key_and_nonce_hides_two_plaintexts_whatever_is_asked(seed):
    """All orders of members, repeated requests, new setups, a second run, and a restart before every single request."""
    answered = dict.fromkeys(("ask_keys", "ask_shares", "ask_summand", "ask_unmask"), 0)
    coordinator = Coordinator(seed)
    with tempfile.TemporaryDirectory() as folder, Uses().recorded() as uses:
        sites = Sites(Path(folder))
        for names, (what, *arguments) in coordinator.requests(40):
            for name in names:
                try:
                    getattr(sites, what)(name, *arguments)
                except (Declined, KeyError, ValueError):
                    # declined, or the coordinator has no such keys or shares to send
                    continue
                answered[what] += 1
        assert min(answered.values()) >= 4, answered
        assert len(uses.ciphers) >= 4 * 4 * 2 and len(uses.masks) >= 4 * 3


@given(order=st.permutations(NAMES))
@settings(max_examples=24)
def test_every_other_order_of_members_is_declined(order):
    with tempfile.TemporaryDirectory() as folder:
        sites = Sites(Path(folder))
        for name in NAMES:
            sites.ask_keys(name, RUNS[0], 1, 0)
        if list(order) == NAMES:
            sites.ask_shares("site0", RUNS[0], 1, list(order))
        else:
            with pytest.raises(Declined, match="in the order of enrolment"):
                sites.ask_shares("site0", RUNS[0], 1, list(order))


def test_channel_keys_and_polynomials_follow_from_the_list(tmp_path, monkeypatch):
    """Should a second list pass all checks, its shares would be of other polynomials, under other keys."""
    keys = []
    sites = Sites(tmp_path)
    for name in NAMES:
        sites.ask_keys(name, RUNS[0], 1, 0)
    sums = sites.site("site0", RUNS[0])
    key = sites.keys[RUNS[0], 1, "site1"]["keys"]
    monkeypatch.setattr(secure_sums, "ChaCha20Poly1305", lambda key: keys.append(key))
    for members in ("one list", "another list"):
        sums._channel(key, members, sender="site0", receiver="site1")
    assert keys[0] != keys[1]
    shares = [sums._split("mask key", 0, NAMES, members) for members in ("one list", "another")]
    assert not set(shares[0]) & set(shares[1])


def test_sites_whose_states_rest_on_other_models_are_in_no_sum_together(tmp_path):
    """Rounds on other models silenced all sites but one: the sum over all was that one's update."""
    sites = Sites(tmp_path)
    for name in NAMES:
        sites.ask_keys(name, RUNS[0], 1, 0)
    for name in NAMES:
        sites.ask_shares(name, RUNS[0], 1, NAMES)

    def context(name, round, model, accepted, history):
        of_round = (name, RUNS[0], 1, round, NAMES, model, accepted, np.zeros(3), history)
        return sites.summand(*of_round)[0].context

    first = {}
    for name in NAMES:
        model = 1 if name == "site3" else 0
        first[name] = context(name, 0, model, None, "")
    assert len(set(first.values())) == 2
    for name in NAMES:
        for other in {"", *first.values()} - {first[name]}:
            with pytest.raises(Declined, match="another history in round 1"):
                context(name, 1, 0, 0, other)

    # each with its own history, over one model: the masks of site3 do not cancel
    second = {name: context(name, 1, 0, 0, first[name]) for name in NAMES}
    assert len({second[name] for name in NAMES[:3]}) == 1 and second["site3"] != second["site0"]


def test_second_sum_over_a_model_with_another_weight_is_declined(tmp_path):
    """Three sites, three methods with other weights: three equations gave each site's update to 1e-6."""
    sites = Sites(tmp_path)
    for run in RUNS:
        for name in NAMES:
            sites.ask_keys(name, run, 1, 0)
        for name in NAMES:
            sites.ask_shares(name, run, 1, NAMES)
    for name in NAMES:
        sites.summand(name, RUNS[0], 1, 0, NAMES, 0, None, np.zeros(3), factor=2.0)
    for name in NAMES:
        sites.ask_unmask(name, RUNS[0], 1, 0, NAMES, [])
    with pytest.raises(Declined, match="with other weights"):
        sites.summand("site0", RUNS[1], 1, 0, NAMES, 0, None, np.zeros(3), factor=3.0)
    with pytest.raises(Declined, match="of another round"):
        sites.summand("site0", RUNS[0], 1, 1, NAMES, 0, 0, np.zeros(3), factor=2.0)
    sites.summand("site0", RUNS[1], 1, 0, NAMES, 0, None, np.zeros(3), factor=2.0)


def test_setup_of_too_many_rounds_deletes_no_secret(tmp_path):
    sites = Sites(tmp_path)
    sites.ask_keys("site0", RUNS[0], 1, 0)
    before = sites.site("site0", RUNS[0]).ledger["secret"]
    asked = SetupRequest(terms=FEDERATION.terms, setup=2, rounds=1001)
    with pytest.raises(Declined, match="1001 rounds"):
        sites.site("site0", RUNS[0]).keys(sites.head("site0", RUNS[0], 0, "keys"), asked, {})
    assert sites.site("site0", RUNS[0]).ledger["secret"] == before


def test_torn_line_of_the_ledger_counts_for_nothing_and_the_next_one_counts(tmp_path):
    ledger = SumLedger(tmp_path / "sums.jsonl")
    ledger.add("model", KnownSum(("a", "b", "c"), (1, 0)))
    with open(ledger.file, "a") as file:
        file.write('\n["other model", "a", "b')
    SumLedger(ledger.file).add("third model", KnownSum(("b", "c", "d"), (1, 2), 0.5))
    again = SumLedger(ledger.file)
    assert again.sums_over("model") == [KnownSum(("a", "b", "c"), (1, 0))]
    assert not again.sums_over("other model")
    assert again.sums_over("third model") == [KnownSum(("b", "c", "d"), (1, 2), 0.5)]
    before = ledger.file.read_bytes()
    again.add("model", KnownSum(("a", "b", "c"), (1, 0)))
    assert ledger.file.read_bytes() == before


def test_ledger_that_cannot_be_written_gives_no_shares(tmp_path):
    ledger = SumLedger(tmp_path / "file" / "sums.jsonl")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UnalikeError, match="cannot write"):
        ledger.add("model", KnownSum(("a",), (1, 0)))
    assert not ledger.sums_over("model")


def test_site_that_signs_a_copied_key_cancels_no_mask(tmp_path):
    """Of three sites, site0 has site2's mask key as its own: at site1, between them, equal masks would cancel."""
    three = federation_of(CLIENTS[:3], secure_aggregation=True, threshold=3)
    names = NAMES[:3]
    sites = Sites(tmp_path, three)
    for name in names:
        sites.ask_keys(name, RUNS[0], 1, 0)
    answers = [sites.keys[RUNS[0], 1, name] for name in names]
    copied = answers[0]["keys"].clone()
    copied[1:] = answers[2]["keys"][1:]
    setup = sites.site("site1", RUNS[0]).setup
    signature = rows([key_of(0).sign(setup.signed("site0", copied))])
    sites.keys[RUNS[0], 1, "site0"] = {"keys": copied, "signature": signature}
    sites.ask_shares("site1", RUNS[0], 1, names)

    values = np.arange(3.0)
    masks, masked = sites.summand("site1", RUNS[0], 1, 0, names, 0, None, values)
    sums = sites.site("site1", RUNS[0])
    private = mask(sums._derived(PRIVATE_MASK, 0), masks.context, 3)
    clear = decode(masked["masked"].numpy().view(np.uint64) - private)
    assert not np.isclose(clear, values).any()
