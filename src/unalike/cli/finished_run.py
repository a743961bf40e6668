"""Read a finished run: its model, its configuration and its data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unalike._utils.errors import UnalikeError, warn
from unalike.cli.config_file import kept_flags
from unalike.cli.data_flags import DataFlags
from unalike.core.option import options_of
from unalike.core.options import ServerSampleOptions, TableOptions

if TYPE_CHECKING:
    from torch import Tensor

    from unalike.core.model import Model
    from unalike.core.tasks.task import Task
    from unalike.data.dataset import Dataset
    from unalike.data.partition_plan import PartitionPlan
    from unalike.data.population import Population
    from unalike.data.table_encoding import Encoding
    from unalike.metrics.metrics import RunMetrics
    from unalike.metrics.scoring import Predict
    from unalike.runtime.results.prediction import NewSamples
    from unalike.statistics.recalibration import Recalibration
    from unalike.statistics.risks import Risks


def run_folders(folder: Path) -> list[Path]:
    """The folders of a federation's finished runs in their order, or of its first run where none has; other folders themselves."""
    from unalike.comparison.comparison_json import COMPARISON_FILE
    from unalike.runtime.records.run_directory import RunDirectory

    if not (folder / "federation.toml").exists():
        return [folder]

    def begin(run: Path) -> Any:
        return RunDirectory(run).events[0]["time"]

    runs = [folder / "run", *folder.glob("runs/*")]
    finished = [run for run in runs if (run / COMPARISON_FILE).exists()]
    return sorted(finished, key=begin) or runs[:1]


def model_folder(folder: Path) -> Path:
    """The folder of a run's model: the one of `run_folders`, or for the folder of a site that of the model that it keeps.

    Raises `UnalikeError` for a federation with several finished runs, and for an exported model.
    """
    from unalike.federation.site.site_folder import kept_model

    run, *others = run_folders(folder)
    if others:
        runs = "\n".join(f"  {path}" for path in (run, *others))
        raise UnalikeError(
            f"{folder} holds {1 + len(others)} finished runs; name the folder of one:\n{runs}"
        )
    if (run / "config.toml").exists():
        return run
    kept = kept_model(folder)
    if kept is None:
        _check_not_exported(run)
    return kept or run


def _check_not_exported(folder: Path) -> None:
    """Raise `UnalikeError` for the folder of `unalike export`, which needs no command of this program."""
    from unalike.runtime.results.exported_model import MODEL_FILE, SCRIPT_FILE

    script = folder / SCRIPT_FILE
    if (folder / MODEL_FILE).exists() and script.exists():
        raise UnalikeError(
            f"{folder} is an exported model, which predicts by its own script: `python {script} FILE`; this command takes the "
            "folder of the run that it was exported from"
        )


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
    # of the transform of training batches, what is no augmentation belongs to the model
    text = config.get("transform")
    if text is not None:
        predict = transform(text).fixed.before(predict)
    return predict, config


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
    from unalike.models.registry import is_named, model_for
    from unalike.runtime.records.run_directory import RunDirectory

    # a finished run, or the reason why it is none
    directory = RunDirectory(folder)
    config = directory.config
    weights = folder / "model.safetensors"
    has_begun = (folder / "checkpoints").exists()
    is_open = has_begun and not weights.exists() and not directory.finished
    if config is not None and is_open and not directory.diverged:
        done = f"{directory.round} of {config['rounds']} rounds are done"
        raise UnalikeError(
            f"the run in {folder} is unfinished, {done}; the command that began it continues it"
        )
    if config is None or not weights.exists():
        remedy = "give a folder that `unalike run --out` wrote"
        if any(folder.glob("model-*.safetensors")):
            remedy = "it holds one for each group of clients: name a client with --client to use its model"
        raise UnalikeError(f"{folder} holds no finished run with a shared model; {remedy}")

    # the model by its name, with the weights of the run
    name = config["model"]["name"]
    data = config["data"]
    if not is_named(name):
        raise UnalikeError(f"the run's model {name!r} came from a program; load {weights} there")
    built = Model(model_for(name, data["input_shape"], data.get("outputs")))
    tensors, _ = read_tensors(weights)
    if set(tensors) != set(built.state_dict(built.params | built.buffers)):
        raise UnalikeError(
            f"{weights} does not fit the model {name!r}: either {config['method']} changes the model (load it in Python with "
            "ua.run(..., out=folder).module()), or the folder was modified"
        )
    # the model that a site keeps is its own
    if "site" not in config:
        _check_shared(folder, config, built)
    params = {name: tensors[name] for name in built.params}
    buffers = {name: tensors[name] for name in built.buffers}
    return SharedModel(built, params, buffers), config


