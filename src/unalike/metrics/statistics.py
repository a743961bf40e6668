"""Summary statistics of a comparison: means, spreads and paired differences over methods, seeds and clients.

Every function is pure and takes the tables of a comparison:

* `rounds`, one row per evaluated round:
  `method seed round seconds loss accuracy macro_f1 bytes_down bytes_up [personal_accuracy ...]`;
* `clients`, one row per method, seed and client: `method seed client accuracy [personal_accuracy ...]`.

For regression both have `rmse` (and `personal_rmse`) instead of `accuracy` and `macro_f1`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from unalike._utils.errors import UnalikeError
from unalike.metrics.inference import ROUNDING, holm, paired
from unalike.metrics.metrics import PROTOCOLS


def prefixes(plain: str = "clients") -> dict[str, str]:
    """Protocol -> the prefix of its columns. `plain`, the first protocol of a run, has no prefix."""
    return {plain: ""} | {name: f"{name}_" for name in PROTOCOLS if name != plain}


def plain_protocol(rounds: pd.DataFrame, clients: pd.DataFrame) -> str:
    """The protocol of the columns without a prefix: `server` if they hold scores and the clients have none."""
    metric = headline(rounds)
    scored = rounds[metric.column].notna().any()
    return "server" if scored and clients[metric.column].isna().all() else "clients"


def in_order(table: pd.DataFrame, methods: Iterable[str]) -> pd.DataFrame:
    """The rows sorted by method in the given order; the order within a method is kept."""
    place = {name: i for i, name in enumerate(methods)}
    return table.sort_values("method", key=lambda names: names.map(place), kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Metric:
    """The headline metric of a task. `sign` is +1 if higher is better and -1 if lower is; `word` names it in a sentence."""

    column: str
    sign: int
    title: str
    word: str

    def worst_first(self, values: pd.Series) -> pd.Series:
        return values.sort_values(ascending=self.sign > 0, kind="stable")


METRICS = (Metric("accuracy", +1, "Accuracy", "accuracy"), Metric("rmse", -1, "RMSE", "RMSE"))


def headline(table: pd.DataFrame) -> Metric:
    """Accuracy if the table has it, otherwise RMSE. Raises `UnalikeError` if it has neither."""
    for metric in METRICS:
        if metric.column in table:
            return metric
    expected = " or ".join(repr(metric.column) for metric in METRICS)
    raise UnalikeError(f"the table has no headline metric (found {_listed(table)}); expected a column {expected}")


def prefix_of(column: str) -> str:
    """The protocol's prefix of a column name; empty for columns without one."""
    return next((f"{name}_" for name in PROTOCOLS if column.startswith(f"{name}_")), "")


def extra_metrics(rounds: pd.DataFrame) -> list[str]:
    """The metrics besides the headline metric and the loss: macro_f1, balanced_accuracy, auroc, auprc, user-defined ones."""
    known = {
        "method",
        "seed",
        "round",
        "seconds",
        "participants",
        "loss",
        "train_loss",
        "bytes_down",
        "bytes_up",
        "selected",
        "stage",
    }
    headlines = {metric.column for metric in METRICS}
    fronts = tuple(f"{name}_" for name in (*PROTOCOLS, "val"))
    return [c for c in map(str, rounds) if c not in known | headlines and not c.startswith(fronts)]


def tail_mean(rounds: pd.DataFrame, column: str, last: int = 10) -> pd.Series:
    """Mean of `column` over the last evaluated rounds of each run, indexed by (method, seed) in order of appearance.

    A mean over rounds does not reward a lucky last round. Round 0, the untrained model, never counts. Only rounds of a run's
    last stage count, since earlier stages train models that are not the result of the method. A run with fewer than `last`
    evaluated rounds uses all it has; a run with none is left out. Where a column `selected` marks one round of each run (chosen
    by its validation score), only this round counts. Each protocol has its own such column, for example `personal_selected` for
    `personal_accuracy`.
    """
    _require(rounds, "rounds", "method", "seed", "round", column)
    if last < 1:
        raise UnalikeError(f"last={last} keeps no round; expected 1 or more")
    counted = (rounds["round"] >= 1) & rounds[column].notna() & _of_last_stage(rounds)
    chosen = f"{prefix_of(column)}selected"
    if chosen in rounds:
        counted &= rounds[chosen].eq(True)
    evaluated = rounds[counted].sort_values("round", kind="stable")
    means = evaluated.groupby(["method", "seed"], sort=False)[column].agg(lambda values: values.tail(last).mean())
    runs = pd.MultiIndex.from_frame(rounds[["method", "seed"]].drop_duplicates())
    return means.reindex(runs).dropna()


