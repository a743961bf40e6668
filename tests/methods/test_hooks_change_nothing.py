"""Hooks that write over what they are shown are named, with the tensor, by every executor alike."""

import pytest
import torch

import unalike as ua
from unalike.methods.roles import Correction, Objective, Personalizer, ServerStep


def run(hooks, roles=(Objective,), executor="loop"):
    """A run with a part of these hooks beside FedAvg; what they return is of no interest."""
    defaults = {
        Objective: {"loss": lambda part, client, batch: client.out(batch).logits.mean() * 0},
        Correction: {"correct": lambda part, client, grads, batch: grads},
        Personalizer: {},
        ServerStep: {"step": lambda part, server, update, cohort: (update, server.state)},
    }
    body = {"__module__": __name__, "client_init": lambda part, params: {"c": torch.zeros(2)}}
    body["server_init"] = lambda part, params: {"s": torch.zeros(2)}
    body["broadcast"] = lambda part, server: {"m": torch.ones(2)}
    for role in roles:
        body |= defaults[role]
    part = ua.part(type("Writing", roles, body | hooks))
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    clients = [
        ua.ClientData(train=(x[k::3], torch.arange(10) % 2), test=(x[:4], torch.arange(4) % 2))
        for k in range(3)
    ]
    return ua.run(
        ua.Method(part()), clients, rounds=3, model="linear", executor=executor, progress=False
    )


def adds_to_state(part, client):
    client.state["c"] += 0.5
    return client.state, {}


def replaces_in_state(part, client):
    client.state["c"] = client.state["c"] + 0.5
    return client.state, {}


def new_name_in_state(part, client):
    client.state["d"] = torch.zeros(2)
    return {"c": client.state["c"]}, {}


def scales_message(part, client):
    client.message["m"].mul_(2)
    return client.state, {}


def moves_model(part, client):
    for w in client.params.values():
        w.zero_()
    return client.state, {}


def centers_batch(part, client, batch):
    batch.x.sub_(1)
    return client.out(batch).logits.mean() * 0


def counts_in_loss(part, client, batch):
    with torch.no_grad():
        client.state["c"].add_(1)
    return client.out(batch).logits.mean() * 0


def counts_in_correct(part, client, grads, batch):
    client.state["c"].add_(1)
    return grads


def absorbs(part, server, folded):
    server.state["s"].add_(1)
    return server.state


def steps(part, server, update, cohort):
    next(iter(server.params.values())).add_(1)
    return update, server.state


def tells(part, server):
    server.state["s"].add_(1)
    return {"m": torch.ones(2)}


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize(
    ("hooks", "roles", "message"),
    [
        ({"finish": adds_to_state}, (Objective,), r"finish writes over client.state\['c'\]"),
        ({"finish": replaces_in_state}, (Objective,), r"finish writes over client.state\['c'\]"),
        ({"finish": new_name_in_state}, (Objective,), "finish writes over client.state;"),
        ({"finish": scales_message}, (Objective,), r"finish writes over client.message\['m'\]"),
        ({"finish": moves_model}, (Objective,), r"finish writes over client.params\["),
        (
            {"correct": counts_in_correct},
            (Correction,),
            r"correct writes over client.state\['c'\]",
        ),
        ({"absorb": absorbs}, (Objective,), r"absorb writes over server.state\['s'\]"),
        ({"step": steps}, (ServerStep,), r"step writes over server.params\["),
        ({"broadcast": tells}, (Objective,), r"broadcast writes over server.state\['s'\]"),
    ],
)
def test_hook_that_writes_over_what_it_is_shown_is_named(hooks, roles, message, executor):
    with pytest.raises(ua.UnalikeError, match=rf"writing.{message}.*expected a new tensor"):
        run(hooks, roles, executor)


@pytest.mark.parametrize(
    ("loss", "what"), [(centers_batch, r"batch\['x'\]"), (counts_in_loss, r"client.state\['c'\]")]
)
def test_loss_that_writes_over_what_it_is_shown_is_refused(loss, what):
    with pytest.raises(ua.UnalikeError, match=f"writing.loss writes over {what}"):
        run({"loss": loss})
    with pytest.raises(ua.UnalikeError, match="in-place operation"):  # as torch says it
        run({"loss": loss}, executor="batched")


def writes_by_data(part, client):
    client.state["c"].data.add_(0.5)
    return client.state, {}


def writes_by_numpy(part, client):
    client.state["c"].numpy()[:] += 0.5
    return client.state, {}


def shrinks_received(part, client, batch):
    for w in client.received_params.values():
        w.data.add_(1)
    return client.out(batch).logits.mean() * 0


@pytest.mark.parametrize(
    ("hooks", "what"),
    [
        ({"finish": writes_by_data}, r"client.state\['c'\]"),
        ({"finish": writes_by_numpy}, r"client.state\['c'\]"),
        ({"loss": shrinks_received}, "client.received_params"),
    ],
)
def test_writes_that_torch_does_not_count_are_named(hooks, what):
    with pytest.raises(ua.UnalikeError, match=f"writes over {what}"):
        run(hooks)


def test_hooks_that_return_new_tensors_are_alike_in_both_executors():
    def finish(part, client):
        return {"c": client.state["c"] + 0.5}, {}

    losses = [
        run({"finish": finish}, executor=executor).history.last["loss"]
        for executor in ("loop", "batched")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
