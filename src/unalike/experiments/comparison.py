"""What comes out of a comparison: its tables, its summary and its report, in memory or in a folder."""

from __future__ import annotations

import io
import json
import platform
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import explain_errors
from unalike._utils.version import __version__
from unalike.runtime.history import History, Row, given, last_stage, selected
from unalike.runtime.run_directory import MAY_DIFFER, RunDirectory, plain

if TYPE_CHECKING:
    import pandas as pd

    from unalike.data.partitioning.partition_plan import PartitionPlan
    from unalike.reporting.content import ReportContent

ENTRIES = {
    "methods": {"label", "spec", "protocols"},
    "ends": {"method", "seed", "rounds", "why", "selected"},
    "wire": {"method", "direction", "what", "bytes"},
}
"""What each entry of a list of facts says at least."""
COLUMNS = {"rounds": {"round", "seconds", "bytes_down", "bytes_up"}, "clients": {"client", "n_train", "n_test"}}
"""What each table says at least."""
LAST = 10
"""Evaluated rounds that a run's result is the mean of."""


@dataclass(frozen=True)
class ComparisonFacts:
    """What a report says beside the tables: how the data differs, what crosses the wire, how to repeat the whole.

    `plain` is the protocol whose columns have no prefix; empty where the tables are to tell. `ends` says of each run how many
    rounds it did, why it ended and which round was selected (None: the last ones count). `estimate` sets what was estimated
    before beside what it took: a row per method, and one for the memory. `unfinished` says how far a run came that is not at its
    end; such a run is shown, but nothing is ever joined with it.
    """

    methods: list[dict[str, Any]]
    baseline: str
    config: str
    command: str
    partition: dict[str, Any] = field(default_factory=dict)
    label_counts: dict[str, dict[str, int]] | None = None
    wire: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    clients: list[str] = field(default_factory=list)
    plain: str = ""
    ends: list[dict[str, Any]] = field(default_factory=list)
    estimate: list[dict[str, Any]] = field(default_factory=list)
    unfinished: str = ""


