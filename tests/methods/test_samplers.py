"""Samplers: the chances of clients, counted over many draws, choices by hand, and what refuses a choice by losses."""

from itertools import combinations

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.methods.method import Method
from unalike.methods.parts.cluster_sampler import CohortByCluster
from unalike.methods.parts.learned_sampler import Favor, descended, moved, principal_directions
from unalike.methods.parts.samplers import (
    CohortBySize,
    NamedClients,
    PoissonCohort,
    UniformCohort,
)
from unalike.methods.parts.utility_samplers import Oort, PowerOfChoice, PyramidFL
from unalike.methods.sampler import Candidates, CohortOutcome

SIZES = np.array([10, 20, 30, 40])
DRAWS = 4000
DEVICES = "lognormal(sigma=1) + drop_out(rate=0.2)"


def candidates(round=0, size=2, sizes=SIZES, ids=None):
    names = [f"client-{k}" for k in range(len(sizes))]
    ids = range(len(sizes)) if ids is None else ids
    return Candidates(ids, size, size / len(ids), sizes, names, round, seed=0)


def outcome(losses, round=0, sizes=SIZES, seconds=np.nan, ids=None):
    ids = np.arange(len(losses)) if ids is None else np.array(ids, int)
    seconds = np.zeros(len(ids)) + seconds
    shares = np.ones(len(ids))
    return CohortOutcome(round, ids, ids, sizes[ids], np.array(losses, float), seconds, shares, {})


def chances(sampler, state, **given):
    """The share of many rounds in which each client is asked."""
    asked = np.zeros(len(SIZES))
    for r in range(DRAWS):
        asked[sampler.choose(candidates(r, **given), state).clients] += 1
    return asked / DRAWS


def test_equal_weights_over_the_usual_draw_are_unbiased():
    # one value a client: the mean over cohorts of their means, by enumeration and by draws
    values = np.array([1.0, -2.0, 5.0, 8.0])
    of_cohorts = [values[list(cohort)].mean() for cohort in combinations(range(4), 2)]
    assert np.mean(of_cohorts) == values.mean()
    found = chances(UniformCohort(), {})
    assert found @ values / 2 == pytest.approx(values.mean(), abs=0.15)


def test_clients_drawn_by_themselves_are_unbiased_over_cohorts_that_are_not_empty():
    values = np.array([1.0, -2.0, 5.0, 8.0])
    cohorts = [[*PoissonCohort().choose(candidates(r), {}).clients] for r in range(DRAWS)]
    means = [values[cohort].mean() for cohort in cohorts if cohort]
    # one of sixteen is empty
    assert len(means) / DRAWS == pytest.approx(15 / 16, abs=0.02)
    assert np.mean(means) == pytest.approx(values.mean(), abs=0.15)


def test_named_clients_are_the_whole_cohort_a_bias_that_stays():
    named = NamedClients(clients=("client-3", "client-1"))
    assert chances(named, {}).tolist() == [0, 1, 0, 1]


def test_cohort_by_size_with_equal_weights_is_unbiased_for_the_mean_by_size():
    found = chances(CohortBySize(), {})
    assert found == pytest.approx(2 * SIZES / SIZES.sum(), abs=0.03)
    values = np.array([1.0, -2.0, 5.0, 8.0])
    assert found @ values / 2 == pytest.approx(SIZES @ values / SIZES.sum(), abs=0.15)


def test_client_with_more_than_its_share_is_in_every_cohort_by_size():
    sizes = np.array([1, 2, 3, 90])
    for r in range(20):
        cohort = CohortBySize().choose(candidates(r, sizes=sizes), {}).clients
        assert len(cohort) == 2 and 3 in cohort


def test_cohort_by_cluster_keeps_the_chances_and_leaves_no_cluster_out():
    sampler = CohortByCluster(clusters=2)
    # two kinds of clients of 50 samples each, whose updates point in opposite directions
    ways = torch.tensor([1.0, -1.0, -1.0, 1.0])[:, None] * torch.arange(1.0, 41)
    told = outcome([1.0] * 4)._replace(updates={"w": ways})
    state = sampler.observe(told, sampler.choice_init(4))
    assert chances(sampler, state) == pytest.approx(2 * SIZES / SIZES.sum(), abs=0.03)
    for r in range(50):
        cohort = {*sampler.choose(candidates(r), state).clients}
        assert len(cohort & {0, 3}) == len(cohort & {1, 2}) == 1


