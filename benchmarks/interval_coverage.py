"""Simulate the intervals of tables: how often do those of coefficients, evaluations and fitted references cover the truth?

    python benchmarks/interval_coverage.py [data sets per row, 300 unless given]

Data sets are drawn from hospitals that are known. Coefficients are those of `ua.run("newton", ...)`, rows of an evaluation those of
`unalike evaluate`, and the answer to "together, or alone?" that of `ua.compare`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy.special import expit

import unalike as ua
from unalike.core.tasks.registry import find_task
from unalike.metrics.metrics import measure
from unalike.metrics.named_metrics import read
from unalike.metrics.scoring import Scores
from unalike.statistics.bootstrap import LEVEL
from unalike.statistics.evaluated_rows import Evaluated, evaluated_rows
from unalike.statistics.fitted_scores import Gain

EFFECTS = np.array([0.5, -0.3, 0.4])
"""The coefficients, per standard deviation: two columns of patients, and one that is the same for all patients of a hospital."""
SPREAD = 0.5
"""The standard deviation between hospitals of what no column tells, where they differ."""
MANY_PATIENTS = 400_000
"""Patients of a sample that stands for the truth."""


def patients(
    rng: np.random.Generator, hospital: np.ndarray, spread: float, logistic: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs float32 [n, 3] and outcomes [n]: classes, or amounts with noise of standard deviation 1."""
    hospitals = hospital.max() + 1
    x = rng.standard_normal((len(hospital), len(EFFECTS)))
    x[:, -1] = rng.standard_normal(hospitals)[hospital]
    own = spread * rng.standard_normal(hospitals)
    expected = x @ EFFECTS + own[hospital]
    if logistic:
        y = (rng.random(len(hospital)) < expit(expected)).astype(np.int64)
    else:
        y = (expected + rng.standard_normal(len(hospital))).astype(np.float32)
    return x.astype(np.float32), y


def coefficients(sets: int, sizes: Sequence[int], spread: float, logistic: bool) -> dict[str, str]:
    """Coverage of the intervals by the model and of the robust ones, of columns of patients and of the hospitals' column."""
    rng = np.random.default_rng(0)
    hospital = np.repeat(np.arange(len(sizes)), sizes)
    true = EFFECTS
    if logistic and spread:
        # the coefficients of all patients together are nearer to 0 than those of one hospital's
        true = _of_population(spread)
    covered: dict[str, list[np.ndarray]] = {"low": [], "robust_low": []}
    for _ in range(sets):
        x, y = patients(rng, hospital, spread, logistic)
        clients = []
        for k in range(len(sizes)):
            own = hospital == k
            clients.append(ua.ClientData(train=(x[own], y[own])))
        model = "logistic" if logistic else "linear"
        run = ua.run("newton", clients, model=model, rounds=12, progress=False)
        table = run.coefficients().set_index("term").loc[["x0", "x1", "x2"]]
        for low in covered:
            ends = table[[low, low.replace("low", "high")]].to_numpy()
            covered[low].append((ends[:, 0] <= true) & (true <= ends[:, 1]))
    shares = {name: 100 * np.mean(found, axis=0) for name, found in covered.items()}
    return {
        "model, patients' columns": f"{shares['low'][:2].mean():.0f}",
        "model, hospitals' column": f"{shares['low'][2]:.0f}",
        "robust, patients' columns": f"{shares['robust_low'][:2].mean():.0f}",
        "robust, hospitals' column": f"{shares['robust_low'][2]:.0f}",
    }


def _of_population(spread: float) -> np.ndarray:
    """The coefficients that a logistic regression of very many hospitals converges to."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(1)
    x, y = patients(rng, np.arange(MANY_PATIENTS), spread, logistic=True)
    return np.asarray(LogisticRegression(C=np.inf).fit(x, y).coef_[0])


def risks(
    rng: np.random.Generator, place: np.ndarray, visits: int
) -> tuple[Scores, np.ndarray, np.ndarray]:
    """Scores of a model whose risks are too extreme, the patient and the sex of each visit, [n]; places differ in their risk."""
    patient = np.arange(len(place)) // visits
    places = place.max() + 1
    own = np.linspace(-0.7, 0.7, places)[place] if places > 1 else np.zeros(len(place))
    seen = rng.standard_normal(len(place))[patient]
    unseen = rng.standard_normal(len(place))[patient]
    sex = rng.integers(0, 2, len(place))[patient]
    y = rng.random(len(place)) < expit(-0.7 + own + seen + 0.3 * sex + (visits > 1) * unseen)
    z = 1.5 * (seen + own) - 1.0
    loss = np.logaddexp(0, z) - y * z
    scores = Scores(
        client=place,
        loss=loss,
        y=y.astype(np.int64),
        predicted=(z > 0).astype(np.int64),
        logits=np.stack([np.zeros_like(z), z], 1),
    )
    return scores, patient, sex


def evaluations(sets: int, sizes: Sequence[int], visits: int) -> dict[str, str]:
    """Coverage of the intervals of all samples pooled, of rows of places and subgroups, and of calibration."""
    rng = np.random.default_rng(0)
    task = find_task("classification").of(["no", "yes"])
    chosen = {metric.name: metric.of(task, ["no", "yes"]) for metric in read(["roc_auc"])}
    place = np.repeat(np.arange(len(sizes)), sizes)

    many, _, many_sexes = risks(rng, np.tile(place, MANY_PATIENTS // len(place)), visits)
    true = measure(task, many, chosen)
    true_of_sex = measure(task, many.of(many_sexes == 1), chosen)
    true_of_place = measure(task, many.of(many.client == place.max()), chosen)
    z = many.logits[:, 1]
    slope_and_intercept = _calibration(z, many.y)

    found: dict[str, list[bool]] = {}

    def note(name: str, low: float, high: float, value: float) -> None:
        if not np.isnan(low):
            found.setdefault(name, []).append(bool(low <= value <= high))

    names = [str(k) for k in range(len(sizes))]
    for _ in range(sets):
        scores, patient, sex = risks(rng, place, visits)
        evaluated = Evaluated(task, scores, patient, chosen)
        *rows, pooled, _ = evaluated_rows(evaluated, place, names, summarized=True)
        _, women = evaluated_rows(evaluated, sex, ["men", "women"], summarized=False)
        note("pooled ROC AUC", *pooled.intervals["roc_auc"], true["roc_auc"])
        note("pooled accuracy", *pooled.intervals["accuracy"], true["accuracy"])
        note("ROC AUC of the last place", *rows[-1].intervals["roc_auc"], true_of_place["roc_auc"])
        note("ROC AUC of a subgroup", *women.intervals["roc_auc"], true_of_sex["roc_auc"])
        assert pooled.risks is not None
        if visits == 1 and pooled.risks.enough:
            _, *slope = pooled.risks.slope(LEVEL)
            _, *intercept = pooled.risks.intercept(LEVEL)
            note("calibration slope", *slope, slope_and_intercept[0])
            note("in the large", *intercept, slope_and_intercept[1])
    return {name: f"{100 * np.mean(covers):.0f}" for name, covers in found.items()}


def _calibration(z: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope and the calibration in the large of logits z [n] of outcomes y [n]."""
    import statsmodels.api as sm

    slope = sm.Logit(y, sm.add_constant(z)).fit(disp=0).params[1]
    family = sm.families.Binomial()
    intercept = sm.GLM(y, np.ones_like(z), family=family, offset=z).fit().params[0]
    return float(slope), float(intercept)


