"""The diagnosis of a run of the plan `diagnosis`: from the clients' answers and the inner products of their updates."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from unalike._utils.errors import UnalikeError
from unalike.core.types import Tree
from unalike.diagnosis.diagnose import diagnosis_of
from unalike.diagnosis.diagnosis import Diagnosis
from unalike.diagnosis.from_counts.histogram_distance import ClientHistograms, histogram_skew
from unalike.diagnosis.samples import ClientCounts, notes_on_few, range_names
from unalike.diagnosis.training import TrainedDivision, TrainingSkew, inner_products, skew_of
from unalike.methods.plan import Answers, steps_of
from unalike.methods.plans.diagnosis_plan import DiagnosisPlan
from unalike.methods.plans.histograms import DIRECTIONS
from unalike.reporting.wording import listing, plural, significant
from unalike.runtime.results.finished_run import Run

SCALE = "Scale of the numbers about training"
UNAVAILABLE = {
    "Concept shift": "it takes one client's model and another client's samples in one place",
    SCALE: "it takes training on the same samples, divided in other ways",
}
"""Quantity that cannot be computed from counts and updates -> the reason."""
DELTA = 1e-5
"""The delta of the differential privacy that noise on counts gives to one training sample."""
FEATURE_STEPS = ("features-magnitudes", "features-spans", "features")
"""The questions of the plan about features; those about labels and classes depend on the task."""


def run_diagnosis(run: Run, name: str) -> Diagnosis:
    """Make the diagnosis of a finished run of the plan `diagnosis`.

    The run ended in this process, in simulation or in a federation; `name` is that of the clients or of the federation. The
    diagnosis has no concept shift, and the numbers about training have no scale. Raises `UnalikeError` for a run of another
    plan or one that was read from a folder, and where fewer than two clients answered.
    """
    plan, answers = run.run_config.plan, run.answers
    if not isinstance(plan, DiagnosisPlan) or "features" not in answers:
        raise UnalikeError(
            f"found a run of {run.method} with the answers {', '.join(answers) or 'of nobody'}; expected one of the plan "
            "'diagnosis', as ua.run('diagnosis', ...) returns it"
        )
    answered = [k for k in answers["classes"].clients if k in answers["features"].clients]
    ids = [k for k in answered if _is_possible(run, k, plan.noise)]
    if len(ids) < 2:
        raise UnalikeError(
            f"found usable answers of {plural(len(ids), 'client')}, expected those of two or more clients, which a diagnosis "
            "compares; run the plan again with more clients"
        )
    ranges, seed = _ranges(run), run.config["seed"]
    classes, low, high = _classes(run, ranges), ranges["low"].numpy(), ranges["high"].numpy()
    counts = _counts(run, ids, classes, plan.noise)
    placed = _rows(answers["features"], "histograms", ids)[:, :, [*classes]]
    histograms = ClientHistograms(placed, counts.counts, low, high, plan.noise)
    training = _training(run, ids, counts.names, seed)
    return diagnosis_of(
        counts,
        histogram_skew(histograms, seed),
        training,
        seed,
        name=name,
        regression=run.run_config.population.classes is None,
        concept=None,
        notes=[
            *_left_out(run, answered, ids),
            *_notes(run, len(ids), plan.noise, training is not None),
        ],
        unavailable={
            what: why for what, why in UNAVAILABLE.items() if what != SCALE or training is not None
        },
        sent=[(item.what, item.bytes) for item in run.run_config.wire if item.direction == "up"],
    )


def _is_possible(run: Run, client: int, noise: float) -> bool:
    """Whether a client's counts fit each other and its number of samples; noise may take them apart by ten standard deviations."""
    counts = _rows(run.answers["classes"], "noisy_counts" if noise else "counts", [client])[0]
    placed = _rows(run.answers["features"], "histograms", [client])[0]
    slack = 10 * noise * (placed.shape[-1] + 1) ** 0.5
    apart = (
        np.abs(placed.sum(-1) - counts).max(),
        abs(counts.sum() - run.run_config.population.sizes[client]),
    )
    return bool(
        min(counts.min(), placed.min()) >= -slack and max(apart) <= slack * len(counts) ** 0.5
    )


def _classes(run: Run, ranges: Tree) -> dict[int, str]:
    """The counted classes: column -> name. Ranges of equal labels and outputs of the model that are no class are left out."""
    if run.run_config.population.classes is not None:
        return dict(enumerate(run.run_config.population.classes))
    edges = ranges["edges"].numpy()
    names, widths = range_names(edges), np.diff(edges, prepend=-np.inf, append=np.inf)
    return {column: name for column, name in enumerate(names) if widths[column] > 0}


