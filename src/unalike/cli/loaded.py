"""A kept run read back: its model and its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unalike.data import Dataset
    from unalike.results.evaluation import Predict


def load_model(folder: Path) -> tuple[Predict, dict[str, Any]]:
    """The shared model of a run directory as a function from samples to logits, and the run's configuration.

    Raises `UnalikeError` for a folder without a finished run, and for a model that only a program can build.
    """
    from unalike.core.checkpoint import read_tensors
    from unalike.core.errors import UnalikeError
    from unalike.core.model import Model
    from unalike.data.transforms import transform
    from unalike.models import model
    from unalike.models.registry import read, registry
    from unalike.results.directory import RunDirectory
    from unalike.results.evaluation import SharedModel

    config = RunDirectory(folder).config
    weights = folder / "model.safetensors"
    if config is None or not weights.exists():
        raise UnalikeError(
            f"{folder} holds no finished run with a shared model; give a folder that `unalike run --out` wrote"
        )
    name, data = config["model"]["name"], config["data"]
    if read(name).name not in registry:
        raise UnalikeError(f"the run's model {name!r} came from a program; load {weights} there")
    made = Model(model(name, tuple(data["input_shape"]), data.get("outputs")))
    tensors, _ = read_tensors(weights)
    if set(tensors) != set(made.state_dict(made.params | made.buffers)):
        raise UnalikeError(
            f"{weights} does not fit the model {name!r}: {config['method']} made another one of it (load it in Python with "
            "ua.run(..., out=folder).module()), or the folder was changed"
        )
    predict = SharedModel(made, {n: tensors[n] for n in made.params}, {n: tensors[n] for n in made.buffers})
    text = config.get("transform")
    return (predict if text is None else transform(text).fixed.before(predict)), config


def fitting(data: str, data_dir: Path | None, folder: Path, config: dict[str, Any]) -> Dataset:
    """A data set whose samples have the shape that the run's model takes; a table with the encoding of the run's federation.

    Raises `UnalikeError` for samples of another shape.
    """
    from unalike.core.errors import UnalikeError
    from unalike.data import load

    encoding, terms = None, folder.resolve().parent / "federation.toml"
    if "federation" in config and terms.exists():
        from unalike.deploy.federation import Federation

        encoding = Federation.load(terms).data.encoding
    dataset, wanted = load(data, data_dir, encoding=encoding), config["data"]["input_shape"]
    if list(dataset.input_shape) != wanted:
        raise UnalikeError(f"{data} has samples of shape {list(dataset.input_shape)}, the model takes {wanted}")
    return dataset


def source_of(folder: Path, config: dict[str, Any], data_dir: Path | None) -> dict[str, Any]:
    """A run's data set, the folder to look in and what the server kept, as its command said: the arguments of `dataset`.

    Without a command the data set goes by the name that the run knows it by.
    """
    import json
    import tomllib

    try:
        flags = tomllib.loads(json.loads((folder / "comparison.json").read_text())["config"])
    except (OSError, ValueError, KeyError):
        flags = {}
    kept = flags.get("data_dir")
    return {
        "data": flags.get("data", config["data"]["name"]),
        "data_dir": data_dir or (Path(kept) if kept else None),
        **{name: flags.get(name) for name in ("proxy", "test")},
        "protocol": config["protocol"] if flags else (),
    }
