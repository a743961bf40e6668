"""Conditioning on local statistics (Brannvall 2025): regression on clusters of clients, tables 1 to 3 of the paper."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unalike_studies.cells import Options
from unalike_studies.claim_verdicts import Above, Below, Expectation, Near, Same
from unalike_studies.claims import Claim, Quantity, gain, question, score
from unalike_studies.layouts.figures import Curves
from unalike_studies.layouts.tables import MethodTable
from unalike_studies.published import Printed, printed
from unalike_studies.results import Results
from unalike_studies.study import Scale, Study, Variant

PAPER = "Brannvall: Conditioning on Local Statistics for Scalable Heterogeneous Federated Learning, arXiv:2503.00378, 2025"


def adam(lr: float) -> str:
    """Adam on the server, which with `FULL_BATCH` works on gradients of all samples of all clients."""
    return f"fedadam(lr={lr}, tau=1e-8, b2=0.999, bias_correction=True)"


ADAM = adam(0.05)
FULL_BATCH: dict[str, Any] = {
    "rounds": 1200,
    "evaluate_every": 100,
    "work": {"batch_size": None, "lr": 0.1},
}
POOLED: dict[str, Any] = {
    "work": {
        "optimizer": "adamw",
        "lr": 0.001,
        "weight_decay": 0.001,
        "batch_size": 100,
        "keep_optimizer_state": True,
    }
}
"""The paper's training: AdamW on the pooled samples, each with the statistic of its client. A round is an epoch."""
EPOCHS = {"rounds": 100, "evaluate_every": 10}
AS_PRINTED: dict[str, Any] = POOLED | EPOCHS
SHORT: dict[str, Any] = {"rounds": 30, "evaluate_every": 5, "work": POOLED["work"] | {"lr": 0.01}}
KINDS = ("linear", "ensemble", "MLP")
REFERENCES = ("global", "client", "cluster")
ENSEMBLE = {"model": "conditional_ensemble"}
COMMON = {"partition": "natural(cluster='cluster')"}
READINGS: Mapping[str, str] = {
    "ols": "(X'X)^-1 X'y, as in equation 2",
    "covariance": "the covariance of X and y, as in the text",
}
"""Statistic -> what the paper says mu is."""
CONDITIONED = "conditional(statistic='covariance')"
SMOKE = "10 clients a cluster, 5 rounds: shows that the study runs, nothing else"
TRAINING = (
    "The paper prints AdamW with a learning rate of 0.001, batches of 100 and 100 epochs, and not whether a client or the pooled "
    "samples are meant: here it is pooled samples, and local-statistics-federated tries both"
)
REGRESSION = (
    "The references are trained to convergence by full-batch steps. The paper does not print the number of the ensemble's linear "
    f"models: here eight. {TRAINING}"
)
BOTH = (
    "The paper's text calls the statistic mu the covariance of X and y; its equation 2 is mu = (X'X)^-1 X'y (`ols`). Both are "
    f"tried. {REGRESSION}"
)
IN_THE_TEXT = (
    f"The statistic is the covariance of X and y, which the paper's text names. {REGRESSION}"
)


def references() -> dict[str, Variant]:
    """One model for all clients, for each client and for each true cluster, solved to convergence by full-batch training."""
    linear = FULL_BATCH | {"model": "linear"}
    return {
        "global": Variant(ADAM, linear),
        "client": Variant("local_only", linear | {"protocol": "personal"}),
        "cluster": Variant(f"cluster_oracle(method='{ADAM}')", linear),
    }


def conditional(kind: str, reading: str) -> str:
    """The label of a conditional model whose statistic is that of a reading."""
    return f"conditional {kind}, {reading}"


