"""A run with its result, as `ua.run` returns it, and as `open_run` reads it from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from unalike._utils.errors import UnalikeError, refuse_empty_path, warn
from unalike._utils.notebook import paragraph, table
from unalike._utils.registry import figures
from unalike.core import tree
from unalike.core.inputs import layout_of, zeros_of
from unalike.core.model import Model
from unalike.core.tasks.registry import find_task
from unalike.core.types import Tree
from unalike.core.work import Work
from unalike.data.partition_plan import PartitionPlan
from unalike.data.partitioning.origin_schemes import SITE, client_noun
from unalike.data.population import Population
from unalike.data.ragged import NumberedNames, Ragged
from unalike.data.table_encoding import Encoding
from unalike.methods.plan import (
    Answers,
    QueryStep,
    StageResults,
    complete_spec,
    next_step,
    plan,
    steps_of,
)
from unalike.metrics import failures
from unalike.metrics.named_metrics import probabilities
from unalike.models.registry import is_named
from unalike.runtime.records.history import History
from unalike.runtime.records.recording import Recording, RoundRecords
from unalike.runtime.records.run_directory import Config, RunDirectory
from unalike.runtime.results.best_round import BestRound
from unalike.runtime.results.coefficients import coefficient_table
from unalike.runtime.results.exported_model import export_model
from unalike.runtime.results.prediction import new_samples, shared_model_note
from unalike.runtime.setup.client_networks import (
    ModelOrNetworks,
    given_networks,
    models_by_name,
)
from unalike.runtime.setup.given_model import make_model
from unalike.runtime.setup.run_config import RunConfig
from unalike.runtime.setup.run_options import RunOptions
from unalike.runtime.stages.backend import StageBackend
from unalike.runtime.stages.evaluation import Evaluator
from unalike.runtime.stages.local_backend import LocalStage
from unalike.runtime.stages.model_group import ModelGroup

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from unalike.metrics.scoring import Predict


class Run:
    """A finished run.

    `history.rounds` and `history.clients` are its tables, `notes` the warnings, `ended` the reason for its end, `answers` the
    clients' answers to the queries of a plan by the name of the step (a run that was opened from its folder has none). With
    `select="best"` the models are those of the round that `selected` names.
    """

    def __init__(
        self,
        run_config: RunConfig,
        clients: StageBackend,
        history: History,
        notes: Sequence[str],
        out: Path | None,
        ended: str,
        opened: Config | None = None,
        records: RoundRecords | None = None,
        answers: Mapping[str, Answers] = MappingProxyType({}),
    ):
        self.method = complete_spec(run_config.plan)
        self.history = history
        self.config = run_config.description if opened is None else opened
        classes = run_config.population.classes
        count = None if classes is None else len(classes)
        self.notes = (*notes, *failures.of_run(history.rows, history.columns, count))
        self.warnings = tuple(note for note in notes if note != run_config.sanity)
        """The notes that do not judge the scores: a report does that itself."""
        self.out = out
        self.ended = ended
        self.run_config = run_config
        self._runner = clients
        self._records = records
        self.answers = answers
        self._has_samples = opened is None

    @property
    def records(self) -> pd.DataFrame:
        """The entries that `record=` asked for: `round group part quantity layer client other value`.

        `client` is -1 for the server, `other` the second client of a cosine (docs/how_to/recording.md). Raises `UnalikeError` if
        nothing was recorded.
        """
        if self._records is None:
            raise UnalikeError(
                "this run recorded nothing; ask for it, as in ua.run(..., record='server + updates')"
            )
        return self._records.table

    @property
    def client_parameters(self) -> dict[int, dict[int, Tree]]:
        """Round -> client -> parameters after local training, as `record="clients(layers='head', every=10)"` asked for."""
        return {} if self._records is None else self._records.read_parameters()

    @property
    def executor(self) -> str:
        """The executor that ran, and why it was chosen."""
        return self._runner.executor

    @property
    def client_noun(self) -> str:
        """The word for a client: `site` in a federation, the column of the owners where one divides the data, else `client`."""
        if "federation" in self.config:
            return SITE
        return client_noun(str(self.config["data"].get("partition", "")))

    @property
    def selected(self) -> int | None:
        """The round selected by validation samples, which the models come from; None if nothing was selected."""
        return self.history.final

    @property
    def model(self) -> Model:
        """The model of the last stage: the one given, or what the plan made of it."""
        first, *_ = self._runner.state.groups.values()
        return first.model

    @property
    def params(self) -> Tree:
        """The shared model of the last stage, parameters and buffers in state-dict order.

        Raises `UnalikeError` where its groups have one each: use `personal(k)`.
        """
        return self._group().state_dict

    def module(self) -> nn.Module:
        """A module of the last stage's architecture with the shared model's values."""
        group = self._group()
        return group.model.module(group.state.params, group.state.buffers)

    def personal(self, client: int | str) -> Tree:
        """The model that a client (number or name) evaluates with: its own, or the shared one.

        Raises `UnalikeError` where it is at a site of a federation, or made of samples that a folder does not hold.
        """
        return self._with_models_of_clients().personal(self.run_config.population.index(client))

    @property
    def has_models_of_clients(self) -> bool:
        """Whether clients evaluate with models that differ between them."""
        state = self._runner.state
        return state.is_personal or bool(state.why_no_single_model)

    def predictor(self, client: int | str | None = None) -> Predict:
        """The predictions of the model that a client (number or name) evaluates with: samples [B, ...] -> logits [B, C].

        None: those of the shared model, the only one for a client that never trained, as of one without training samples. Raises
        `UnalikeError` where no one model predicts for all clients, and else as `personal` does.
        """
        population = self.run_config.population
        if client is None or not population.sizes[population.index(client)]:
            state = self._runner.state
            if state.why_no_single_model:
                raise UnalikeError(
                    f"the run of {self.run_config.method_text} {state.why_no_single_model}; so it has no model "
                    "for a client that never trained: to "
                    "predict with the model of one that did, name it with --client NAME or in Python client='NAME'"
                )
            if client is not None and state.is_personal:
                name = population.names[population.index(client)]
                warn(f"{name} never trained and has no model of its own: this is the shared model")
            return self._group().server_model
        runner = self._with_models_of_clients()
        if not self._has_samples and runner.state.is_conditioned:
            raise UnalikeError(self._needs_samples("is fed facts of a client's samples"))
        [(_, predict)] = runner.personal_models([population.index(client)])
        return predict

    def predict(
        self,
        data: Any,
        *,
        client: int | str | None = None,
        keep: str | Sequence[str] = (),
        data_dir: str | Path | None = None,
    ) -> pd.DataFrame | np.ndarray:
        """Predict new samples with the shared model, or with the model of one client.

        Where clients have models of their own, a warning says that the shared model was used. Other warnings name categories, and
        missing numbers, that no training row had.

        Args:
            data: a table (DataFrame, or file such as "new.csv") with the columns of the run's table, which needs no target; or the
                name or file of other data, a `Dataset`, or an array of samples [n, ...].
            client: the client, by name or number, whose model predicts; None: the shared model, as for a client that never trained.
            keep: columns of the table that go along, such as an id.
            data_dir: the folder of data files; $UNALIKE_DATA by default.

        Returns:
            A row per sample, in the order of the data and with the index of a DataFrame: the kept columns; `prediction`, a class or
            for regression a number in the unit of the target; and for classes the probability of each, `probability_CLASS`. Of
            masks, texts and reconstructions, which are no cells of a table, an array [n, ...].

        Raises:
            UnalikeError: columns are missing, samples have another shape, or there is no such model; then the message says why, as
                where a method keeps a part of the model on the clients, and none is left for one that never trained.
        """
        state = self._runner.state
        predict = self._prepared(client)
        population = state.population
        samples = new_samples(data, population.encoding, layout_of(population.x), keep, data_dir)
        if client is None and state.is_personal:
            warn(shared_model_note(self.config))
        return samples.to(population.y.device).predictions(
            predict, population.task, population.classes
        )

    def coefficients(self) -> pd.DataFrame:
        """The coefficients of a linear, logistic, Poisson or Cox model that `newton` fitted, in the units of the table's columns.

        The fit is that of all clients' training samples together (docs/how_to/coefficients.md). Warnings name coefficients that are
        not finite or not determined, which are NaN.

        Returns:
            A row per term: `outcome` (the class, compared with the first one, or the target), `term`, `coefficient`;
            `se z p low high` of the model, with 95 % intervals, by t tests for a regression; `robust_se robust_p robust_low
            robust_high` by the sandwich of the clients, by t tests with clients - 1 degrees of freedom; and for classes
            `odds_ratio odds_low odds_high`, for counts `rate_ratio ...`, for times to an event `hazard_ratio ...`. Categories are
            compared with the one that is marked as the reference.

        Raises:
            UnalikeError: the run is of another method, has a model with further layers or an earlier round's (`select="best"`),
                or nothing has converged.
        """
        if self.selected is not None:
            raise UnalikeError(
                f"the model is that of round {self.selected}, which select='best' chose, and coefficients are those of a fit "
                "that has converged; leave select out"
            )
        return coefficient_table(self._group(), self.run_config.population, self.client_noun)

    def export(self, folder: str | Path, *, client: int | str | None = None) -> Path:
        """Write the shared model, or that of a client, as a folder that predicts without this library.

        It holds `model.pt2` of torch.export, `model.json` (columns, categories, scaling, classes and the run), and `predict.py`, an
        example that reads a table and needs torch alone.

        Args:
            folder: the folder; files of an earlier export are replaced.
            client: the client, by name or number; None: the shared model.

        Returns:
            The folder.

        Raises:
            UnalikeError: torch.export cannot follow the model, or there is no such model, as for `predict`.
        """
        refuse_empty_path("the folder", folder)
        return export_model(
            folder,
            self._prepared(client),
            config=self.config,
            encoding=self.run_config.population.encoding,
            client=client,
        )

    def _prepared(self, client: int | str | None) -> Predict:
        """The predictions of a client's model, or the shared one, of samples as they are before the transforms."""
        predict = self.predictor(client)
        chain = self.run_config.options.chain
        return predict if chain is None else chain.fixed.before(predict)

    def _with_models_of_clients(self) -> LocalStage:
        """The runner, if it has the clients' models here."""
        if "federation" in self.config or not isinstance(self._runner, LocalStage):
            raise UnalikeError(
                "a client's own model is stored at its site only; there, `unalike evaluate SITE_FOLDER --data FILE` takes it"
            )
        if not self._has_samples and self._runner.state.method.finetuning_phase is not None:
            raise UnalikeError(self._needs_samples("makes a client's model of its samples"))
        return self._runner

    def _needs_samples(self, why: str) -> str:
        return (
            f"{self.method} {why}, which {self.out} does not hold; call ua.run with the arguments of the run and out=, which "
            "trains nothing again"
        )

    def confusion(self) -> pd.DataFrame:
        """Test samples by class (rows) and predicted class (columns), of the models that clients use.

        Raises `UnalikeError` for regression, and where the run does not hold the samples, as one that was read from a folder.
        """
        counts = self._evaluator.confusion(self._with_samples())
        if counts is None:
            raise UnalikeError(
                "found no test sample with a class, so there is no confusion to count"
            )
        import pandas as pd

        classes = self.run_config.population.classes
        return pd.DataFrame(counts, index=classes, columns=classes)

    def resampled(self, protocols: Sequence[str]) -> pd.DataFrame:
        """The headline metric under each protocol on test samples drawn with replacement in each client: a row for each draw.

        Raises `UnalikeError` where the run does not hold the samples.
        """
        import pandas as pd

        runner = self._with_samples()
        found = {}
        for column in self.run_config.columns.scores:
            if column.protocol not in protocols:
                continue
            draws = self._evaluator.resampled(runner, column.protocol)
            if draws is not None:
                found[column.name] = [metrics[column.metric.name] for metrics in draws]
        return pd.DataFrame(found).rename_axis("draw").reset_index()

    @cached_property
    def risks(self) -> pd.DataFrame | None:
        """The test samples of a two-class task, `client outcome risk`, as the last models in use see them.

        The risk is the probability of the second class. None for other tasks and for very many samples. Raises `UnalikeError`
        where the run does not hold the samples.
        """
        import pandas as pd

        scores = self._evaluator.risks(self._with_samples())
        if scores is None:
            return None
        names = self.run_config.population.names
        risk = probabilities(scores.logits)[:, 1].astype("float32")
        owners = [names[int(k)] for k in scores.client]
        return pd.DataFrame({"client": owners, "outcome": scores.y.astype("int8"), "risk": risk})

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.run_config)

    def _with_samples(self) -> LocalStage:
        """The runner, if the clients' samples are here: those of a federation are elsewhere, and a folder holds none."""
        if not self._has_samples or not isinstance(self._runner, LocalStage):
            raise UnalikeError(
                "the samples of this run are not here; call ua.run with its arguments and out="
            )
        return self._runner

    def plot(self, metric: str | None = None) -> go.Figure:
        """The curves of a metric over the rounds; see `History.plot`."""
        return figures["history"](self.history, metric, self.run_config.method_text)

    def __repr__(self) -> str:
        rounds = self.history.last["round"]
        clients = len(self.run_config.population)
        size = f"{clients} clients, {rounds} round{'s' * (rounds != 1)}"
        score = f", {self.history.headline}" if self.history.headline else ""
        return f"<Run of {self.run_config.method_text} on {size}{score}>"

    def _repr_html_(self) -> str:
        facts = {
            "method": self.run_config.method_text,
            "model": self.run_config.model_name,
            "clients": len(self.run_config.population),
            "rounds": self.history.last["round"],
            "score": self.history.headline,
            "ended": self.ended,
            "folder": self.out or "",
        }
        rows = [[name, value] for name, value in facts.items() if value != ""]
        notes = "".join(map(paragraph, self.notes))
        return table(["run", ""], rows) + self.history.sparkline() + notes

    def _group(self) -> ModelGroup:
        groups = self._runner.state.groups
        if len(groups) > 1:
            raise UnalikeError(
                f"{self.method} ends with {len(groups)} models, one per group; use run.personal(client)"
            )
        return next(iter(groups.values()))