def test_power_of_choice_is_a_draw_by_size_with_few_candidates_and_biased_with_many():
    known = PowerOfChoice().observe(outcome([0.1, 0.2, 0.3, 4.0]), PowerOfChoice().choice_init(4))
    by_size = chances(PowerOfChoice(d=2), known)
    # one after the other in proportion to their sizes, so that all pairs can be written down
    shares = SIZES / SIZES.sum()
    exact = shares + np.array(
        [sum(shares[j] * shares[k] / (1 - shares[j]) for j in range(4) if j != k) for k in range(4)]
    )
    assert by_size == pytest.approx(exact, abs=0.03)
    # all are candidates: the two with the largest losses, always
    assert chances(PowerOfChoice(d=4), known).tolist() == [0, 0, 1, 1]


def test_power_of_choice_asks_clients_first_of_which_it_knows_nothing():
    sampler = PowerOfChoice()
    state = sampler.observe(outcome([5.0, 6.0], ids=[0, 3]), sampler.choice_init(4))
    choice = sampler.choose(candidates(1), state)
    assert [*choice.clients] == [1, 2] and {*choice.reasons.values()} == {"new"}
    assert sampler.choose(candidates(1, ids=[0, 1, 3]), state).reasons == {1: "new", 3: "loss 6"}


@pytest.mark.parametrize("sampler", [PowerOfChoice(), Oort()])
def test_client_that_is_asked_in_vain_has_the_least_known_loss(sampler):
    nothing = outcome([], ids=[])._replace(asked=np.arange(4))
    before = sampler.observe(nothing, sampler.choice_init(4))
    assert before["loss"].tolist() == [np.inf] * 4
    # also if it gave a large one before: neither way it is the first choice for ever
    for losses, ids in (([1.0, 9.0, 2.0], [0, 1, 2]), ([1.0, 9.0, 2.0, 7.0], [0, 1, 2, 3])):
        state = sampler.observe(outcome(losses, ids=ids), before)
        of_three = outcome([1.0, 9.0, 2.0], round=1, ids=[0, 1, 2])._replace(asked=np.arange(4))
        after = sampler.observe(of_three, state)
        assert after["loss"].tolist() == [1.0, 9.0, 2.0, 1.0]
        assert "turn" not in after or after["turn"].tolist() == [2] * 4


def test_oort_draws_by_statistical_utility_times_system_utility():
    sampler = Oort(exploration=0, least_exploration=0, cutoff=0.01)
    told = outcome([4.0, 2.0, 1.0, 1.0], sizes=SIZES, seconds=[1, 1, 1, 4])
    state = sampler.observe(told, sampler.choice_init(4))
    reasons = sampler.choose(candidates(1, ids=[0, 3]), state).reasons
    # n F / max, plus sqrt(0.1 log 2); the last one is four times as slow as the quantile 0.3 of 1, 1, 1, 4
    uncertainty = np.sqrt(0.1 * np.log(2))
    assert float(reasons[0].split()[1]) == pytest.approx(1 + uncertainty, rel=0.01)
    assert float(reasons[3].split()[1]) == pytest.approx((1 + uncertainty) / 16, rel=0.01)
    # biased: it is drawn less often than others
    found = chances(sampler, state)
    assert found[3] < 0.25 < found[0]


def test_oort_fills_the_cohort_where_losses_are_negative():
    sampler = Oort(exploration=0, least_exploration=0)
    state = sampler.observe(outcome([-4.0, -3.0, -2.0, 1.0]), sampler.choice_init(4))
    found = chances(sampler, state, size=3)
    assert found.sum() == pytest.approx(3)
    assert found[3] > found[:3].max()


def test_oort_without_exploitation_is_the_usual_draw_of_new_clients():
    found = chances(Oort(exploration=1, decay=1), Oort().choice_init(4))
    assert found == pytest.approx(np.full(4, 0.5), abs=0.03)