@dataclass(frozen=True)
class Task:
    """The linear or the logistic regression.

    Attributes:
        name: "linear" or "logistic".
        column: the column of the score.
        unit: the unit of the score.
        scale: factor between the stored and the printed scores.
        digits: digits of the score in tables.
        margin: difference of scores that counts as none.
        solved: the same for the client and cluster models, which are solved.
        draw: the same for the global model, whose score depends on the coefficients that are drawn for the clusters.
        better: the expectation that one score is better than another.
        worse: the opposite.
    """

    name: str
    column: str
    unit: str
    scale: float
    digits: int
    margin: float
    solved: float
    draw: float
    better: Expectation
    worse: Expectation

    @property
    def _percent(self) -> str:
        return ", %" if self.scale == 100 else ""

    def data(self, clusters: int, clients: int | None = None) -> Options:
        """The clients: each cluster has 100 unless given."""
        size = "" if clients is None else f" clients={clients},"
        return {"data": f"{self.name}_clusters(clusters={clusters},{size} seed={{seed}})"}

    def printed(self, method: str, clusters: int) -> Printed:
        """The printed score of a method."""
        table = "2" if clusters == 3 else "3"
        return printed("local-statistics", table, method, self.name, self.column)

    def published(self, clusters: int, suffix: str = "") -> dict[tuple[str, str], str]:
        """(method, setting) -> the printed score, for tables. `suffix` is that of the labels of conditional models."""
        row_of = {name: name for name in REFERENCES}
        for kind in KINDS:
            for reading in READINGS:
                row_of[conditional(kind, reading) + suffix] = f"conditional {kind}"
        published = {}
        for label, row in row_of.items():
            number = self.printed(row, clusters).value
            published[label, f"{clusters} clusters"] = f"{number:g}"
        return published

    def table(self, published: Mapping[tuple[str, str], str] | None = None) -> MethodTable:
        """The table of scores."""
        return MethodTable(
            title=f"{self.column.capitalize()} after the last round{self._percent}",
            column=self.column,
            last=1,
            scale=self.scale,
            digits=self.digits,
            published=published or {},
        )

    def curves(self) -> Curves:
        """The curves of scores."""
        return Curves(f"{self.column}{self._percent}", self.column, self.scale)

    def gain(self, method: str, other: str, setting: str) -> Quantity:
        """The score of a method after the last round less that of another."""
        return gain(method, other, setting, self.column, last=1)

    def score(self, method: str, setting: str) -> Quantity:
        """The score of a method after the last round."""
        return score(method, setting, self.column, last=1)

    def claim(
        self,
        text: str,
        quantity: Quantity,
        expects: Expectation,
        published: Printed | None,
        **more: Any,
    ) -> Claim:
        """A claim about a score or a difference of scores."""
        return Claim(text, quantity, expects, published, self.unit, self.scale, **more)

    def question(self, text: str, quantity: Quantity, expects: Expectation, **more: Any) -> Claim:
        """A question of ours about a score or a difference of scores."""
        return question(text, quantity, expects, self.unit, self.scale, **more)


TASKS = {
    "linear": Task("linear", "rmse", "rmse", 1, 4, 0.02, 0.002, 2.5, Below(), Above()),
    "logistic": Task(
        "logistic", "accuracy", "points of accuracy", 100, 2, 1.0, 1.0, 3.0, Above(), Below()
    ),
}
TABLES = {3: "table2", 8: "table3"}
"""Number of clusters -> the paper's table."""
DRAWN = "the coefficients drawn for the clusters decide it"


def claims(task: Task, clusters: int) -> tuple[Claim, ...]:
    """Every number of a row of the table, and the differences that the text speaks of."""
    setting = f"{clusters} clusters"

    def level(label: str, name: str, margin: float, what: str = "", **more: Any) -> Claim:
        text = f"The {name} model has the printed {task.column}{what}"
        return task.claim(
            text,
            task.score(label, setting),
            Near(margin=margin),
            task.printed(name, clusters),
            **more,
        )

    def against(kind: str, other: str, expects: Expectation, text: str) -> Claim:
        quantity = task.gain(conditional(kind, "ols"), other, setting)
        own_number = task.printed(f"conditional {kind}", clusters)
        other_number = task.printed(other.removesuffix(", ols"), clusters)
        statement = f"The conditional {kind} is {text}"
        is_for_own = expects == task.better
        return task.claim(
            statement, quantity, expects, own_number - other_number, for_own_method=is_for_own
        )

    # The numbers of the row.
    all_claims = [
        level("global", "global", task.draw, remark=DRAWN),
        level("client", "client", task.solved),
        level("cluster", "cluster", task.solved),
    ]
    for reading, meaning in READINGS.items():
        for kind in KINDS:
            label = conditional(kind, reading)
            what = f" with mu = {meaning}"
            all_claims.append(level(label, f"conditional {kind}", task.margin, what))

    # The differences that the text speaks of.
    for kind in KINDS:
        all_claims.append(against(kind, "global", task.better, "better than the global model"))
    same = Same(0.5 * task.margin)
    all_claims.append(against("ensemble", "cluster", same, "as good as the cluster oracle"))
    ensemble = conditional("ensemble", "ols")
    for kind in ("MLP", "linear"):
        all_claims.append(against(kind, ensemble, task.worse, "worse than the ensemble"))
    if task.name == "logistic":
        for kind in ("ensemble", "MLP"):
            all_claims.append(against(kind, "client", task.better, "better than each client alone"))
    return *all_claims, *_questions(task, clusters)