def _of_last_stage(rounds: pd.DataFrame) -> pd.Series:
    """Mask of the rows that belong to the last stage of their run."""
    stage = rounds.get("stage", pd.Series(0, index=rounds.index)).fillna(0)
    return stage == stage.groupby([rounds["method"], rounds["seed"]]).transform("max")


def summary(
    rounds: pd.DataFrame, clients: pd.DataFrame, baseline: str, last: int = 10, plain: str = "clients"
) -> pd.DataFrame:
    """One row per method and protocol, in order of appearance. The columns, for accuracy, are:

    `method protocol seeds accuracy accuracy_sd macro_f1 [further metrics] loss pairs difference ci_low ci_high boot_low boot_high
    p p_holm wilcoxon wilcoxon_holm better client_sd worst_decile mb_down mb_up seconds`

    `accuracy` is the mean over seeds of `tail_mean`, `accuracy_sd` its standard deviation (ddof 1; NaN for one seed).
    `difference` and its interval compare the method with the baseline under the same protocol, in `pairs` pairs with the same
    seed. They are NaN if the baseline has no score under this protocol: a personal model is not compared with a shared one here
    (`personal_against_shared` does that). The tests are those of `inference.paired`; `p_holm` and `wilcoxon_holm` are corrected
    by Holm for the methods compared under one protocol. `mb_down`, `mb_up` and `seconds` are totals of a run, averaged over
    seeds. The argument `plain` is the protocol of the columns without a prefix.
    """
    metric = headline(rounds)
    _require_method(rounds, baseline)
    costs = totals(rounds)
    rows = []
    for method in rounds["method"].unique():
        for protocol, prefix in prefixes(plain).items():
            scores = _by_seed(rounds, prefix + metric.column, last)
            if method in scores:
                row: dict[str, Any] = {"method": method, "protocol": protocol}
                row |= _scores(scores, metric, method, baseline) | _others(rounds, prefix, method, last)
                row |= _spread(clients, prefix + metric.column, metric, method) | costs.loc[method].to_dict()
                rows.append(row)
    table = pd.DataFrame(rows)
    table = pd.concat([_corrected(part) for _, part in table.groupby("protocol")]).sort_index() if rows else table
    return table.reindex(columns=_columns(rounds, metric))


def personal_against_shared(
    rounds: pd.DataFrame, baseline: str, last: int = 10, plain: str = "clients"
) -> pd.DataFrame:
    """Compare personal models with the *shared* model of the baseline: one row per method, with the test columns of `summary`.

    Both are scored on the same test samples of the same clients. The result tells a client whether a personal model is better
    than the baseline's shared model. It is kept apart from `summary` because it does not compare methods under one protocol.
    """
    metric = headline(rounds)
    _require_method(rounds, baseline)
    shared = _by_seed(rounds, prefixes(plain)["clients"] + metric.column, last).get(baseline, pd.Series(dtype=float))
    personal = _by_seed(rounds, "personal_" + metric.column, last)
    rows: list[dict[str, Any]] = [{"method": name} | _difference(v, shared, metric) for name, v in personal.items()]
    table = pd.DataFrame(rows, columns=["method", *_COMPARED])
    return _corrected(table[table["pairs"] > 0])


def to_target(
    rounds: pd.DataFrame, target: float, column: str | None = None, lost: Mapping[str, int] = MappingProxyType({})
) -> pd.DataFrame:
    """Rounds, MB and seconds until a run first scores `target` or better: `method seeds reached round mb seconds`.

    The last three are means over seeds, and NaN unless every seed reached the target: a mean over the successful seeds alone
    would favor the method. Only evaluated rounds after round 0 count. `lost`: method -> number of its seeds that diverged;
    `rounds` has no rows of them, and they count as seeds that did not reach the target.
    """
    metric = headline(rounds)
    column = column or metric.column
    spent = cumulative(rounds).assign(mb=lambda table: table["mb_down"] + table["mb_up"]).sort_values("round")
    rows: list[dict[str, Any]] = []
    for method in rounds["method"].unique():
        own = spent[spent["method"] == method]
        scored = own[(own["round"] >= 1) & own[column].notna()]
        there = scored[metric.sign * (scored[column] - target) >= -1e-12]
        first = there.groupby("seed")[["round", "mb", "seconds"]].first()
        seeds = int(scored["seed"].nunique())
        if seeds:
            seeds += lost.get(method, 0)
            means = first.mean() if len(first) == seeds else first.mean() * math.nan
            rows.append(
                {"method": method, "seeds": seeds, "reached": len(first)} | {str(k): v for k, v in means.items()}
            )
    return pd.DataFrame(rows, columns=_TARGET)