@dataclass(frozen=True)
class Comparison:
    """The results of several methods over several seeds.

    `rounds` holds the history of every run with the columns method and seed in front, `clients` one row per method, seed and
    client with the mean over the last 10 evaluated rounds (the selected round alone where one was). `summary` has one row per
    method and protocol.
    """

    rounds: pd.DataFrame
    clients: pd.DataFrame
    facts: ComparisonFacts

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Means over the last 10 evaluated rounds (or of the selected one), spread over seeds, difference to the baseline."""
        from unalike.metrics.statistics import plain_protocol, summary

        own = in_given_order(self)
        plain = self.facts.plain or plain_protocol(own.rounds, own.clients)
        return summary(own.rounds, own.clients, self.facts.baseline, LAST, plain)

    @property
    def name(self) -> str:
        """The data and how it was divided, as they were written."""
        config = tomllib.loads(self.facts.config)
        given = (config.get(key) or self.facts.partition.get(key) for key in ("data", "partition"))
        return ", ".join(str(part) for part in given if part) or "your clients"

    def report(self, path: str | Path = "report.html", title: str | None = None) -> Path:
        """Write the report, one file that needs no network, and return its path."""
        from unalike.reporting.html import write

        return Path(write(self.content(title), Path(path)))

    def content(self, title: str | None = None, target: float | None = None) -> ReportContent:
        """What the report and its figures are made of."""
        import pandas as pd

        from unalike.reporting.content import MethodResult, ReportContent
        from unalike.reporting.wording import plural

        facts = self.facts
        counts = None if facts.label_counts is None else pd.DataFrame.from_dict(facts.label_counts, orient="index")
        return ReportContent(
            title=title or f"{plural(len(facts.methods), 'method')} on {facts.partition.get('data', 'your clients')}",
            methods=[MethodResult(m["label"], m["spec"], tuple(m["protocols"])) for m in facts.methods],
            baseline=facts.baseline,
            rounds=self.rounds,
            clients=self.clients,
            config=facts.config,
            command=facts.command,
            seed=facts.seed,
            label_counts=counts,
            partition=dict(facts.partition),
            versions=facts.versions,
            wire=pd.DataFrame(facts.wire) if facts.wire else None,
            warnings=facts.notes,
            target=target,
            protocol=facts.plain,
            ends=facts.ends,
            estimate=facts.estimate,
        )

    def save(self, folder: Path) -> None:
        """Write the tables and facts into a folder, from which `load` restores them."""
        for name, table in (("rounds", self.rounds), ("clients", self.clients)):
            buffer = io.BytesIO()
            table.to_parquet(buffer, index=False)
            write_bytes(folder / f"{name}.parquet", buffer.getvalue())
        write_bytes(folder / "comparison.json", json.dumps(asdict(self.facts), indent=1).encode())

    @classmethod
    def load(cls, folder: str | Path) -> Comparison:
        """Read a comparison or a run that was kept in a folder; of a run that is not at its end, the rounds that it has done.

        Raises `UnalikeError` where there is no finished comparison and no round of a run.
        """
        import pandas as pd

        folder = Path(folder)
        try:
            rounds, clients = (pd.read_parquet(folder / f"{name}.parquet") for name in COLUMNS)
            _check_columns(rounds=rounds, clients=clients)
            alone = RunDirectory(folder).events  # those of a single run
            facts = facts_of_run(folder, rounds, clients) if alone else kept_facts(folder)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UnalikeError(
                f"{folder} holds no finished comparison or run ({error}); give a folder that `unalike compare --out` or "
                "`unalike run --out` wrote, or run it to its end"
            ) from None
        if "method" not in rounds:  # a single run keeps its history as it is
            history = (cast(list[Row], table.to_dict("records")) for table in (rounds, clients))
            tables = rounds, last_rounds(History(*history), facts.clients)
            rounds, clients = (labelled(table, facts.methods[0]["label"], facts.seed) for table in tables)
        return cls(rounds, clients, facts)

    def __str__(self) -> str:
        return self.summary.to_string(index=False, float_format=lambda v: f"{v:.4f}", na_rep="-")


def kept_facts(folder: Path) -> ComparisonFacts:
    """What a comparison, or the command that ended a run, wrote beside the tables. Raises `ValueError` for anything else."""
    from pydantic import TypeAdapter, ValidationError

    try:
        facts: ComparisonFacts = TypeAdapter(ComparisonFacts).validate_json((folder / "comparison.json").read_bytes())
        tomllib.loads(facts.config)
    except ValidationError as error:
        raise ValueError(f"comparison.json: {explain_errors(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"comparison.json: config: {error}") from None
    for name, needed in ENTRIES.items():
        for entry in getattr(facts, name):
            if lacking := sorted(needed - entry.keys()):
                raise ValueError(f"comparison.json: an entry of {name} lacks {', '.join(lacking)}")
    if not facts.methods:
        raise ValueError("comparison.json: no methods")
    return facts


def _check_columns(**tables: pd.DataFrame) -> None:
    for name, table in tables.items():
        if lacking := sorted(COLUMNS[name] - {*table}):
            raise ValueError(f"{name}.parquet lacks {', '.join(lacking)}")


def facts_of_run(folder: Path, rounds: pd.DataFrame, clients: pd.DataFrame) -> ComparisonFacts:
    """What the folder of a single run says of itself: in the words of the command that ended it, if one did."""
    directory = RunDirectory(folder)
    config = directory.config or {}
    if not directory.finished:
        done = f"{rounds['round'].max()} of {config['rounds']} rounds"
        return _unfinished(_own_facts(directory, rounds, clients), done, directory.diverged)
    kept = kept_facts(folder) if (folder / "comparison.json").exists() else None
    if kept is None or _differ(tomllib.loads(kept.config), config):
        return _own_facts(directory, rounds, clients)
    return kept


def _differ(told: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether a run was continued with other settings since."""
    return any(told.get(name) != config.get(name) for name in MAY_DIFFER)


def _unfinished(facts: ComparisonFacts, done: str, diverged: str) -> ComparisonFacts:
    notes = [f"This run is unfinished: {done} are done, and all that follows is where it stands after them."]
    command = "# the run is unfinished: what began it, with the same folder, goes on from here"
    if diverged:
        notes.append(f"It cannot go on as it was: {diverged}.")
        command = "# the run diverged: begin it anew, in another folder and with other settings"
    return replace(facts, unfinished=done, notes=[*notes, *facts.notes], command=command)


