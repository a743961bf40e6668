"""A federation whose labels are several numbers trains as a simulation does."""

import numpy as np
import torch
from small_federation import SmallFederation

import unalike as ua
from unalike.federation.protocol.federation_file import Schema

TASK = "discrete_survival(edges=(1.0, 2.0))"


def clients_with_event_times():
    rng = np.random.default_rng(0)
    clients = []
    for number in range(2):
        x = rng.normal(size=(24, 3)).astype(np.float32)
        time = rng.exponential(np.exp(x[:, 0]))
        event = rng.random(24) < 0.7
        y = np.column_stack([time, event])
        clients.append(
            ua.ClientData(train=(x[:16], y[:16]), test=(x[16:], y[16:]), name=f"site{number}")
        )
    return clients


def test_event_times_train_at_sites_as_in_a_simulation(tmp_path):
    clients = clients_with_event_times()
    schema = Schema(shape=(3,), task=TASK, label_shape=(2,))
    fed = SmallFederation(
        tmp_path, clients, data=schema, model="linear", work=ua.Work(batch_size=5, lr=0.1)
    )
    run = fed.run()
    assert run.config["data"]["task"] == TASK
    simulated = ua.run(
        "fedavg",
        ua.Population.of(clients, task=TASK),
        model="linear",
        rounds=2,
        work=ua.Work(batch_size=5, lr=0.1),
        executor="loop",
    )
    for name, value in simulated.params.items():
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=0)
    losses = run.history.rounds["loss"]
    np.testing.assert_allclose(losses, simulated.history.rounds["loss"], rtol=1e-6)
