"""What a method sends: the bytes that are listed are those that cross the wire."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from every_method import METHODS
from simulation import mlp

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.work import Work
from unalike.methods.method import Method
from unalike.methods.part import Part
from unalike.runtime.setup.run_config import configure_run
from unalike.training.client import client_update
from unalike.training.wire import NUMBERS_BYTES

SIZES, CLASSES, PROXY = (7, 3, 5), 3, 6
WORK = Work(steps=2, batch_size=5, lr=0.05)


def test_wire_of_scaffold_lists_every_item_down_and_up():
    """SCAFFOLD: the model and c down, the update and the change of c_i up, and four numbers."""
    items = ua.wire(Method.parse("scaffold"), mlp())
    size = sum(4 * p.numel() for p in mlp().parameters())
    assert [(i.direction, i.bytes) for i in items] == [
        ("down", size),
        ("down", size),
        ("up", size),
        ("up", size),
        ("up", 16),
    ]
    assert ua.wire(Method.parse("local_only"), mlp()) == []


@dataclass(frozen=True)
class Sized(Part):
    """Sends tensors whose sizes follow from the settings of the run."""

    name: ClassVar[str] = "sized"
    needs_proxy: ClassVar[bool] = True

    def broadcast(self, server):
        return {
            "by_class": torch.zeros(server.settings.classes),
            "of_proxy": torch.zeros(len(server.proxy.y), 2),
            "by_client": torch.zeros(server.population),
        }

    def finish(self, client):
        work, classes = client.settings.work, client.settings.classes
        return client.state, {"rows": torch.zeros(work.batch_size, classes)}


def samples(count, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 4)).astype(np.float32), np.arange(count) % CLASSES


def arguments():
    clients = [ua.ClientData(samples(n, n), test=samples(2, 9)) for n in SIZES]
    return {
        "clients": clients,
        "model": mlp(norm=True),
        "rounds": 1,
        "work": WORK,
        "proxy": samples(PROXY, 1),
        "executor": "loop",
    }


def listed(items, direction):
    return sum(item.bytes for item in items if item.direction == direction and not item.once)


def check_sent(method, monkeypatch, **options):
    """Compare what a run with these options lists, and counts in its history, with what its clients get and send."""
    given = arguments() | options
    run_config = configure_run(method, given.pop("clients"), **given)
    received, sent = [], []
    make = client_update.make_client_update

    def spied(task, trained):
        order = task.broadcast
        shared = [tree.only(order.params, task.sent_names)]
        if given.get("buffers") != "local":
            buffers = order.buffers
            shared.append(
                tree.only(buffers, task.method.shared_names(buffers, task.settings.model))
            )
        received.append(tree.nbytes(*shared, *order.messages.values()))
        update, kept = make(task, trained)
        parts = [update.update, update.buffers, *update.messages.values(), *update.shared.values()]
        sent.append(tree.nbytes(*parts))
        return update, kept

    monkeypatch.setattr(client_update, "make_client_update", spied)
    run = ua.run(method, **(arguments() | options))
    items = run_config.wire
    assert listed(items, "down") == received[0]
    assert listed(items, "up") == (sent[0] + NUMBERS_BYTES if items else 0)
    last = run.history.last
    assert last["bytes_down"] == len(SIZES) * listed(items, "down")
    assert last["bytes_up"] == len(SIZES) * listed(items, "up")


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_listed_bytes_of_every_method_are_those_sent_in_a_run(name, buffers, monkeypatch):
    options = {}
    if METHODS[name].privacy is not None:
        # whole passes, and no batch norm, are what a private method accounts
        options = {"model": mlp(), "work": Work(epochs=2, batch_size=5, lr=0.05)}
    check_sent(METHODS[name], monkeypatch, buffers=buffers, **options)


@pytest.mark.parametrize("work", [WORK, Work(epochs=1, batch_size=2)])
def test_listed_bytes_follow_the_settings_of_the_run(work, monkeypatch):
    check_sent(Method() + Sized(), monkeypatch, work=work)


def test_wire_of_a_module_takes_the_settings_that_it_is_given():
    proxy = tuple(map(torch.from_numpy, samples(PROXY, 1)))
    items = ua.wire(Method() + Sized(), mlp(), work=WORK, classes=CLASSES, proxy=proxy)
    assert [i.bytes for i in items if i.what == "message of sized"] == [
        4 * (CLASSES + 2 * PROXY + 1),
        4 * WORK.batch_size * CLASSES,
    ]


def test_error_of_a_hook_says_that_it_is_a_trial():
    with pytest.raises(TypeError) as error:
        ua.wire(Method() + Sized(), mlp())
    [trial] = [note for note in error.value.__notes__ if "trial" in note]
    assert "on a client without samples" in trial and trial.endswith(
        "no classes and no proxy were given, so they are None in its settings"
    )


@dataclass(frozen=True)
class OneTree(Part):
    """Returns one tree where two are asked for."""

    name: ClassVar[str] = "one_tree"

    def finish(self, client):
        return {"a": torch.zeros(2), "b": torch.zeros(2)}


@pytest.mark.parametrize("act", [lambda m: ua.wire(m, mlp()), lambda m: ua.run(m, **arguments())])
@pytest.mark.parametrize(
    ("hook", "value"),
    [
        ("broadcast", {"m": 0.1}),
        ("client_init", {"m": 0.1}),
        ("server_init", {"m": 0.1}),
        ("finish", ({}, {"m": 0.1})),
    ],
)
def test_number_in_the_place_of_a_tensor_is_refused(act, hook, value):
    body = {"__module__": __name__, "name": "numbers", hook: lambda part, *_: value}
    part = dataclass(frozen=True)(type("Numbers", (Part,), body))
    with pytest.raises(
        UnalikeError, match=f"numbers.{hook} gives float for 'm'; expected a tensor"
    ):
        act(Method() + part())


@pytest.mark.parametrize("act", [lambda m: ua.wire(m, mlp()), lambda m: ua.run(m, **arguments())])
def test_finish_that_returns_one_tree_is_refused(act):
    with pytest.raises(
        UnalikeError,
        match=r"one_tree.finish gives dict; expected two trees, as in \(tree, \{\}\)",
    ):
        act(Method() + OneTree())