def _own_facts(directory: RunDirectory, rounds: pd.DataFrame, clients: pd.DataFrame) -> ComparisonFacts:
    """What the folder of a single run says without the command that ended it."""
    import tomli_w

    from unalike.data.partitioning.heterogeneity import summary
    from unalike.data.partitioning.partition_plan import PartitionPlan
    from unalike.data.ragged import client_name

    folder, config = directory.path, directory.config or {}
    data, label = config["data"], directory.asked
    plan = PartitionPlan.load(folder) if (folder / "plan.json").exists() else None
    names = list(plan.names) if plan else directory.names or list(map(client_name, range(data["clients"])))
    counts = None
    if plan is not None and data.get("classes"):
        counts = {n: dict(zip(data["classes"], row)) for n, row in zip(names, plan.counts.tolist(), strict=True)}
    personal = next((c for c in ("personal_accuracy", "personal_rmse") if c in rounds), None)
    shared = rounds[[c for c in ("accuracy", "rmse") if c in rounds]].notna().any(axis=None)
    return ComparisonFacts(
        methods=[
            {
                "label": label,
                "spec": config["method"],
                "protocols": [*(["clients"] if shared else []), *(["personal"] if personal else [])],
            }
        ],
        baseline=label,
        config=tomli_w.dumps(plain(_flags(config))),
        command="# the run came from a program: call ua.run(...) there with the configuration below",
        partition=_divided(data, plan) | (summary(plan.train.sizes, plan.counts) if plan else {}),
        label_counts=counts,
        notes=directory.notes,
        versions={"unalike": config["unalike"]},  # of the rest, the folder says nothing
        seed=config["seed"],
        clients=names,
        plain=next(iter(config.get("protocol", [])), ""),
        ends=_end(directory, rounds),
    )


def _end(directory: RunDirectory, rounds: pd.DataFrame) -> list[dict[str, Any]]:
    """How many rounds the run did, why it ended, and which was selected; nothing of a run that is not at its end."""
    if not directory.finished:
        return []
    last = next(event for event in reversed(directory.events) if event["event"] == "finished")
    chosen = given(cast(list[Row], rounds.to_dict("records")))
    run = {"method": directory.asked, "seed": (directory.config or {})["seed"]}
    return [run | {"rounds": last["round"], "why": last["why"], "selected": chosen}]


def _flags(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a run as a comparison keeps its own, so that the two can be laid side by side."""
    data, work = config["data"], config["work"]
    apart = ("unalike", "seed", "protocol", "select", "metrics", "work", "model", "data")
    return {
        **{k: data[k] for k in ("val", "test", "proxy") if k in data},
        **{k: v for k, v in config.items() if k not in apart},
        "method": [config["method"]],
        "model": config["model"]["name"],
        "seeds": str(config["seed"]),
        "protocol": None if config["protocol"] == ["clients"] else config["protocol"],
        "select": None if config["select"] == "last" else config["select"],
        **work,
        "batch_size": str(work.get("batch_size", "full")),
    }


def _divided(data: dict[str, Any], plan: PartitionPlan | None) -> dict[str, Any]:
    """Which data was divided how, and the plan's hash, which vouches for it; without a plan that of the samples themselves."""
    if plan is None:
        return {"clients": data["clients"], "hash": data["fingerprint"]}
    return {"data": plan.data, "partition": plan.spec, "clients": data["clients"], "hash": plan.hash}


def in_given_order(comparison: Comparison) -> Comparison:
    """The same with the rows of its tables in the order in which the methods were given."""
    from unalike.metrics.statistics import in_order

    order = [method["label"] for method in comparison.facts.methods]
    return replace(comparison, rounds=in_order(comparison.rounds, order), clients=in_order(comparison.clients, order))


def labelled(table: pd.DataFrame, method: str, seed: int) -> pd.DataFrame:
    """The table with the columns method and seed in front."""
    own = list(table)
    return table.assign(method=method, seed=seed)[["method", "seed", *own]]


def last_rounds(history: History, names: Sequence[str], last: int = LAST) -> pd.DataFrame:
    """A history's clients in one row each: the means of their metrics over the last evaluated rounds, the last status.

    Only rounds of the last stage count; where one was selected for the columns of a protocol, that one alone.
    """
    from unalike.metrics.statistics import prefix_of

    clients, since = history.clients, max(1, last_stage(history.rows))
    numbers = sorted(clients["round"].unique())
    counted = [n for n in numbers if n >= since] or numbers
    recent = clients[clients["round"].isin(counted[-last:])].groupby("client", as_index=False)
    means = recent.mean(numeric_only=True).drop(columns="round")
    for prefix, round in selected(history.rows).items():
        own = clients[clients["round"] == round].set_index("client").reindex(means["client"])
        for column in (c for c in map(str, means) if c != "client" and prefix_of(c) == prefix):
            means[column] = own[column].to_numpy()
    sizes = {column: means[column].astype(int) for column in ("n_train", "n_test")}
    return means.assign(
        **sizes, client=[names[int(k)] for k in means["client"]], status=recent["status"].last()["status"]
    )


def versions() -> dict[str, str]:
    """The versions that decide a result."""
    import numpy as np
    import torch

    return {
        "unalike": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