def answers(sets: int, seeds: int, shift: float) -> dict[str, str]:
    """Coverage of the gains by pooling and by fedavg of "together, or alone?", where either reference is the best of two kinds.

    The truth is the mean of a gain over data sets: what choosing among models gains on such hospitals.
    """
    rng = np.random.default_rng(0)
    gains: dict[str, list[Gain]] = {"pooling": [], "fedavg": []}
    for _ in range(sets):
        table = _visits(rng, [60, 90, 120], shift)
        data = ua.load(table, target="ill", group="hospital")
        compared = ua.compare(
            ["fedavg"],
            data=data,
            model="logistic",
            rounds=1,
            metric="roc_auc",
            seeds=seeds,
            progress=False,
        )
        answer = compared.together_or_alone()
        gains["pooling"].append(answer.gain)
        gains["fedavg"].append(answer.method_gain)
    shares = {}
    for name, found in gains.items():
        low = np.array([gain.low for gain in found])
        high = np.array([gain.high for gain in found])
        true = float(np.mean([gain.mean for gain in found]))
        covers = (low <= true) & (true <= high)
        shares[f"gain by {name}"] = f"{100 * true:+.1f}"
        shares[f"covered by {name}'s interval"] = f"{100 * covers.mean():.0f}"
        shares[f"{name}'s excludes 0"] = f"{100 * np.mean((low > 0) | (high < 0)):.0f}"
    return shares


def _visits(rng: np.random.Generator, sizes: Sequence[int], shift: float) -> pd.DataFrame:
    """Visits to hospitals whose coefficients differ by `shift`."""
    parts = []
    for k, size in enumerate(sizes):
        x = rng.standard_normal((size, 5))
        effects = np.full(5, 0.4)
        effects[k] += shift
        effects[k + 1] -= shift
        ill = rng.random(size) < expit(x @ effects)
        parts.append(
            pd.DataFrame(x, columns=list("abcde")).assign(hospital=f"h{k}", ill=ill.astype(int))
        )
    return pd.concat(parts, ignore_index=True)


def rows_of_coefficients(sets: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Name of a row -> its shares."""
    for kind in ("logistic", "linear"):
        for spread in (0.0, SPREAD):
            for sizes in ([60] * 5, [20] * 30):
                alike = f"hospitals differ by {spread:g}" if spread else "hospitals alike"
                name = f"{kind}, {len(sizes)} of {sizes[0]}, {alike}"
                yield name, coefficients(sets, sizes, spread, kind == "logistic")


def rows_of_evaluations(sets: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Name of a row -> its shares."""
    yield "4 places of 60", evaluations(sets, [60] * 4, 1)
    yield "11 places of 3, one of 60", evaluations(sets, [3] * 11 + [60], 1)
    yield "4 places of 30 patients with 3 visits", evaluations(sets, [90] * 4, 3)


def rows_of_answers(sets: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Name of a row -> its shares."""
    for seeds in (3, 5):
        for shift in (0.0, 1.0):
            yield f"{seeds} seeds, hospitals differ by {shift:g}", answers(sets, seeds, shift)


def main(sets: int) -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    for title, rows in (
        ("Coefficients", rows_of_coefficients(sets)),
        ("Evaluation", rows_of_evaluations(sets)),
        ("Together, or alone?", rows_of_answers(max(1, sets // 5))),
    ):
        print(f"\n{title}: coverage of 95 % intervals, %", flush=True)
        for name, shares in rows:
            listed = ", ".join(f"{column} {share}" for column, share in shares.items())
            print(f"{name}: {listed}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
