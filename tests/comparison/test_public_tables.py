"""Tables of public packages: the answer to "together, or alone?" is that of an analyst with scikit-learn on the same divisions."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from public_tables import of_r
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from statsmodels.stats.multitest import multipletests

import unalike as ua
from unalike.reporting.together_or_alone import (
    NOT_REACHED,
    OPEN,
    PAYS,
    RATHER_ALONE,
    STAY_ALONE,
)

SEEDS = range(3)
LEVEL = 0.05
SMALLEST_GAIN = 0.005
"""Half a point of ROC AUC: the smallest difference that matters, unless told otherwise."""
ROUNDING = 1e-9
DIGITS = 12
"""Of a risk: more would tell equal rows apart, by the rounding of a matrix product."""
FIRST_HOSPITAL = 30084
LOAN_COLUMNS = ["unem", "reject", "appinc", "loanamt", "price", "liq", "rep", "gdlin", "pubrec"]
"""The unemployment of an applicant's industry, the outcome, and seven features, some with missing values."""


def loanapp():
    """Applications for a mortgage, by three ranges of unemployment in the applicant's industry; one in eight is refused."""
    table = of_r("wooldridge", "loanapp")[LOAN_COLUMNS]
    branch = pd.cut(table["unem"], [0, 3, 4, 99], labels=["low", "middle", "high"]).astype(str)
    return table.drop(columns="unem").assign(branch=branch), "reject", "branch"


def fair():
    """Affairs of every fourth of 6366 women, by how religious they are."""
    table = sm.datasets.fair.load_pandas().data.iloc[::4]
    faith = table["religious"].astype(int).astype(str)
    affair = (table["affairs"] > 0).astype(int)
    features = table.drop(columns=["religious", "affairs"])
    return features.assign(faith=faith, affair=affair), "affair", "faith"


def modechoice():
    """Choices among means of travel of 210 travellers, by the size of their party."""
    table = sm.datasets.modechoice.load_pandas().data
    table = table[table["psize"] <= 2]
    party = table["psize"].map({1: "alone", 2: "in two"})
    features = table[["ttme", "invc", "invt", "gc", "hinc"]]
    return features.assign(choice=table["choice"].astype(int), party=party), "choice", "party"


def medpar():
    """Deaths of patients of 12 hospitals, some of which have a few patients, or one outcome alone."""
    table = of_r("COUNT", "medpar").drop(columns=["type1", "type2", "type3"])
    return table[table["provnum"].astype(int) >= FIRST_HOSPITAL], "died", "provnum"


def cgd():
    """Infections in 203 visits of 128 patients at 13 centres; `id` is the patient, which nobody names."""
    table = of_r("survival", "cgd").drop(columns=["random", "tstart", "tstop", "enum", "hos.cat"])
    return table, "status", "center"


def orange_juice():
    """The brand of orange juice that 1070 customers of five shops bought."""
    table = of_r("ISLR", "OJ").drop(columns=["STORE", "Store7"])
    return table, "Purchase", "StoreID"


def caravan():
    """Insurance of a caravan, which 6 % of every third of 5822 customers bought, by ten types of them; some types never did."""
    table = of_r("ISLR", "Caravan").drop(columns="MOSTYPE").iloc[::3]
    return table, "Purchase", "MOSHOOFD"


def logistic(seed):
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def forest(seed):
    return RandomForestClassifier(min_samples_leaf=5, random_state=seed)


def boosting(seed):
    return HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=seed)


def score(population, seed: int, make: Callable, pooled: bool) -> float:
    """The ROC AUC of all test rows, each predicted by the model of its client or of all."""
    x = population.x.numpy().astype(float)
    y = population.y.numpy()
    risk = np.full(len(y), np.nan)
    of_all = np.unique(population.train.values)
    for client in range(len(population)):
        train = of_all if pooled else population.train[client]
        test = population.test[client]
        if not len(test):
            continue
        if len(np.unique(y[train])) == 1:
            risk[test] = y[train[0]]
            continue
        risk[test] = make(seed).fit(x[train], y[train]).predict_proba(x[test])[:, 1]
    tested = population.test.values
    return roc_auc_score(y[tested], risk[tested].round(DIGITS))


def best(makers, populations, pooled: bool) -> np.ndarray:
    """The scores by seed of the kind of model with the best mean."""
    found = []
    for make in makers:
        scores = [
            score(population, seed, make, pooled)
            for seed, population in zip(SEEDS, populations, strict=True)
        ]
        found.append(np.array(scores))
    return max(found, key=np.mean)


def corrected_tests(gains: list[np.ndarray], ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean gains and Holm's p of t tests whose variance counts overlapping training rows (Nadeau and Bengio, 2003)."""
    means = np.mean(gains, axis=1)
    errors = np.std(gains, axis=1, ddof=1) * np.sqrt(1 / len(SEEDS) + ratio)
    p = 2 * stats.t.sf(abs(means) / errors, len(SEEDS) - 1)
    return means, multipletests(p, LEVEL, "holm")[1]


def decision(means: np.ndarray, p: np.ndarray) -> str:
    """What the analyst says of pooling and of the method, each against all sites alone."""
    is_better = (p < LEVEL) & (means >= SMALLEST_GAIN)
    is_worse = (p < LEVEL) & (means <= -SMALLEST_GAIN)
    if is_better.any():
        return NOT_REACHED if is_better[0] and is_worse[1] else PAYS
    if is_worse[0]:
        return STAY_ALONE
    return RATHER_ALONE if is_worse[1] else OPEN


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", [loanapp, fair, modechoice, medpar, cgd, orange_juice, caravan])
def test_answer_is_that_of_an_analyst_with_scikit_learn_on_the_same_divisions(make):
    table, target, site = make()
    data = ua.load(table, target=target, group=site)
    found = ua.compare(
        ["fedavg"],
        data=data,
        model="logistic",
        rounds=5,
        metric="roc_auc",
        seeds=len(SEEDS),
        progress=False,
    )
    answer = found.together_or_alone()

    populations = [ua.partition(data, seed=seed) for seed in SEEDS]
    alone = best([logistic, forest], populations, pooled=False)
    pooled = best([logistic, boosting], populations, pooled=True)
    last = found.rounds[found.rounds["round"] == found.rounds["round"].max()]
    of_method = last.set_index("seed").loc[list(SEEDS), "roc_auc"].to_numpy()
    ratio = populations[0].test.sizes.sum() / populations[0].sizes.sum()
    means, p = corrected_tests([pooled - alone, of_method - alone], ratio)

    assert answer.alone.score == pytest.approx(alone.mean(), abs=ROUNDING)
    assert answer.pooled.score == pytest.approx(pooled.mean(), abs=ROUNDING)
    assert [answer.gain.mean, answer.method_gain.mean] == pytest.approx(means, abs=ROUNDING)
    assert answer.verdict == decision(means, p)