_TARGET = ["method", "seeds", "reached", "round", "mb", "seconds"]


def pareto_front(table: pd.DataFrame, more: Iterable[str], less: Iterable[str]) -> pd.Series:
    """The Pareto front: True for rows such that no other row is at least as good in every column and better in one.

    Higher is better in the columns `more`, lower in the columns `less`. A row with a missing number is not on the front.
    """
    goods = pd.concat([table[list(more)], -table[list(less)]], axis=1).to_numpy(dtype=float)
    whole = ~pd.isna(goods).any(axis=1)
    beaten = [((goods[whole] >= row).all(axis=1) & (goods[whole] > row).any(axis=1)).any() for row in goods]
    return pd.Series(whole & ~pd.Series(beaten, dtype=bool).to_numpy(), index=table.index)


def client_effects(clients: pd.DataFrame, baseline: str, prefix: str = "") -> pd.DataFrame:
    """Clients' gains and losses compared with the baseline: `method worst better_off worse_off largest_loss`.

    `worst` is the score of the worst client (mean over seeds); `better_off` and `worse_off` are shares of all pairs
    (seed, client); `largest_loss` is the largest loss of a client compared with its score under the baseline, 0 if no client
    loses.
    """
    metric = headline(clients)
    column = prefix + metric.column
    if column not in clients:
        return pd.DataFrame(columns=["method", "worst", "better_off", "worse_off", "largest_loss"])
    scores = clients.dropna(subset=[column]).set_index(["seed", "client"])
    base = scores.loc[scores["method"] == baseline, column]
    rows = []
    for method, own in scores.groupby("method", sort=False)[column]:
        gain = (metric.sign * (own - base)).dropna().round(9)
        gain = gain.mask(
            gain.abs() <= ROUNDING * base.reindex(gain.index).abs(), 0.0
        )  # differences that are only rounding
        worst = metric.sign * (metric.sign * own).groupby("seed").min().mean()
        compared = method != baseline and len(gain) > 0
        better, worse = ((gain > 0).mean(), (gain < 0).mean()) if compared else (math.nan, math.nan)
        loss = max(0.0, -gain.min()) if compared else math.nan
        rows.append({"method": method, "worst": worst, "better_off": better, "worse_off": worse, "largest_loss": loss})
    return pd.DataFrame(rows, columns=["method", "worst", "better_off", "worse_off", "largest_loss"])