def open_run(folder: str | Path, *, model: ModelOrNetworks | None = None) -> Run:
    """Read a run again from its folder: its history, its model and the clients' models. Nothing is trained or written.

    Args:
        folder: the folder of `ua.run(..., out=folder)`, of `unalike run --out`, of one cell of a comparison, or the folder `run`
            of a federation.
        model: the module of the run, or a function that makes one, if the run was not given a model's name. Its values do not
            matter.

    Returns:
        The run as it ended; one that has not ended stands at its last checkpoint.

    Raises:
        UnalikeError: the folder holds no run with a checkpoint, or the model or the method came from a program and is not known
            here.

    Examples:
        >>> run = ua.open_run("runs/prox")  # doctest: +SKIP
        >>> run.module(), run.personal(3), run.history.rounds  # doctest: +SKIP
    """
    directory = RunDirectory(folder)
    config = directory.config
    is_comparison = (directory.path / "cells").exists()
    saved = None
    if config is not None and not is_comparison:
        saved = directory.load_checkpoint()
    if config is None or saved is None:
        advice = "; a comparison is opened with ua.open_comparison" if is_comparison else ""
        raise UnalikeError(
            f"{folder} holds no run with a checkpoint; give the folder of ua.run(..., out=...) or `unalike run --out`{advice}"
        )
    # The plan is followed with the stored results, so that its last stage is made as the run made it.
    tensors, facts = saved
    history = History.load(directory.path, facts["round"])
    run_config = _run_config(directory, config, history, model)
    clients = _last_stage(run_config, directory, tensors, facts["stages"])
    best = BestRound.saved(tensors, facts)
    if best is not None:
        best.restore(clients, history)
    records = None
    if "recorded" in facts:
        records = RoundRecords(Recording(), directory.path)
        records.load(facts["recorded"])
    finished = [event for event in directory.events if event["event"] == "finished"]
    ended = str(finished[-1].get("why", "")) if finished else ""
    return Run(
        run_config,
        clients,
        history,
        directory.notes,
        directory.path,
        ended or "not finished",
        config,
        records,
    )


