"""Client updates that are refused."""

import torch
from every_method import SIZES
from simulation import Clients, Simulation, mlp

from unalike.training.server.update_checks import find_faults


def test_client_updates_with_values_not_finite_are_refused_by_name():
    sim = Simulation("scaffold", mlp(norm=True), Clients.random(SIZES), batch_size=4)
    cohort = sim.run()
    assert find_faults(cohort.ids, cohort.stacked) == {}
    cohort.stacked.update["head.bias"][1, 0] = float("nan")
    cohort.stacked.messages["control_variates"]["body.weight"][3] = float("inf")
    found = find_faults(cohort.ids, cohort.stacked)
    assert (
        list(found) == [1, 3]
        and "update of head.bias" in found[1]
        and "control_variates/body.weight" in found[3]
    )
    kept = cohort.rows(torch.tensor([0, 2]))
    assert (
        kept.ids == (0, 2)
        and find_faults(kept.ids, kept.stacked) == {}
        and kept.sizes.tolist() == [7, 1]
    )
