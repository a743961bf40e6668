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
        labels = {name: name for name in REFERENCES}
        labels |= {conditional(k, r) + suffix: f"conditional {k}" for k in KINDS for r in READINGS}
        return {
            (label, f"{clusters} clusters"): f"{self.printed(name, clusters).value:g}"
            for label, name in labels.items()
        }

    def table(self, published: Mapping[tuple[str, str], str] | None = None) -> MethodTable:
        """The table of scores."""
        title = f"{self.column.capitalize()} after the last round{self._percent}"
        return MethodTable(
            title, self.column, 1, self.scale, self.digits, published=published or {}
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
        names = (f"conditional {kind}", other.removesuffix(", ols"))
        first, second = (task.printed(name, clusters) for name in names)
        return task.claim(f"The conditional {kind} is {text}", quantity, expects, first - second)

    found = [
        level("global", "global", task.draw, remark=DRAWN),
        *(level(name, name, task.solved) for name in ("client", "cluster")),
        *(
            level(
                conditional(kind, reading), f"conditional {kind}", task.margin, f" with mu = {what}"
            )
            for reading, what in READINGS.items()
            for kind in KINDS
        ),
        *(against(kind, "global", task.better, "better than the global model") for kind in KINDS),
        against("ensemble", "cluster", Same(0.5 * task.margin), "as good as the cluster oracle"),
        *(
            against(kind, conditional("ensemble", "ols"), task.worse, "worse than the ensemble")
            for kind in ("MLP", "linear")
        ),
    ]
    if task.name == "logistic":
        found += [
            against(kind, "client", task.better, "better than each client alone")
            for kind in ("ensemble", "MLP")
        ]
    return *found, *_questions(task, clusters)


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
        ols, covariance = (
            results.scores(conditional(kind, reading), f"{clusters} clusters", task.column, 1)
            for reading in READINGS
        )
        return {
            seed: abs(ols[seed] - number) - abs(covariance[seed] - number)
            for seed in ols
            if seed in covariance
        }

    return values


def _methods(pooled: dict[str, Any]) -> dict[str, Variant]:
    """References, and the conditional models with both readings of the statistic."""
    models = {
        conditional(kind, reading): Variant(
            f"centralised + conditional(statistic='{reading}')",
            pooled | {"model": f"conditional_{kind.lower()}"},
        )
        for reading in READINGS
        for kind in KINDS
    }
    dummy = Variant(
        "centralised + conditional(statistic='zeros', like='covariance')", pooled | ENSEMBLE
    )
    return {**references(), "global, zeros": dummy, **models}


def _study(task: Task, clusters: int) -> Study:
    """One row of the paper's table 2 or 3; table 1 repeats columns of table 2."""
    settings, tiny = (
        {f"{clusters} clusters": task.data(clusters)},
        {"rounds": 5, "evaluate_every": 5},
    )
    few = {f"{clusters} clusters": task.data(clusters, 10)}
    smoke = {
        label: Variant(v.spec, {**v.options, **tiny, "work": POOLED["work"]})
        for label, v in _methods(SHORT).items()
    }
    paper = Scale(_methods(AS_PRINTED), settings, COMMON)
    short = "30 epochs of AdamW with a learning rate of 0.01 instead of 100 with 0.001"
    return Study(
        f"local-statistics-{TABLES[clusters]}-{task.name}",
        f"{task.name.capitalize()} regression on {clusters} clusters of 100 clients: {task.column} of global, client, cluster "
        "and conditional models",
        PAPER,
        {
            "smoke": Scale(smoke, few, COMMON, seeds=(0,), reduced=SMOKE),
            "small": paper
            if task.name == "linear"
            else Scale(_methods(SHORT), settings, COMMON, reduced=short, unlike=short),
            "paper": paper,
        },
        claims(task, clusters),
        (task.table(task.published(clusters)),),
        BOTH,
    )


STUDIES = tuple(_study(task, clusters) for clusters in TABLES for task in TASKS.values())