def _run_config(
    directory: RunDirectory, config: Config, history: History, model: ModelOrNetworks | None
) -> RunConfig:
    """The run config of a folder, with placeholders for the samples, which the folder does not hold."""
    stored = {f.name: config[f.name] for f in fields(RunOptions) if f.name in config}
    options = RunOptions(**stored | {"protocol": tuple(config["protocol"]), "device": "cpu"})
    population = _placeholders(directory, config["data"], history)
    name = config["model"]["name"]
    given = name if model is None else model
    networks = given_networks(given)
    made_models = {}
    for network, one in models_by_name(given).items():
        if model is None and not is_named(str(one)):
            raise UnalikeError(
                f"cannot build the model of {directory.path}: {one} is the class or function of a program; give it: "
                "ua.open_run(folder, model=...)"
            )
        made, _ = make_model(one, population, config["seed"])
        made_models[network] = made.at(options.precision)
    first, *_ = made_models.values()
    groups = {network: tuple(ids) for network, ids in config["model"].get("clients", {}).items()}
    # where the run had samples at the server, parts ask for some: a placeholder
    proxy = (population.x, population.y) if "proxy" in config["data"] else None
    return RunConfig(
        plan=plan(config["method"]),
        population=population,
        model=first,
        # TOML leaves out None, which stands for a full batch
        work=Work(**{"batch_size": None} | config["work"]),
        options=options,
        model_name=name,
        model_text=name,
        proxy=proxy,
        method_text=directory.method_text,
        groups=None if networks is None else groups,
        models=None if networks is None else made_models,
    )


