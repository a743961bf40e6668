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
    stored, initial = read_state_dict(path), model.state_dict(model.params | model.buffers)
    other = [n for n, t in stored.items() if n in initial and not _fits(t, initial[n])]
    layers = {
        _layer(n) for n in other
    }  # the bias of another layer would mean nothing beside this one's weight
    fitting = {
        n: t.to(initial[n].dtype)
        for n, t in stored.items()
        if n in initial and _layer(n) not in layers
    }
    lacking = [n for n in initial if n not in stored]
    unknown = [n for n in stored if n not in initial]
    if not partial and (lacking or unknown or other):
        shapes = [f"{n} {list(stored[n].shape)} instead of {list(initial[n].shape)}" for n in other]
        parts = {"it lacks": lacking, "the model has no": unknown, "other shapes or types:": shapes}
        why = ", ".join(f"{what} {_listed(names)}" for what, names in parts.items() if names)
        raise UnalikeError(
            f"{path} does not fit the model: {why}; give a checkpoint of the same model, or "
            f"start_partial=True (--start-partial) to take the {len(fitting)} of {len(initial)} tensors that fit"
        )
    if not fitting:
        raise UnalikeError(
            f"{path} has no tensor that fits the model by name and shape: it has {_listed(list(stored))}; expected "
            f"{_listed(list(initial))}"
        )
    broken = next((n for n, t in fitting.items() if not t.isfinite().all()), None)
    if broken is not None:
        raise UnalikeError(
            f"{path}: {broken} has numbers that are not finite; expected finite numbers only"
        )
    return model.starting_from(fitting), Start(
        str(path), partial, _summary(initial, stored, fitting)
    )


def read_state_dict(path: str | Path) -> Tree:
    """Tensors by name of a file or of a run's folder. Raises `UnalikeError`; nothing in the file is executed."""
    file = Path(path) / RUN_FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UnalikeError(
            f"found no {file}; give a file of weights (.safetensors, or a state dict saved by torch.save), or the folder of a "
            "finished run with a shared model"
        )
    is_torch = file.suffix != ".safetensors"
    try:
        stored = (
            torch.load(file, map_location="cpu", weights_only=True) if is_torch else load_file(file)
        )
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
            f"cannot read {file} ({why}); expected .safetensors, or what torch.save(module.state_dict(), FILE) wrote: tensors "
            "alone, since nothing else is read"
        ) from None
    if (
        not isinstance(stored, dict)
        or not stored
        or not all(isinstance(t, Tensor) for t in stored.values())
    ):
        kinds = (
            f"a dict with {_listed(list(map(str, stored)))}"
            if isinstance(stored, dict)
            else type(stored).__name__
        )
        raise UnalikeError(
            f"{file} holds {kinds}; expected tensors by name: torch.save(module.state_dict(), FILE)"
        )
    return stored


def _fits(found: Tensor, own: Tensor) -> bool:
    """Whether a tensor of a file can take the place of the model's: same shape, and both floating or both integers."""
    return found.shape == own.shape and found.is_floating_point() == own.is_floating_point()


def _summary(own: Tree, found: Tree, fitting: Tree) -> str:
    rest = {
        "left as initialized": [n for n in own if n not in fitting],
        "not used": [n for n in found if n not in own],
    }
    lists = (f"; {what}: {_listed(names, 10)}" for what, names in rest.items() if names)
    return f"{len(fitting)} of {len(own)} tensors" + "".join(lists)


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _listed(names: list[str], most: int = 4) -> str:
    few = ", ".join(names[:most])
    return few + (f" and {len(names) - most} more" if len(names) > most else "")