def _check_shared(folder: Path, config: dict[str, Any], model: Model) -> None:
    """Raise `UnalikeError` if the clients of a run have no shared model that can be evaluated without them."""
    from unalike.methods.plan import method_of, plan
    from unalike.methods.plans.pooled_training import Centralised

    kept_by_clients = ""
    plan_of_run = None
    # the method may consist of parts that only a program knows
    with suppress(UnalikeError):
        plan_of_run = plan(config["method"])
        if not method_of(plan_of_run).has_shared_model(model):
            kept_by_clients = "parameters that they train and never send"
    # training on pooled data has one client
    has_local_buffers = config.get("buffers") == "local" and model.buffers
    if has_local_buffers and not isinstance(plan_of_run, Centralised):
        kept_by_clients = "batch-norm statistics of their own (buffers='local')"
    if kept_by_clients:
        remedy = "" if "federation" in config else "; name a client with --client to use its model"
        raise UnalikeError(
            f"the clients of {folder} have {kept_by_clients}, so there is no shared model; their scores are in "
            f"`unalike report {folder}`{remedy}"
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
    from unalike.core.inputs import layout_of
    from unalike.data.sources.load import load, table_at

    encoding = encoding_of(folder, config)
    options: dict[str, Any] = {}
    if table_at(data, data_dir) is not None:
        options = {"task": config["data"]["task"], "labelled": True, "scored": True}
    dataset = load(data, data_dir, encoding=encoding, **options | (columns or {}))
    if encoding is None and dataset.encoding is not None:
        why = "its data is no table; if it is one, run the command of the run again (nothing is trained), else"
        if "federation" in config:
            why = "the federation has no agreed encoding of tables, or the folder was moved elsewhere;"
        raise UnalikeError(
            f"{data} is a table, and {folder} does not say how to read one: {why} give a file of numbers (.npz)"
        )
    shape = layout_of(dataset.train[0])
    expected = config["data"]["input_shape"]
    if shape != expected:
        raise UnalikeError(f"{data} has samples of shape {shape}, the model takes {expected}")
    return dataset


def note_own_data(data: str, folder: Path, config: dict[str, Any]) -> None:
    """Warn of scores on the data of the run itself, whose samples are for the most part training samples."""
    from unalike.federation.site.site_folder import joined_with

    is_site = "site" in config
    data_of_run = joined_with(folder) if is_site else _kept_flags(folder).get("data")
    if data_of_run is None:
        return
    if data == data_of_run or Path(data).resolve() == Path(data_of_run).resolve():
        remedy = "" if is_site else "; without --data, the test samples of the clients are scored"
        warn(
            f"{data} is the data of the run, and trained the model for the most part: these scores are too good{remedy}"
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

    encoding = encoding_of(folder, config)
    # a table is read by the encoding, so that it needs no target
    source = data if encoding is not None else fitting(data, data_dir, folder, config)
    layout = config["data"]["input_shape"]
    return new_samples(source, encoding, layout, keep, data_dir, **columns)


def labels(dataset: Dataset, folder: Path, config: dict[str, Any]) -> Tensor:
    """The labels of all samples in the run's encoding: classes are identified by name, numbers by value.

    Raises `UnalikeError` for labels that the run does not have.
    """
    data = config["data"]
    _, y = dataset.merged()
    return dataset.labelled(y, data["task"], data.get("classes"), f"the run in {folder}")


def encoding_of(folder: Path, config: dict[str, Any]) -> Encoding | None:
    """The table encoding of the run, or of its federation."""
    from unalike.data.table_encoding import Encoding

    encoding = Encoding.load(folder / "encoding.json")
    terms = folder.resolve().parent / "federation.toml"
    if encoding is None and "federation" in config and terms.exists():
        from unalike.federation.protocol.federation_file import Federation

        return Federation.load(terms).data.encoding
    return encoding


def _kept_flags(folder: Path) -> dict[str, Any]:
    """The flags of the command that made a run, or the comparison of which it is a cell; empty if a program made it."""
    place = folder.resolve()
    is_cell = place.parent.name == "cells"
    return kept_flags(place.parents[1] if is_cell else place)


def source_of(folder: Path, config: dict[str, Any], data_dir: Path | None) -> DataFlags:
    """The data set of a run's clients, as the flags of its command name it; by its name if a program made the run."""
    flags = _kept_flags(folder)
    names = ("limit", *options_of(TableOptions, ServerSampleOptions))
    options = {name: flags[name] for name in names if name in flags}
    if data_dir is None and flags.get("data_dir"):
        data_dir = Path(flags["data_dir"])
    name = flags.get("data", config["data"]["name"])
    return DataFlags(data=name, data_dir=data_dir, **options)


def own_plan(folder: Path, remedy: str = "") -> PartitionPlan:
    """The partition plan of a run. Raises `UnalikeError`, which ends with the `remedy`, where it has none, as a federation's."""
    from unalike.data.partition_plan import PartitionPlan

    file = folder / "plan.json"
    if not file.exists():
        raise UnalikeError(
            f"{folder} has no partition plan, so the clients' samples are unknown{remedy}"
        )
    return PartitionPlan.load(file)


def own_clients(
    folder: Path,
    config: dict[str, Any],
    data_dir: Path | None,
    plan: PartitionPlan,
    **options: Any,
) -> tuple[Dataset, Population]:
    """The data set of a run, read with more `options`, and the clients that its plan makes. Raises as `own_data` does."""
    from unalike.data.partitioning.apply_plan import apply_plan

    dataset = own_data(folder, config, data_dir, **options)
    return dataset, apply_plan(plan, dataset)


def own_data(
    folder: Path, config: dict[str, Any], data_dir: Path | None, **options: Any
) -> Dataset:
    """The data set of a run's clients, read with more `options`.

    Raises `UnalikeError` if the clients came from a program and the data has no known name.
    """
    flags = _kept_flags(folder)
    source = source_of(folder, config, data_dir)
    try:
        return source.load(config["protocol"] if flags else (), **options).dataset
    except UnalikeError as error:
        # the data came from a command, so the error is the user's
        if flags:
            raise
        raise UnalikeError(
            f"{folder} does not say where its data came from: its clients came from a program, with data {source.data!r}; their "
            f"scores are in `unalike report {folder}`; use --data to evaluate other samples"
        ) from error


def metrics_of_run(
    flags: list[str], config: dict[str, Any], task: Task, classes: list[str] | None
) -> RunMetrics:
    """The metrics that flags name, else those of the run; a warning names those that only a program knows."""
    from unalike.metrics.named_metrics import read

    specs = flags or config.get("metric", ())
    chosen = read([specs] if isinstance(specs, str) else specs)
    metrics = {metric.name: metric.of(task, classes) for metric in chosen}
    if not flags:
        unknown = [name for name in config.get("metrics", ()) if name not in metrics]
        if unknown:
            warn(
                f"the metrics {', '.join(unknown)} of the run came from a program and are left out"
            )
    return metrics


def recalibration_of(
    risks: Risks, task: Task, config: dict[str, Any], client: str | None, data: str
) -> Recalibration:
    """The recalibration of a model on the risks that it gives a table. Raises `UnalikeError` as `Recalibration.fit` does."""
    from unalike.statistics.recalibration import Recalibration

    positive = _classes_of(config, task)[-1]
    return Recalibration.fit(risks, positive, data, _identity(config, client))


def recalibrated(
    predict: Predict,
    file: Path,
    task: Task,
    config: dict[str, Any],
    client: str | None,
    scored: str | None = None,
) -> Predict:
    """The predictions of a model after the recalibration in a file; a note says so if it was fitted on the data that is `scored`.

    Raises `UnalikeError` if the file is of another model or class, or the task has not two classes.
    """
    from unalike.core.tasks.task import TWO_CLASSES
    from unalike.statistics.recalibration import Recalibration

    if not task.offers(TWO_CLASSES):
        raise UnalikeError(
            f"found --recalibration for a task of {task.name} that has not two classes; leave it out"
        )
    found = Recalibration.load(file)
    found.check(_classes_of(config, task)[-1], _identity(config, client), file)
    if scored is not None and found.data == Path(scored).name:
        warn(
            f"{file} was fitted on {found.data}, so that its risks are right there by construction; evaluate them on other rows"
        )
    return found.after(predict, task)


def _classes_of(config: dict[str, Any], task: Task) -> list[str]:
    """The names of the classes of a run."""
    return config["data"].get("classes") or [*task.class_names]


def _identity(config: dict[str, Any], client: str | None) -> str:
    """The hash that tells the model of a run, or of one of its clients, from others."""
    from unalike.runtime.records.run_directory import digest

    return digest({"config": config, "client": client})