def _placeholders(directory: RunDirectory, data: Config, history: History) -> Population:
    """The clients of a run with their numbers of samples; all indices refer to one sample of zeros."""
    count = int(data["clients"])
    # Clients without a row, as in a run that never evaluated them, count as having samples.
    train_sizes = np.ones(count, np.int64)
    test_sizes = np.ones(count, np.int64)
    for row in history.client_rows:
        client = int(row["client"])
        train_sizes[client] = row["n_train"]
        test_sizes[client] = row["n_test"]
    task = find_task(data["task"])
    names: Sequence[str] = directory.names or NumberedNames(count)
    clusters = None
    plan_file = directory.path / "plan.json"
    if plan_file.exists():
        partition = PartitionPlan.load(plan_file)
        names = directory.names or partition.names
        clusters = partition.clusters
    return Population(
        x=zeros_of(data["input_shape"], 1),
        y=torch.zeros(1, *data.get("label_shape", ()), dtype=task.label_type),
        train=Ragged.zeros(train_sizes),
        test=Ragged.zeros(test_sizes),
        val=Ragged.empty(count),
        names=names,
        classes=data.get("classes"),
        task=task,
        clusters=clusters,
        encoding=Encoding.load(directory.path / "encoding.json"),
    )


def _last_stage(
    run_config: RunConfig,
    directory: RunDirectory,
    tensors: Tree,
    stages: list[list[dict[str, Any]]],
) -> LocalStage:
    """The clients of the last stage in a checkpoint: the plan is followed with the results that the checkpoint holds."""
    steps = steps_of(run_config.plan, run_config.plan_inputs)
    step = next(steps, None)
    for index, groups in enumerate(stages):
        found = tree.under(tensors, f"{index}/")
        assert step is not None
        if isinstance(step, QueryStep):
            step = next_step(steps, Answers(tuple(groups[0]["clients"]), found))
            continue
        clients = LocalStage(run_config, step, index, directory.client_states)
        clients.load_state_dict(found, groups)
        _check_shapes(clients, directory.path)
        if index + 1 < len(stages):
            step = next_step(steps, StageResults(clients.state.states, clients.state.done))
    return clients


def _check_shapes(clients: LocalStage, folder: Path) -> None:
    """Raise `UnalikeError` if the model that was built or given is not that of the checkpoint."""
    for group in clients.state.groups.values():
        initial = group.model.params | group.model.buffers
        for name, values in (group.state.params | group.state.buffers).items():
            wanted = initial[name].shape
            if values.shape != wanted:
                raise UnalikeError(
                    f"{folder} holds a model whose {name} has the shape {list(values.shape)}, and the model here has "
                    f"{list(wanted)}; give the model of the run: ua.open_run(folder, model=...)"
                )