def test_oort_raises_the_preferred_duration_when_utility_falls():
    sampler = Oort(window=1)
    state = sampler.observe(outcome([4.0] * 4), sampler.choice_init(4))
    assert float(state["pace"]) == pytest.approx(0.3)
    state = sampler.observe(outcome([1.0] * 4, round=1), state)
    assert float(state["pace"]) == pytest.approx(0.35)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype(np.float32)
    y = (x[:, 0] + 0.3 * rng.normal(size=96) > 0).astype(np.int64)
    ends = np.cumsum([4, 8, 12, 20, 24, 28])
    parts = zip(np.split(x, ends[:-1]), np.split(y, ends[:-1]))
    return [ua.ClientData(own, test=(x[:12], y[:12])) for own in parts]


def run(method, clients, **options):
    given = {"rounds": 6, "participation": 0.34} | options
    return ua.run(method, clients, model="logistic", progress=False, **given)


def asked(history):
    rows = history.clients
    rows = rows[(rows["round"] > 0) & (rows["status"] != "idle")]
    return [tuple(of_round) for _, of_round in rows.groupby("round")["client"]]


def test_named_draws_of_the_option_and_of_the_part_are_the_same(clients):
    for option, part in (("fixed", "uniform_cohort"), ("poisson", "poisson_cohort")):
        usual = run("fedavg", clients, sampling=option)
        named = run(f"fedavg + {part}", clients)
        assert asked(usual.history) == asked(named.history)
        assert usual.history.rounds["train_loss"].equals(named.history.rounds["train_loss"])


def test_round_robin_asks_everybody_once_in_a_cycle_and_composes_with_any_method(clients):
    # also one that keeps every update, beside sums and an upload
    assert len(asked(run("fednova + half_precision + cohort_by_cluster", clients).history)) == 6
    found = asked(run("scaffold + lws + round_robin", clients).history)
    assert found == [(0, 1), (2, 3), (4, 5)] * 2


def test_notes_count_the_clients_that_a_sampler_asks(clients):
    alone = "one client takes part in a round: no models are averaged; let more clients take part"
    named = "named_clients(clients=('client-1', 'client-4'))"
    assert alone in run("round_robin", clients, rounds=2, participation=0.01).notes
    assert alone not in run(named, clients, rounds=2, participation=0.01).notes


def test_record_says_who_was_chosen_and_why(clients):
    history = run("named_clients(clients=('client-1', 'client-4'))", clients, rounds=1).history
    rows = history.clients[history.clients["round"] == 1]
    assert rows["chosen"].dropna().to_dict() == dict.fromkeys(rows.index[[1, 4]], "named")
    assert "chosen" not in run("fedavg", clients, rounds=1).history.clients


def test_resumed_run_asks_the_same_clients(clients, tmp_path):
    for method in ("fedavg + oort(window=2)", "fedavg + pyramidfl", "fedavg + favor(memory=3)"):
        options = {"rounds": 8, "devices": DEVICES, "seed": 1}
        folder = tmp_path / method
        whole = run(method, clients, **options)
        run(method, clients, **options, out=folder, stop=lambda row: row["round"] == 5)
        resumed = run(method, clients, **options, out=folder)
        assert asked(resumed.history) == asked(whole.history)
        assert resumed.history.clients["chosen"].equals(whole.history.clients["chosen"])
        assert resumed.history.last["loss"] == whole.history.last["loss"]


def test_what_a_sampler_cannot_do_is_refused(clients):
    with pytest.raises(ua.UnalikeError, match="two parts of the role Sampler"):
        Method.parse("oort + round_robin")
    with pytest.raises(ua.UnalikeError, match="found sampling='poisson' and round_robin"):
        run("round_robin", clients, sampling="poisson")
    with pytest.raises(ua.UnalikeError, match="found no client 'ward'; expected one of 6 names"):
        run("named_clients(clients=('ward',))", clients)
    for options in ({"devices": "first(updates=1)"}, {"executor": "distributed(workers=2)"}):
        with pytest.raises(ua.UnalikeError, match="pyramidfl says how many steps"):
            run("fedavg + pyramidfl", clients, **options)
    with pytest.raises(ua.UnalikeError, match="pyramidfl is a choice of local steps by client"):
        Method.parse("fedavg + pyramidfl").check_real()
    with pytest.raises(ua.UnalikeError, match="favor learns from the updates of clients"):
        run("local_only + favor", clients)