def _counts(run: Run, ids: Sequence[int], classes: dict[int, str], noise: float) -> ClientCounts:
    """The clients' samples by class. Counts that noise made negative are 0."""
    population = run.run_config.population
    found = np.maximum(
        _rows(run.answers["classes"], "noisy_counts" if noise else "counts", ids)[:, [*classes]], 0
    )
    found[found.sum(1) == 0, 0] = 1  # noise may leave nothing of a small client
    names = [str(population.names[k]) for k in ids]
    return ClientCounts(names, [*classes.values()], found, population.sizes[ids], noise)


def _rows(answers: Answers, name: str, ids: Sequence[int]) -> np.ndarray:
    """The answers of some clients, [K, ...]."""
    return answers.tree[name][[answers.clients.index(k) for k in ids]].numpy()


def _ranges(run: Run) -> Tree:
    """The ranges of the histograms: the plan chose them from earlier answers, and chooses the same again."""
    steps = steps_of(run.run_config.plan, run.run_config.plan_inputs)
    step = next(steps)
    while step.name != "features":
        step = steps.send(run.answers[step.name])
    assert step.model is not None
    return step.model.buffers


def _training(run: Run, ids: Sequence[int], names: list[str], seed: int) -> TrainingSkew | None:
    """The numbers about training, over rounds in which all clients sent an update; None without any."""
    start, end = (run.answers.get(f"{which}-gradients") for which in ("first", "last"))
    if start is None or end is None or not {*ids} <= {*start.clients} & {*end.clients}:
        return None
    table = run.records.query("quantity == 'inner_product'")
    layers = list(dict.fromkeys(table["layer"]))
    rounds = [
        products
        for _, rows in table.groupby("round")
        if (products := _products(rows, layers, ids)) is not None
    ]
    if not rounds:
        return None
    sizes = run.run_config.population.sizes[ids]
    gradients = (_gradient_products(answers, ids) for answers in (start, end))
    own = TrainedDivision(layers, np.stack(rounds), sizes / sizes.sum(), *gradients)
    return skew_of(own, {}, names, len(rounds), seed)


def _products(rows: pd.DataFrame, layers: list[str], ids: Sequence[int]) -> np.ndarray | None:
    """The inner products of a round, [L, K, K]; None if the update of a client is missing."""
    found = np.full((len(layers), len(ids), len(ids)), np.nan)
    place = {k: i for i, k in enumerate(ids)}
    for layer, a, b, value in rows[["layer", "client", "other", "value"]].itertuples(index=False):
        if a in place and b in place:
            found[layers.index(layer), [place[a], place[b]], [place[b], place[a]]] = value
    return None if np.isnan(found).any() else found


def _gradient_products(answers: Answers, ids: Sequence[int]) -> np.ndarray:
    parts = answers.tree["parts"][[answers.clients.index(k) for k in ids]]
    clients, folds = parts.shape[:2]
    return inner_products(parts.flatten(0, 1)).reshape(clients, folds, clients, folds)


def _left_out(run: Run, answered: Sequence[int], ids: Sequence[int]) -> list[str]:
    """Notes on the clients that the diagnosis leaves out."""
    population = run.run_config.population
    silent = [k for k in np.flatnonzero(population.sizes > 0).tolist() if k not in answered]
    odd = [k for k in answered if k not in ids]
    reasons = (
        (silent, "did not answer all questions"),
        (odd, "sent counts that cannot be right, as they do not add up"),
    )
    return [
        f"Left out: {listing(population.names[k] for k in of)} {why}." for of, why in reasons if of
    ]


def _notes(run: Run, answered: int, noise: float, trained: bool) -> list[str]:
    rounds, notes = run.run_config.options.rounds, notes_on_few(answered)
    if noise:
        labels = sum(
            name not in FEATURE_STEPS for name in run.answers if not name.endswith("gradients")
        )
        bound = significant(epsilon(noise, len(FEATURE_STEPS), labels))
        notes.append(
            f"Every count carries normal noise of standard deviation {noise:g} from its client. For one training sample in place "
            f"of another one, the counts together are differentially private with epsilon = {bound} at delta = {DELTA:g}"
            + ("; updates and gradients carry no noise." if rounds else ".")
        )
    if rounds and not trained:
        notes.append(
            "There are no numbers about training: in no round did every client send a usable update."
        )
    return notes


def epsilon(noise: float, feature_histograms: int, label_histograms: int = 0) -> float:
    """The epsilon, at delta = 1e-5, of all counts of one diagnosis together, for one sample in place of another one.

    A replaced sample changes two counts by one in each histogram. Its squared L2 distance is 2 for a histogram of labels or
    classes and 2 R for those along R directions. Normal noise of standard deviation s gives rho-zero-concentrated privacy with
    rho = distance^2 / (2 s^2), which adds up over questions, and epsilon = rho + 2 sqrt(rho ln(1 / delta)).

    `feature_histograms` and `label_histograms` are numbers of questions; infinite without noise. Source: Bun and Steinke 2016,
    propositions 1.3 and 1.6, lemma 2.3.
    """
    if not noise:
        return math.inf
    rho = (feature_histograms * 2 * DIRECTIONS + label_histograms * 2) / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
