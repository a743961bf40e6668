"""Initial weights from a file: safetensors, a state dict saved by torch, or the folder of a run."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.core.types import Tree

RUN_FILE = "model.safetensors"
"""The file of a run's folder with the weights of its shared model."""


@dataclass(frozen=True)
class Start:
    """The source of the initial weights of a run.

    `partial`: a part of the tensors was enough. `taken` is such as "18 of 20 tensors; left as initialized: head.weight,
    head.bias".
    """

    path: str
    partial: bool
    taken: str


def start_from(model: Model, path: str | Path, partial: bool = False) -> tuple[Model, Start]:
    """The model with the weights of a file, and which of its tensors the file had.

    `path` is a file (`.safetensors`, or any that `torch.save(module.state_dict(), FILE)` wrote), or a run's folder. `partial`
    takes the tensors that fit by name and shape and leaves all others as initialized; a layer with a tensor of another shape is
    left as a whole. Also returns what was taken from where. Raises `UnalikeError` for a file that cannot be read, does not fit
    the model (unless `partial`), or has no tensor that fits.
    """
    stored = read_state_dict(path)
    initial = model.state_dict(model.params | model.buffers)
    lacking = [name for name in initial if name not in stored]
    unknown = [name for name in stored if name not in initial]
    unlike = [name for name in stored if name in initial and not _fits(stored[name], initial[name])]

    # The bias of another layer would mean nothing beside this one's weight, so a layer fits as a whole or not.
    unlike_layers = {_layer(name) for name in unlike}
    fitting = {
        name: tensor.to(initial[name].dtype)
        for name, tensor in stored.items()
        if name in initial and _layer(name) not in unlike_layers
    }
    if not partial and (lacking or unknown or unlike):
        shapes = [
            f"{name} {list(stored[name].shape)} instead of {list(initial[name].shape)}"
            for name in unlike
        ]
        parts = {"it lacks": lacking, "the model has no": unknown, "other shapes or types:": shapes}
        why = ", ".join(f"{what} {_listed(names)}" for what, names in parts.items() if names)
        raise UnalikeError(
            f"{path} does not fit the model: {why}; give a checkpoint of the same "
            "model, or start_partial=True (--start-partial) to take the "
            f"{len(fitting)} of {len(initial)} tensors that fit"
        )
    if not fitting:
        raise UnalikeError(
            f"{path} has no tensor that fits the model by name and shape: it has "
            f"{_listed(list(stored))}; expected {_listed(list(initial))}"
        )
    for name, tensor in fitting.items():
        if not tensor.isfinite().all():
            raise UnalikeError(
                f"{path}: {name} has numbers that are not finite; expected finite numbers only"
            )
    start = Start(str(path), partial, _summary(initial, stored, fitting))
    return model.starting_from(fitting), start


def read_state_dict(path: str | Path) -> Tree:
    """Tensors by name of a file or of a run's folder. Raises `UnalikeError`; nothing in the file is executed."""
    file = Path(path) / RUN_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UnalikeError(
            f"found no {file}; give a file of weights (.safetensors, or a state dict "
            "saved by torch.save), or the folder of a finished run with a shared model"
        )
    try:
        if file.suffix == ".safetensors":
            stored = load_file(file)
        else:
            # `weights_only`: an ordinary unpickler would run any code that the file names.
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        KeyError,
        SafetensorError,
        pickle.UnpicklingError,
    ) as error:
        why = str(error).split("\n")[0][:120]
        raise UnalikeError(
            f"cannot read {file} ({why}); expected .safetensors, or what "
            "torch.save(module.state_dict(), FILE) wrote: tensors alone, since nothing "
            "else is read"
        ) from None
    if not _is_state_dict(stored):
        content = type(stored).__name__
        if isinstance(stored, dict):
            content = f"a dict with {_listed([str(name) for name in stored])}"
        raise UnalikeError(
            f"{file} holds {content}; expected tensors by name: "
            "torch.save(module.state_dict(), FILE)"
        )
    return stored


def _is_state_dict(stored: object) -> bool:
    """Whether this is a dict of one tensor or more."""
    if not isinstance(stored, dict) or not stored:
        return False
    return all(isinstance(tensor, Tensor) for tensor in stored.values())


def _fits(stored: Tensor, initial: Tensor) -> bool:
    """Whether a tensor of a file can take the place of the model's: same shape, and both floating or both integers."""
    if stored.shape != initial.shape:
        return False
    return stored.is_floating_point() == initial.is_floating_point()


def _summary(initial: Tree, stored: Tree, fitting: Tree) -> str:
    """How many tensors of the model the file had, which were left as they were, and which of the file are not used."""
    rest = {
        "left as initialized": [name for name in initial if name not in fitting],
        "not used": [name for name in stored if name not in initial],
    }
    text = f"{len(fitting)} of {len(initial)} tensors"
    for what, names in rest.items():
        if names:
            text += f"; {what}: {_listed(names, 10)}"
    return text


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _listed(names: list[str], most: int = 4) -> str:
    """The first names, and how many there are besides."""
    few = ", ".join(names[:most])
    if len(names) > most:
        return f"{few} and {len(names) - most} more"
    return few