def test_choice_by_losses_is_refused_beside_privacy(clients):
    for privacy in ("client_dp(noise_multiplier=1)", "dp_sgd(noise_multiplier=1)"):
        with pytest.raises(ua.UnalikeError, match="power_of_choice asks clients by their losses"):
            run(f"{privacy} + power_of_choice", clients)
    with pytest.raises(ua.UnalikeError, match="favor asks clients by their models and losses"):
        run("dp_sgd(noise_multiplier=1) + favor", clients)
    with pytest.raises(ua.UnalikeError, match="round_robin asks clients by their turn"):
        run("client_dp(noise_multiplier=1) + round_robin", clients)
    # each sample is protected by itself, whoever is asked
    assert len(run("dp_sgd(noise_multiplier=1) + round_robin", clients, rounds=1).history) == 2


def test_pyramidfl_gives_those_that_would_wait_more_steps():
    sampler = PyramidFL(least_share=0.2)
    # in the last round the second client made half of its steps: all of them take it 2 s
    told = outcome([1.0] * 4, seconds=[8, 1, 2, 4])._replace(shares=np.array([1, 0.5, 1, 1]))
    state = sampler.observe(told, sampler.choice_init(5))
    # with a share of 0.2 they take 1.6, 0.4, 0.4 and 0.8 s: the others have time for 4, 4 and 2 times as much
    assert sampler.shares_of_steps([0, 1, 2, 3], state) == pytest.approx(
        {0: 0.2, 1: 0.8, 2: 0.8, 3: 0.4}
    )
    halfway = PyramidFL(least_share=0.2, beta=0.5).shares_of_steps([0, 1, 4], state)
    assert halfway == pytest.approx({0: 0.2, 1: 0.5, 4: 0.2})
    # limit cases: nobody waits, nobody is known, all steps
    assert sampler.shares_of_steps([1, 2], state) == pytest.approx({1: 0.2, 2: 0.2})
    assert sampler.shares_of_steps([4], state) == {}
    assert {*PyramidFL(least_share=1).shares_of_steps([0, 1], state).values()} == {1.0}


def test_pyramidfl_chooses_as_oort_and_is_biased_towards_many_steps(clients):
    whole = run("fedavg + pyramidfl(least_share=1)", clients, devices=DEVICES).history
    of_oort = run("fedavg + oort", clients, devices=DEVICES).history
    assert asked(whole) == asked(of_oort)
    assert whole.rounds["train_loss"].equals(of_oort.rounds["train_loss"])
    # the mean share of the steps by client, over rounds in which all are asked
    sampler = PyramidFL(exploration=0, least_exploration=0)
    told = outcome([1.0] * 4, seconds=[8, 4, 2, 1])
    choice = sampler.choose(candidates(1, size=4), sampler.observe(told, sampler.choice_init(4)))
    assert choice.shares_of([0, 1, 2, 3]) == pytest.approx([0.2, 0.4, 0.8, 1.0])


def test_pyramidfl_fills_the_time_until_the_slowest_is_done(clients):
    # sending takes no time, so that seconds are those of training
    devices = "pace(samples_per_second=10, mbit_down=1e6, mbit_up=1e6) + two_speed(slow=0.5)"
    work = ua.Work(steps=20, batch_size=4, lr=0.1)
    part = "pyramidfl(exploration=0, least_exploration=0)"
    found = run(part, clients, devices=devices, work=work, participation=1.0, rounds=3)
    turns = found.history.timeline
    seconds = (turns["ended"] - turns["begun"]).to_numpy().reshape(3, 6)
    # all make 20 steps of 4 samples: 8 s, or 80 s where slow; then 4 steps where slow, and as many as fit elsewhere
    assert seconds[0] == pytest.approx(np.where(seconds[0] > 40, 80, 8))
    assert seconds[1] == pytest.approx(np.where(seconds[0] > 40, 16, 8))
    assert seconds[2] == pytest.approx(seconds[1])
    # the same updates by every executor
    loop = run(
        part,
        clients,
        devices=devices,
        work=work,
        participation=1.0,
        rounds=3,
        executor="loop",
    )
    assert loop.history.last["loss"] == pytest.approx(found.history.last["loss"], rel=1e-4)


