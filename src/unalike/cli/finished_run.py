"""Read a finished run: its model, its configuration and its data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError, warn
from unalike.cli.config_file import kept_flags
from unalike.cli.data_flags import DataFlags
from unalike.core.options import ServerSampleOptions, TableOptions, options_of

if TYPE_CHECKING:
    from torch import Tensor

    from unalike.core.model import Model
    from unalike.data.dataset import Dataset
    from unalike.data.population import Population
    from unalike.data.table_encoding import Encoding
    from unalike.metrics.scoring import Predict
    from unalike.runtime.results.prediction import NewSamples


def run_folders(folder: Path) -> list[Path]:
    """The folders of a federation's finished runs in their order, or of its first run where none has; other folders themselves."""
    from unalike.comparison.comparison_json import FILE
    from unalike.runtime.records.run_directory import RunDirectory

    if not (folder / "federation.toml").exists():
        return [folder]
    runs = [folder / "run", *folder.glob("runs/*")]
    finished = [run for run in runs if (run / FILE).exists()]
    return sorted(finished, key=lambda run: RunDirectory(run).events[0]["time"]) or runs[:1]


def model_folder(folder: Path) -> Path:
    """The folder of a run's model: the one of `run_folders`, or for the folder of a site that of the model that it keeps.

    Raises `UnalikeError` for a federation with several finished runs.
    """
    from unalike.federation.site.site_folder import kept_model

    run, *others = run_folders(folder)
    if others:
        runs = "\n".join(f"  {path}" for path in (run, *others))
        raise UnalikeError(
            f"{folder} holds {1 + len(others)} finished runs; name the folder of one:\n{runs}"
        )
    return run if (run / "config.toml").exists() else kept_model(folder) or run


def load_model(folder: Path, client: str | None = None) -> tuple[Predict, dict[str, Any]]:
    """The shared model of a run, or the model of a client, as a function from samples to logits, and the run's configuration.

    Raises `UnalikeError` for a folder without a finished run, and for a model that only a program can build.
    """
    from unalike.data.transforms import transform
    from unalike.runtime.results.finished_run import open_run

    if client is None:
        predict, config = _shared_model(folder)
    else:
        run = open_run(folder)
        predict, config = run.predictor(client_index(run.run_config.population, client)), run.config
    text = config.get("transform")
    return (predict if text is None else transform(text).fixed.before(predict)), config


def client_index(population: Population, client: str) -> int:
    """The number of a client given by name, or by number if no client has this name. Raises `UnalikeError` for others."""
    is_number = client.isdigit() and client not in population.names
    return population.index(int(client) if is_number else client)


def note_shared_model(config: dict[str, Any], client: str | None) -> None:
    """Warn that the shared model was used if clients have models of their own, as far as the method is known here."""
    from unalike.methods.plan import method_of, plan
    from unalike.runtime.results.prediction import shared_model_note

    if client is not None or "site" in config:
        return
    with suppress(UnalikeError):
        if method_of(plan(config["method"])).personalizer is not None:
            warn(shared_model_note(config))


def _shared_model(folder: Path) -> tuple[Predict, dict[str, Any]]:
    from unalike._utils.tensor_files import read_tensors
    from unalike.core.model import Model
    from unalike.metrics.scoring import SharedModel
    from unalike.models.registry import is_named, model
    from unalike.runtime.records.run_directory import RunDirectory

    directory = RunDirectory(folder)
    config, weights = directory.config, folder / "model.safetensors"
    begun = (folder / "checkpoints").exists() and not weights.exists() and not directory.finished
    if config is not None and begun and not directory.diverged:
        done = f"{directory.round} of {config['rounds']} rounds are done"
        raise UnalikeError(
            f"the run in {folder} is unfinished, {done}; the command that began it continues it"
        )
    if config is None or not weights.exists():
        raise UnalikeError(
            f"{folder} holds no finished run with a shared model; "
            + (
                "it holds one for each group of clients: name a client with --client to use its model"
                if any(folder.glob("model-*.safetensors"))
                else "give a folder that `unalike run --out` wrote"
            )
        )
    name, data = config["model"]["name"], config["data"]
    if not is_named(name):
        raise UnalikeError(f"the run's model {name!r} came from a program; load {weights} there")
    made = Model(model(name, tuple(data["input_shape"]), data.get("outputs")))
    tensors, _ = read_tensors(weights)
    if set(tensors) != set(made.state_dict(made.params | made.buffers)):
        raise UnalikeError(
            f"{weights} does not fit the model {name!r}: either {config['method']} changes the model (load it in Python with "
            "ua.run(..., out=folder).module()), or the folder was modified"
        )
    if "site" not in config:  # the model that a site keeps is its own
        _check_shared(folder, config, made)
    return SharedModel(
        made, {n: tensors[n] for n in made.params}, {n: tensors[n] for n in made.buffers}
    ), config


