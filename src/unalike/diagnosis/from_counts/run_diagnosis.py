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
from unalike.methods.plans.histograms import DIRECTIONS, TOLERATED_DEVIATIONS
from unalike.reporting.wording import listing, plural, significant
from unalike.runtime.results.finished_run import Run

TRAINING_SCALE = "Scale of the numbers about training"
UNAVAILABLE = {
    "Concept shift": "it takes one client's model and another client's samples in one place",
    TRAINING_SCALE: "it takes training on the same samples, divided in other ways",
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
    plan = run.run_config.plan
    answers = run.answers
    if not isinstance(plan, DiagnosisPlan) or "features" not in answers:
        raise UnalikeError(
            f"found a run of {run.method} with the answers "
            f"{', '.join(answers) or 'of nobody'}; expected one of the plan "
            "'diagnosis', as ua.run('diagnosis', ...) returns it"
        )
    answered = [k for k in answers["classes"].clients if k in answers["features"].clients]
    ids = [k for k in answered if _is_possible(run, k, plan.noise)]
    if len(ids) < 2:
        raise UnalikeError(
            f"found usable answers of {plural(len(ids), 'client')}, expected those of "
            "two or more clients, which a diagnosis compares; run the plan again with "
            "more clients"
        )

    # What the answers say: samples by class, features by class in ranges, and products of updates.
    seed = run.config["seed"]
    ranges = _ranges(run)
    classes = _classes(run, ranges)
    counts = _counts(run, ids, classes, plan.noise)
    histograms = ClientHistograms(
        counts=_rows(answers["features"], "histograms", ids)[:, :, [*classes]],
        sizes=counts.counts,
        low=ranges["low"].numpy(),
        high=ranges["high"].numpy(),
        noise=plan.noise,
    )
    training = _training(run, ids, counts.names, seed)

    unavailable = dict(UNAVAILABLE)
    if training is None:  # what is missing beside numbers that are not there
        del unavailable[TRAINING_SCALE]
    notes = _left_out(run, answered, ids) + _notes(run, len(ids), plan.noise, training is not None)
    return diagnosis_of(
        counts,
        histogram_skew(histograms, seed),
        training,
        seed,
        name=name,
        regression=run.run_config.population.classes is None,
        concept=None,
        notes=notes,
        unavailable=unavailable,
        sent=[(item.what, item.bytes) for item in run.run_config.wire if item.direction == "up"],
    )


def _is_possible(run: Run, client: int, noise: float) -> bool:
    """Whether a client's counts fit each other and its number of samples, but for their noise."""
    # the sum of whole numbers may wrap around
    counts = _rows(run.answers["classes"], _counts_name(noise), [client])[0].astype(float)
    by_direction = _rows(run.answers["features"], "histograms", [client])[0]  # [R, C, B]
    by_direction = by_direction.astype(float)
    size = run.run_config.population.sizes[client]

    # No count is negative, the ranges of a direction add up to the count of a class, and the counts to the client's samples.
    smallest = min(counts.min(), by_direction.min())
    differences = np.abs(by_direction.sum(-1) - counts)
    largest = max(differences.max(), abs(counts.sum() - size))

    # Noise adds up over the ranges of a class (and the count itself), and then over the classes.
    ranges = by_direction.shape[-1]
    slack = TOLERATED_DEVIATIONS * noise * (ranges + 1) ** 0.5
    slack_of_sums = slack * len(counts) ** 0.5
    return bool(smallest >= -slack and largest <= slack_of_sums)


def _counts_name(noise: float) -> str:
    """The name of the counts by class in the answers."""
    return "noisy_counts" if noise else "counts"


def _classes(run: Run, ranges: Tree) -> dict[int, str]:
    """The counted classes: column -> name. Ranges of equal labels and outputs of the model that are no class are left out."""
    classes = run.run_config.population.classes
    if classes is not None:
        return dict(enumerate(classes))
    edges = ranges["edges"].numpy()
    widths = np.diff(edges, prepend=-np.inf, append=np.inf)
    names = range_names(edges)
    return {column: name for column, name in enumerate(names) if widths[column] > 0}


def _counts(run: Run, ids: Sequence[int], classes: dict[int, str], noise: float) -> ClientCounts:
    """The clients' samples by class. Counts that noise made negative are 0."""
    population = run.run_config.population
    columns = [*classes]
    counts = _rows(run.answers["classes"], _counts_name(noise), ids)[:, columns]
    counts = np.maximum(counts, 0)
    # Noise may leave nothing of a small client, whose distribution would be undefined.
    counts[counts.sum(1) == 0, 0] = 1
    names = [str(population.names[k]) for k in ids]
    return ClientCounts(names, [*classes.values()], counts, population.sizes[ids], noise)


def _rows(answers: Answers, name: str, ids: Sequence[int]) -> np.ndarray:
    """The answers of some clients, [K, ...]."""
    places = [answers.clients.index(k) for k in ids]
    return answers.tree[name][places].numpy()


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
    first = run.answers.get("first-gradients")
    last = run.answers.get("last-gradients")
    if first is None or last is None:
        return None
    if not set(ids) <= set(first.clients) & set(last.clients):
        return None
    # Rounds in which a client is missing cannot be compared with the others, and are left out.
    table = run.records.query("quantity == 'inner_product'")
    layers = list(dict.fromkeys(table["layer"]))
    rounds = []
    for _, rows in table.groupby("round"):
        products = _products(rows, layers, ids)
        if products is not None:
            rounds.append(products)
    if not rounds:
        return None
    sizes = run.run_config.population.sizes[ids]
    division = TrainedDivision(
        layers=layers,
        updates=np.stack(rounds),
        weights=sizes / sizes.sum(),
        start=_gradient_products(first, ids),
        end=_gradient_products(last, ids),
    )
    return skew_of(division, {}, names, len(rounds), seed)


def _products(rows: pd.DataFrame, layers: list[str], ids: Sequence[int]) -> np.ndarray | None:
    """The inner products of a round, [L, K, K]; None if the update of a client is missing."""
    products = np.full((len(layers), len(ids), len(ids)), np.nan)
    place = {k: i for i, k in enumerate(ids)}
    columns = rows[["layer", "client", "other", "value"]]
    for layer, a, b, value in columns.itertuples(index=False):
        if a in place and b in place:
            i, j = place[a], place[b]
            of_layer = products[layers.index(layer)]
            of_layer[i, j] = value
            of_layer[j, i] = value
    return None if np.isnan(products).any() else products


def _gradient_products(answers: Answers, ids: Sequence[int]) -> np.ndarray:
    """The inner products of the gradients of the clients' parts, [K, F, K, F]."""
    places = [answers.clients.index(k) for k in ids]
    parts = answers.tree["parts"][places]
    clients, folds = parts.shape[:2]
    products = inner_products(parts.flatten(0, 1))
    return products.reshape(clients, folds, clients, folds)


def _left_out(run: Run, answered: Sequence[int], ids: Sequence[int]) -> list[str]:
    """Notes on the clients that the diagnosis leaves out."""
    population = run.run_config.population
    with_samples = np.flatnonzero(population.sizes > 0).tolist()
    silent = [k for k in with_samples if k not in answered]
    impossible = [k for k in answered if k not in ids]
    notes = []
    if silent:
        names = listing(population.names[k] for k in silent)
        notes.append(f"Left out: {names} did not answer all questions.")
    if impossible:
        names = listing(population.names[k] for k in impossible)
        notes.append(f"Left out: {names} sent counts that cannot be right, as they do not add up.")
    return notes


def _notes(run: Run, answered: int, noise: float, trained: bool) -> list[str]:
    """Notes on few clients, on the noise of counts and its privacy, and on rounds without numbers."""
    rounds = run.run_config.options.rounds
    notes = notes_on_few(answered)
    if noise:
        questions = [name for name in run.answers if not name.endswith("gradients")]
        label_histograms = sum(name not in FEATURE_STEPS for name in questions)
        bound = significant(epsilon(noise, len(FEATURE_STEPS), label_histograms))
        rest = "; updates and gradients carry no noise." if rounds else "."
        notes.append(
            f"Every count carries normal noise of standard deviation {noise:g} from "
            "its client. For one training sample in place of another one, the counts "
            f"together are differentially private with epsilon = {bound} at delta = "
            f"{DELTA:g}{rest}"
        )
    if rounds and not trained:
        notes.append(
            "There are no numbers about training: in no round did every client send a "
            "usable update."
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
    squared_distance = feature_histograms * 2 * DIRECTIONS + label_histograms * 2
    rho = squared_distance / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / DELTA))
