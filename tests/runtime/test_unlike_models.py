"""Groups of clients with models of different widths: whoever needs a model asks the group for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from safetensors.torch import load_file
from torch import nn

import unalike as ua
from unalike.core.model import Model
from unalike.methods.plan import Stage, StagedPlan
from unalike.runtime.stages.local_backend import LocalBackend
from unalike.runtime.stages.model_group import ModelGroup

GROUPS = {"narrow": (0, 1, 2), "wide": (3, 4, 5)}
WIDTHS = {"narrow": 8, "wide": 24}


@dataclass(frozen=True)
class Grouped(StagedPlan):
    """A method by itself in each group."""

    method: str = "fedavg"

    def stages(self, plan_inputs):
        yield Stage("grouped", ua.Method.parse(self.method), plan_inputs.rounds, GROUPS)


def mlp(width):
    return Model(nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 4)))


class UnlikeModels(LocalBackend):
    """Gives each group the model of its width."""

    def stage(self, stage, index, folder):
        clients = super().stage(stage, index, folder)
        for name, group in clients.state.groups.items():
            settings = replace(group.settings, model=mlp(WIDTHS[name]))
            clients.state.groups[name] = ModelGroup(
                stage=stage,
                settings=settings,
                source=group.source,
                members=group.members,
                client_states=clients._client_states(folder, stage, settings, group.source),
                transform=None,
            )
        return clients


def size(tensors):
    return sum(t.numel() for t in tensors.values())


@pytest.mark.parametrize("method", ["fedavg", "scaffold + ditto"])
@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_groups_train_models_of_different_widths(
    people, small, monkeypatch, tmp_path, method, executor
):
    monkeypatch.setattr("unalike.runtime.processes.launch.LocalBackend", UnlikeModels)
    run = small(Grouped(method), people, rounds=4, executor=executor, out=tmp_path)
    rounds = run.history.rounds
    assert rounds["accuracy"].iloc[-1] > rounds["accuracy"].iloc[0]

    # each client evaluates with a model of its group's width, and the files of the groups hold them
    numbers = {name: size(mlp(width).params) for name, width in WIDTHS.items()}
    for name, ids in GROUPS.items():
        assert size(load_file(tmp_path / f"model-{name}.safetensors")) == numbers[name]
        for client in ids:
            assert size(run.personal(client)) == numbers[name]

    # bytes count the model of the group; one client of the second group has no samples and sends nothing
    copies = 2 if "scaffold" in method else 1
    expected = 4 * copies * (3 * numbers["narrow"] + 2 * numbers["wide"])
    up = rounds["bytes_up"].iloc[-1]
    assert expected <= up < 1.05 * expected + 5 * 64
