"""A federation whose labels are several numbers, masks or texts trains as a simulation does."""

import numpy as np
import pytest
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


def clients_with_masks():
    rng = np.random.default_rng(0)
    clients = []
    for number in range(2):
        x = rng.normal(size=(15, 1, 6, 6)).astype(np.float32)
        # the mask of one site lacks a class, and the number of classes comes from the task
        y = (x[:, 0] > 0).astype(np.int64) + (number == 1) * (x[:, 0] > 1)
        y[:, 0] = 255
        clients.append(
            ua.ClientData(train=(x[:10], y[:10]), test=(x[10:], y[10:]), name=f"site{number}")
        )
    return clients


def clients_with_texts():
    tokens = np.random.default_rng(0).integers(0, 6, (2, 20, 5))
    return [
        ua.ClientData(train=(some[:14], None), test=(some[14:], None), name=f"site{number}")
        for number, some in enumerate(tokens)
    ]


TIMES = Schema(shape=(3,), task=TASK, label_shape=(2,))
MASKS = Schema(shape=(1, 6, 6), task="segmentation(classes=3, ignored=255)", label_shape=(6, 6))
TEXTS = Schema(shape=(5,), task="next_token(classes=6)", tokens=True, label_shape=(5,))
CHAR_LSTM = "char_lstm(vocabulary=6, embedding=4, hidden=6, layers=1, every=True)"


@pytest.mark.parametrize(
    ("clients", "schema", "model"),
    [
        (clients_with_event_times(), TIMES, "linear"),
        (clients_with_masks(), MASKS, "unet(width=4, depth=1)"),
        (clients_with_texts(), TEXTS, CHAR_LSTM),
    ],
    ids=["event times", "masks", "texts"],
)
def test_labels_of_any_shape_train_at_sites_as_in_a_simulation(tmp_path, clients, schema, model):
    fed = SmallFederation(
        tmp_path, clients, data=schema, model=model, work=ua.Work(batch_size=5, lr=0.1)
    )
    run = fed.run()
    assert run.config["data"]["task"] == schema.task
    simulated = ua.run(
        "fedavg",
        ua.Population.of(clients, task=schema.task),
        model=model,
        rounds=2,
        work=ua.Work(batch_size=5, lr=0.1),
        executor="loop",
    )
    for name, value in simulated.params.items():
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=0)
    # what masks and texts are scored by is known of all sites' samples together
    names = ["loss"] if schema is TIMES else simulated.run_config.population.task.metrics
    for name in names:
        np.testing.assert_allclose(
            run.history.rounds[name], simulated.history.rounds[name], rtol=1e-6
        )


def test_site_refuses_labels_of_other_lengths(tmp_path):
    clients = clients_with_masks()
    x, y = clients[1].train
    clients[1] = ua.ClientData(train=(x, y[:, 1:]), name="site1")
    message = r"found labels \[N, 5, 6\]; the federation agreed on \[N, 6, 6\]"
    with pytest.raises(ua.UnalikeError, match=message):
        SmallFederation(tmp_path, clients, data=MASKS, model="unet(width=4, depth=1)")


def test_task_of_a_federation_says_how_many_classes_there_are():
    with pytest.raises(ua.UnalikeError, match=r"in the task: segmentation\(classes=3\)"):
        Schema(shape=(1, 6, 6), task="segmentation", label_shape=(6, 6))
