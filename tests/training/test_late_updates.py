"""Updates that come late: their ages, as weights see them, and the client states that they belong to."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from every_method import SIZES, federation

import unalike as ua
from unalike.core import tree
from unalike.methods.method import Method
from unalike.methods.plan import steps_of
from unalike.methods.roles import Weighting
from unalike.runtime.stages.local_backend import LocalStage
from unalike.training.server.kept_updates import KeptUpdates
from unalike.training.server.server_round import ServerRound
from unalike.training.server.server_update import advance
from unalike.training.server.summed_updates import SummedUpdates, add_up


@dataclass(frozen=True)
class Fresher(Weighting):
    """Weights / sqrt(1 + age), of linear methods and of those that look at each update."""

    name = "fresher"

    def weigh(self, cohort, weights):
        ua.note("age", cohort.ages, part=self.name)
        return weights / (1 + cohort.ages).sqrt()


@dataclass(frozen=True)
class FresherOfKept(Fresher):
    name = "fresher_of_kept"
    needs = "updates"


def of_numbers(seed=0):
    rng = np.random.default_rng(seed)
    data = []
    for size in (20, 12, 9):
        x = rng.normal(size=(size, 4)).astype(np.float32)
        data.append(
            ua.ClientData(train=(x, rng.integers(0, 3, size)), test=(x, np.zeros(size, int)))
        )
    return data


@pytest.mark.parametrize(
    ("part", "executor"),
    [
        (Fresher(), "loop"),
        (Fresher(), "batched"),
        (Fresher(), "distributed(workers=2)"),
        (FresherOfKept(), "loop"),
        (FresherOfKept(), "batched"),
    ],
)
def test_no_update_of_a_round_is_late(part, executor):
    clients = of_numbers()
    options = {"model": "mlp(hidden=(8,))", "rounds": 2, "executor": executor}
    run = ua.run(Method(part), clients, record="server", **options)
    ages = run.records.query("quantity == 'age'")
    # weights of sums are found before training, and again when all updates are there
    assert set(ages["round"]) == {1, 2} and set(ages["client"]) == {0, 1, 2}
    assert (ages["value"] == 0).all()
    usual = ua.run("fedavg", clients, **options)
    for name, values in usual.params.items():
        torch.testing.assert_close(run.params[name], values, rtol=1e-6, atol=1e-7)


def late_round(part, started_from):
    """A server that has made three rounds, and updates of which some started from earlier models."""
    sim = federation(Method(part))
    for _ in range(3):
        sim.round()
    cohort = sim.run()
    kept = KeptUpdates.in_memory(cohort.ids, cohort.stacked)
    return sim, replace(kept, started_from=started_from)


@pytest.mark.parametrize("part", [Fresher(), FresherOfKept()])
def test_late_updates_weigh_less_kept_and_summed(part):
    sim, kept = late_round(part, {0: 1, 2: 2})
    server = ServerRound(sim.method, sim.settings, sim.state, len(SIZES))
    summed = add_up(kept, server, sim.members)
    assert isinstance(summed, SummedUpdates)
    expected = torch.zeros(len(SIZES))
    expected[0] = 2
    expected[2] = 1
    for updates in (kept, summed):
        cohort = updates.cohort(server, sim.members)
        assert torch.equal(cohort.ages, expected)
        assert torch.equal(cohort.rows(torch.tensor([2, 1])).ages, torch.tensor([1.0, 0.0]))

    weights = torch.tensor(SIZES, dtype=torch.float32) / (1 + expected).sqrt()
    weights = weights / weights.sum()
    mean = tree.weighted_sum(kept.stacked.update, weights)
    for updates in (kept, summed):
        state = advance(sim.method, sim.settings, sim.state, updates, sim.members)
        for name, step in mean.items():
            moved = state.params[name] - sim.state.params[name]
            torch.testing.assert_close(moved, step, rtol=1e-4, atol=1e-6)


def test_late_update_accepts_the_client_state_of_its_own_round():
    run = ua.run("scaffold", of_numbers(), model="mlp(hidden=(8,))", rounds=3, executor="loop")
    run_config = run.run_config
    stage = LocalStage(run_config, next(steps_of(run_config.plan, run_config.plan_inputs)))
    stage.start()
    [group] = stage.state.groups.values()
    late = group.train([0, 1])
    group.move(group.gather(group.train([2])))
    assert group.accepted == {2: 0}
    group.move(group.gather(replace(late, started_from={0: 0, 1: 0})))
    assert group.state.round == 2
    assert group.accepted == {0: 0, 1: 0, 2: 0}
    assert any(t.any() for t in group.client_state(0)["control_variates"].values())