def _questions(task: Task, clusters: int) -> Iterator[Claim]:
    """Questions of ours: which reading the numbers support, and whether the gain comes from the statistic."""
    for kind in KINDS:
        yield task.question(
            f"The printed {task.column} of the conditional {kind} is nearer to that with {READINGS['ols']}, than to that with "
            "the covariance",
            _nearer(task, kind, clusters),
            Below(),
            remark="of the difference of our score from the printed one",
        )
    yield task.question(
        "Without the statistic (zeros) the ensemble is no better than the global model",
        task.gain("global, zeros", "global", f"{clusters} clusters"),
        Same(5 * task.margin if task.name == "linear" else task.margin),
    )


def _nearer(task: Task, kind: str, clusters: int) -> Quantity:
    """The distance of our score from the printed one with `ols` less that with the covariance."""
    number = task.printed(f"conditional {kind}", clusters).value / task.scale

    def values(results: Results) -> dict[int, float]:
        setting = f"{clusters} clusters"
        ols = results.scores(conditional(kind, "ols"), setting, task.column, last=1)
        covariance = results.scores(conditional(kind, "covariance"), setting, task.column, last=1)
        nearer = {}
        for seed in ols:
            if seed in covariance:
                nearer[seed] = abs(ols[seed] - number) - abs(covariance[seed] - number)
        return nearer

    return values


def _methods(pooled: dict[str, Any]) -> dict[str, Variant]:
    """References, and the conditional models with both readings of the statistic."""
    models = {}
    for reading in READINGS:
        spec = f"centralised + conditional(statistic='{reading}')"
        for kind in KINDS:
            options = pooled | {"model": f"conditional_{kind.lower()}"}
            models[conditional(kind, reading)] = Variant(spec, options)
    dummy = Variant(
        "centralised + conditional(statistic='zeros', like='covariance')", pooled | ENSEMBLE
    )
    return {**references(), "global, zeros": dummy, **models}


def _study(task: Task, clusters: int) -> Study:
    """One row of the paper's table 2 or 3; table 1 repeats columns of table 2."""
    settings = {f"{clusters} clusters": task.data(clusters)}
    paper = Scale(_methods(AS_PRINTED), settings, COMMON)

    # The linear regression is small enough to run as printed.
    small = paper
    if task.name != "linear":
        short = "30 epochs of AdamW with a learning rate of 0.01 instead of 100 with 0.001"
        small = Scale(_methods(SHORT), settings, COMMON, reduced=short, unlike=short)

    few = {f"{clusters} clusters": task.data(clusters, 10)}
    tiny = {"rounds": 5, "evaluate_every": 5, "work": POOLED["work"]}
    tiny_methods = {}
    for label, variant in _methods(SHORT).items():
        tiny_methods[label] = Variant(variant.spec, {**variant.options, **tiny})
    return Study(
        f"local-statistics-{TABLES[clusters]}-{task.name}",
        f"{task.name.capitalize()} regression on {clusters} clusters of 100 clients: {task.column} of global, client, cluster "
        "and conditional models",
        PAPER,
        {
            "smoke": Scale(tiny_methods, few, COMMON, seeds=(0,), reduced=SMOKE),
            "small": small,
            "paper": paper,
        },
        claims(task, clusters),
        (task.table(task.published(clusters)),),
        BOTH,
    )


STUDIES = tuple(_study(task, clusters) for clusters in TABLES for task in TASKS.values())