def _check_shared(folder: Path, config: dict[str, Any], model: Model) -> None:
    """Raise `UnalikeError` if the clients of a run have no shared model that can be evaluated without them."""
    from unalike.methods.plan import method_of, plan
    from unalike.methods.plans.pooled_training import Centralised

    private, ran = "", None
    with suppress(UnalikeError):  # the method may consist of parts that only a program knows
        ran = plan(config["method"])
        if not method_of(ran).has_shared_model(model):
            private = "parameters that they train and never send"
    if (
        config.get("buffers") == "local" and model.buffers and not isinstance(ran, Centralised)
    ):  # it has one client
        private = "batch-norm statistics of their own (buffers='local')"
    if private:
        raise UnalikeError(
            f"the clients of {folder} have {private}, so there is no shared model; their scores are in `unalike report {folder}`"
            + ("" if "federation" in config else "; name a client with --client to use its model")
        )


def fitting(
    data: str,
    data_dir: Path | None,
    folder: Path,
    config: dict[str, Any],
    columns: dict[str, Any] | None = None,
) -> Dataset:
    """Load a data set for the model of a run. A table is encoded as in the run, and has the same target unless `columns` names one.

    Raises `UnalikeError` for samples of another shape, and for a table if the run has no encoding.
    """
    from unalike.data.sources.load import load, table_at

    encoding = encoding_of(folder, config)
    options = {"regression": config["data"]["task"] == "regression", "labelled": True}
    known = {} if table_at(data, data_dir) is None else options
    dataset = load(data, data_dir, encoding=encoding, **known | (columns or {}))
    if encoding is None and dataset.encoding is not None:
        why = "its data is no table; if it is one, run the command of the run again (nothing is trained), else"
        if "federation" in config:
            why = "the federation has no agreed encoding of tables, or the folder was moved elsewhere;"
        raise UnalikeError(
            f"{data} is a table, and {folder} does not say how to read one: {why} give a file of numbers (.npz)"
        )
    if list(dataset.input_shape) != (wanted := config["data"]["input_shape"]):
        raise UnalikeError(
            f"{data} has samples of shape {list(dataset.input_shape)}, the model takes {wanted}"
        )
    return dataset


def note_own_data(data: str, folder: Path, config: dict[str, Any]) -> None:
    """Warn of scores on the data of the run itself, whose samples are for the most part training samples."""
    from unalike.federation.site.site_folder import joined_with

    own = joined_with(folder) if "site" in config else _kept_flags(folder).get("data")
    if own is not None and (data == own or Path(data).resolve() == Path(own).resolve()):
        warn(
            f"{data} is the data of the run, and trained the model for the most part: these scores are too good"
            + (
                ""
                if "site" in config
                else "; without --data, the test samples of the clients are scored"
            ),
        )


def samples(
    data: str,
    data_dir: Path | None,
    folder: Path,
    config: dict[str, Any],
    keep: Sequence[str],
    columns: dict[str, Any],
) -> NewSamples:
    """The samples of a data set without labels. The rows of a table keep the order of the file; it needs no target column.

    `columns`: the `DelimitedOptions` of a table, and its columns of `date`.

    Raises `UnalikeError` as `fitting` and `new_samples` do.
    """
    from unalike.runtime.results.prediction import new_samples

    encoding, shape = encoding_of(folder, config), config["data"]["input_shape"]
    known = data if encoding is not None else fitting(data, data_dir, folder, config)
    return new_samples(known, encoding, shape, keep, data_dir, **columns)


def labels(found: Dataset, folder: Path, config: dict[str, Any]) -> Tensor:
    """The labels of all samples in the run's encoding: classes are identified by name, numbers by value.

    Raises `UnalikeError` for labels that the run does not have.
    """
    data = config["data"]
    return found.labelled(
        found.merged()[1], data["task"], data.get("classes"), f"the run in {folder}"
    )


def encoding_of(folder: Path, config: dict[str, Any]) -> Encoding | None:
    """The table encoding of the run, or of its federation."""
    from unalike.data.table_encoding import Encoding

    encoding, terms = (
        Encoding.load(folder / "encoding.json"),
        folder.resolve().parent / "federation.toml",
    )
    if encoding is None and "federation" in config and terms.exists():
        from unalike.federation.protocol.federation_file import Federation

        return Federation.load(terms).data.encoding
    return encoding


def _kept_flags(folder: Path) -> dict[str, Any]:
    """The flags of the command that made a run, or the comparison of which it is a cell; empty if a program made it."""
    place = folder.resolve()
    return kept_flags(place.parents[1] if place.parent.name == "cells" else place)


def own_data(folder: Path, config: dict[str, Any], data_dir: Path | None) -> Dataset:
    """The data set of a run's clients. Raises `UnalikeError` if the clients came from a program and the data has no known name."""
    flags = _kept_flags(folder)
    stored_folder = flags.get("data_dir")
    options = {
        name: flags[name]
        for name in ("limit", *options_of(TableOptions, ServerSampleOptions))
        if name in flags
    }
    folder_of_data = data_dir or (Path(stored_folder) if stored_folder else None)
    source = DataFlags(
        data=flags.get("data", config["data"]["name"]), data_dir=folder_of_data, **options
    )
    try:
        return source.load(config["protocol"] if flags else ()).dataset
    except UnalikeError as error:
        if flags:  # the data came from a command, so the error is the user's
            raise
        raise UnalikeError(
            f"{folder} does not say where its data came from: its clients came from a program, with data {source.data!r}; their "
            f"scores are in `unalike report {folder}`; use --data to evaluate other samples"
        ) from error