def test_favor_compresses_updates_to_their_principal_components():
    # deviations from the mean (2, 1): along (1, 0) with 2, -2, 0, 0, and along (0, 1) with 0, 0, 1, -1
    updates = torch.tensor([[4.0, 1.0], [0.0, 1.0], [2.0, 2.0], [2.0, 0.0]])
    found = principal_directions(updates, 3)
    # divided by the root of the mean square along the first one, sqrt(8 / 4)
    expected = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]) / 2**0.5
    torch.testing.assert_close(found, expected)
    assert len(principal_directions(updates[:1], 3)) == 0
    assert len(principal_directions(torch.ones(3, 2), 3)) == 0
    # clients stand where their update leads from the server, which moves by the mean
    models = moved(torch.ones(3, 2), torch.tensor([1]), torch.tensor([[2.0, 0.0]]), torch.ones(1))
    assert models.tolist() == [[1, 1], [3, 1], [3, 1]]


def test_favor_learns_nothing_from_a_round_with_absurd_numbers():
    """Of compressed updates it sees what was sent, which may be huge where the update is not: a decomposition ended the run."""
    sampler = Favor()
    state = sampler.choice_init(3)
    for number in (3e38, float("nan")):
        updates = {"w": torch.tensor([[1.0, 0.0], [0.0, number], [2.0, 1.0]])}
        outcome = CohortOutcome(
            round=0,
            asked=np.arange(3),
            ids=np.arange(3),
            sizes=np.ones(3),
            losses=np.ones(3),
            seconds=np.ones(3),
            shares=np.ones(3),
            updates=updates,
        )
        assert sampler.observe(outcome, state) is state


def test_favor_returns_by_hand():
    sampler = Favor(components=1, hidden=1, target=0.9, discount=0.5)
    losses = torch.tensor([0.1, 0.3, torch.nan])
    reward = sampler.reward(losses, torch.tensor([30.0, 10.0, 0.0]))
    assert float(reward) == pytest.approx(64 ** (np.exp(-0.15) - 0.9) - 1)
    # Q = output * relu(server's model) + bias; Q prefers the second client, of which Q' says 2 * 3 + 1
    network = {
        "hidden": torch.tensor([[0.0, 0.0, 1.0]]),
        "hidden_bias": torch.zeros(1),
        "output": torch.tensor([[1.0], [2.0]]),
        "output_bias": torch.zeros(2),
    }
    copy = network | {"output_bias": torch.tensor([9.0, 1.0])}
    after = torch.tensor([[[0.0], [0.0], [3.0]]])
    returns = sampler.returns(
        network, copy, {"memory/after": after, "memory/reward": torch.ones(1)}
    )
    assert returns.tolist() == [1 + 0.5 * 7]
    # one step for the second client alone, whose Q of 6 is 2.5 too large: the Huber loss has the slope 1
    stepped = descended(network, after, torch.tensor([[0.0, 1.0]]), returns, lr=0.1)
    assert stepped["output_bias"].tolist() == pytest.approx([0, -0.1])
    assert stepped["output"].flatten().tolist() == pytest.approx([1, 2 - 0.3])


def favor_after_rounds(sampler, rounds):
    """Its state after rounds that end with small losses where the last client takes part, and with large ones where not."""
    state = sampler.choice_init(4)
    for r in range(rounds):
        ids = sampler.choose(candidates(r), state).clients
        losses = [0.1 if 3 in ids else 2.0] * len(ids)
        # updates differ in the first round, so that there are directions; then all models stay where they are
        updates = torch.eye(4)[ids] * (r == 0)
        told = outcome(losses, round=r, ids=ids)._replace(updates={"w": updates})
        state = sampler.observe(told, state)
    return state


def test_favor_asks_all_first_then_by_chance_and_learns_who_lowers_the_loss():
    by_chance = Favor(components=2, exploration=1, least_exploration=1, lr=0.05, updates=20)
    first = by_chance.choose(candidates(0), by_chance.choice_init(4))
    assert [*first.clients] == [0, 1, 2, 3] and {*first.reasons.values()} == {"first round"}
    state = favor_after_rounds(by_chance, rounds=40)
    assert len(state["memory/reward"]) == by_chance.memory < 39
    # without a choice of the network it is the usual draw, which is not biased
    assert chances(by_chance, state) == pytest.approx(np.full(4, 0.5), abs=0.03)
    # biased: the network always asks the same clients, and among them the one that it values most
    by_value = Favor(components=2, exploration=0, least_exploration=0)
    choices = [by_value.choose(candidates(r), state) for r in range(20)]
    assert all(choice == choices[0] for choice in choices)
    assert 3 in choices[0].clients and choices[0].reasons[3].startswith("value ")
