"""Executors: the order of clients, and threads."""

import pytest
import torch
from every_method import SIZES
from simulation import Clients, Simulation, mlp, same


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_client_updates_of_chosen_clients_come_in_order_of_ids(executor):
    sim = Simulation(
        "ditto", mlp(), Clients.random(SIZES), executor=executor, chunk=2, batch_size=4
    )
    everyone, some = sim.run(), sim.run([3, 0, 2])
    assert some.ids == (3, 0, 2) and some.sizes.tolist() == [5, 7, 1]
    for i, k in enumerate(some.ids):
        for n, u in some.update.items():
            torch.testing.assert_close(u[i], everyone.update[n][k])


def test_rounds_with_dropout_in_two_threads_equal_round_in_one():
    from concurrent.futures import ThreadPoolExecutor

    sims = [
        Simulation("fedavg", mlp(dropout=0.5), Clients.random((200, 200)), batch_size=2)
        for _ in range(3)
    ]
    sims[0].round()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda sim: sim.round(), sims[1:]))
    assert same(sims[1].params, sims[0].params) and same(sims[2].params, sims[0].params)