def worst_decile(values: pd.Series, metric: Metric) -> float:
    """Mean over the worst tenth of the clients: max(1, K // 10) of K. NaN for no client."""
    scored = metric.worst_first(values.dropna())
    return float(scored.head(max(1, len(scored) // 10)).mean())


def totals(rounds: pd.DataFrame) -> pd.DataFrame:
    """Cost of a whole run, mean over seeds: index method, columns `mb_down mb_up seconds` (MB = 10^6 bytes).

    A run that is evaluated only every few rounds has rows only for these rounds. Each row then counts for all rounds since the
    row before.
    """
    run = cumulative(rounds).groupby(["method", "seed"], sort=False)[["mb_down", "mb_up", "seconds"]].max()
    return run.groupby("method", sort=False).mean()


def cumulative(rounds: pd.DataFrame) -> pd.DataFrame:
    """`rounds` with running totals in the columns `mb_down`, `mb_up` and `seconds`."""
    _require(rounds, "rounds", "method", "seed", "round", "bytes_down", "bytes_up", "seconds")
    ordered = rounds.sort_values("round", kind="stable")
    runs = [ordered["method"], ordered["seed"]]
    stands_for = ordered["round"].groupby(runs).diff().fillna(ordered["round"].clip(lower=1))
    per_round = {
        "mb_down": ordered["bytes_down"] / 1e6,
        "mb_up": ordered["bytes_up"] / 1e6,
        "seconds": ordered["seconds"],
    }
    running = {name: (values * stands_for).groupby(runs).cumsum() for name, values in per_round.items()}
    return ordered.assign(**running).loc[rounds.index]


def _by_seed(rounds: pd.DataFrame, column: str, last: int) -> dict[str, pd.Series]:
    """Method -> its tail means by seed; methods without a score in this column are left out."""
    if column not in rounds:
        return {}
    means = tail_mean(rounds, column, last)
    return {str(method): values.droplevel("method") for method, values in means.groupby("method", sort=False)}


def _scores(scores: dict[str, pd.Series], metric: Metric, method: str, baseline: str) -> dict[str, float]:
    values = scores[method]
    others = pd.Series(dtype=float) if method == baseline else scores.get(baseline, pd.Series(dtype=float))
    own = {metric.column: values.mean(), f"{metric.column}_sd": _sd(values)}
    return own | _difference(values, others, metric) | {"seeds": len(values)}


def _sd(values: pd.Series) -> float:
    """Standard deviation (ddof 1); NaN if a value is not finite."""
    return float(values.std(ddof=1)) if values.map(math.isfinite).all() else math.nan


def _difference(values: pd.Series, others: pd.Series, metric: Metric) -> dict[str, float]:
    """The result of `paired` over the seeds that both have, by column."""
    shared = [seed for seed in values.index if seed in others.index]
    found = paired(values.loc[shared].to_list(), others.loc[shared].to_list(), metric.sign)
    return {column: getattr(found, name) for column, name in _COMPARED.items() if name}


_COMPARED = {
    "pairs": "n", "difference": "difference", "ci_low": "low", "ci_high": "high", "boot_low": "boot_low", "boot_high": "boot_high",
    "p": "p", "p_holm": "", "wilcoxon": "wilcoxon", "wilcoxon_holm": "", "better": "better",
}  # fmt: skip
"""Column -> the field of `Paired` that fills it; empty for corrected p values, which need all methods."""


def _corrected(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows of one protocol with Holm-corrected p values."""
    return compared.assign(p_holm=holm(compared["p"]), wilcoxon_holm=holm(compared["wilcoxon"]))


def _others(rounds: pd.DataFrame, prefix: str, method: str, last: int) -> dict[str, float]:
    nothing = pd.Series(dtype=float)
    names = (*extra_metrics(rounds), "loss")
    return {name: _by_seed(rounds, prefix + name, last).get(method, nothing).mean() for name in names}


def _spread(clients: pd.DataFrame, column: str, metric: Metric, method: str) -> dict[str, float]:
    """Standard deviation over clients (ddof 1) and worst decile, each within a seed, then the mean over seeds."""
    if column not in clients:
        return {"client_sd": math.nan, "worst_decile": math.nan}
    by_seed = clients[(clients["method"] == method) & clients[column].notna()].groupby("seed")[column]
    worst = by_seed.agg(lambda values: worst_decile(values, metric))
    return {"client_sd": by_seed.std(ddof=1).mean(), "worst_decile": worst.mean()}


def _columns(rounds: pd.DataFrame, metric: Metric) -> list[str]:
    scores = ["method", "protocol", "seeds", metric.column, f"{metric.column}_sd"]
    return [
        *scores,
        *extra_metrics(rounds),
        "loss",
        *_COMPARED,
        "client_sd",
        "worst_decile",
        "mb_down",
        "mb_up",
        "seconds",
    ]


def _require(frame: pd.DataFrame, name: str, *columns: str) -> None:
    missing = [column for column in columns if column not in frame]
    if missing:
        raise UnalikeError(f"the {name} table lacks the columns {', '.join(missing)}; found {_listed(frame)}")


def _require_method(rounds: pd.DataFrame, baseline: str) -> None:
    _require(rounds, "rounds", "method")
    known = rounds["method"].unique()
    if baseline not in known:
        raise UnalikeError(f"the baseline {baseline!r} was not run; expected one of {', '.join(map(repr, known))}")


def _listed(frame: pd.DataFrame | Iterable[str]) -> str:
    return ", ".join(map(str, frame)) or "no columns"
