"""Public tables of hospitals, branches and shops: methods of rounds beside models that are fitted alone and on pooled rows.

    make tables
    python benchmarks/hospital_tables.py [seeds, 3 unless given] [tables, all unless given]

Prints a row for each table: the mean ROC AUC over seeds in percent, or the RMSE, of all test rows or the mean of the sites, and the
answer to "together, or alone?".
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import unalike as ua
from unalike.reporting.together_or_alone import references

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from public_tables import of_r

REFERENCES = ["alone, linear", "alone, forest", "pooled, linear", "pooled, boosting"]
METHODS = ["fedavg", "newton(l2=1)", "local_only", "centralised"]
ROUNDS = 20
LOAN_COLUMNS = [
    "unem",
    "reject",
    "appinc",
    "loanamt",
    "price",
    "term",
    "liq",
    "rep",
    "gdlin",
    "pubrec",
    "mortno",
    "dep",
    "emp",
    "yjob",
    "self",
    "obrat",
    "cosign",
    "sch",
]


class Owned(NamedTuple):
    """A table, or the name of a data set that has these, with its target and the column of its owners; the score that decides, and
    how that of all owners is taken."""

    data: pd.DataFrame | str
    target: str = ""
    owner: str = ""
    across: str = "pooled"
    model: str = "logistic"
    metric: str = "roc_auc"
    regression: bool | None = None


def heart_disease() -> Owned:
    """920 patients of four hospitals."""
    return Owned("heart_disease", across="clients")


def loanapp() -> Owned:
    """1989 applications for a mortgage, by the unemployment rate of the applicant's industry."""
    table = of_r("wooldridge", "loanapp")[LOAN_COLUMNS]
    branch = "rate " + table["unem"].astype(str)
    return Owned(table.drop(columns="unem").assign(branch=branch), "reject", "branch")


def caravan() -> Owned:
    """5822 customers of ten types."""
    return Owned(of_r("ISLR", "Caravan").drop(columns="MOSTYPE"), "Purchase", "MOSHOOFD")


def medpar() -> Owned:
    """1495 patients of 54 hospitals."""
    table = of_r("COUNT", "medpar").drop(columns=["type1", "type2", "type3"])
    return Owned(table, "died", "provnum")


def orange_juice() -> Owned:
    """1070 customers of five shops."""
    table = of_r("ISLR", "OJ").drop(columns=["STORE", "Store7"])
    return Owned(table, "Purchase", "StoreID", across="clients")


def cgd() -> Owned:
    """203 visits of 128 patients at 13 centres."""
    table = of_r("survival", "cgd").drop(columns=["random", "tstart", "tstop", "enum", "hos.cat"])
    return Owned(table, "status", "center")


def restaurant() -> Owned:
    """27178 inspections of restaurants in 15 years, with a score of 0 to 100; 1618 names are left out."""
    table = of_r("causaldata", "restaurant_inspections").drop(columns="business_name")
    return Owned(table, "inspection_score", "Year", model="linear", metric="rmse", regression=True)


TABLES: dict[str, Callable[[], Owned]] = {
    "heart disease": heart_disease,
    "loanapp": loanapp,
    "Caravan": caravan,
    "medpar": medpar,
    "OJ": orange_juice,
    "cgd": cgd,
    "restaurant": restaurant,
}


def compared(data: ua.Dataset | str, owned: Owned, seeds: int) -> list[str]:
    """The scores of methods and references, and the answer."""
    found = ua.compare(
        METHODS,
        data=data,
        model=owned.model,
        rounds=ROUNDS,
        metric=owned.metric,
        across=owned.across,
        seeds=seeds,
        progress=False,
    )
    content = found.content()
    text = content.metric.text
    # of the protocols the last one is that of the models that sites use
    in_use = found.summary.drop_duplicates("method", keep="last")
    of_methods = in_use.set_index("method")[owned.metric]
    fitted = references(content)
    of_references = fitted.set_index(["scope", "model"])[owned.metric]
    kinds = [
        ("alone", owned.model),
        ("alone", "forest"),
        ("pooled", owned.model),
        ("pooled", "boosting"),
    ]
    cells = [text(of_methods[method]) for method in METHODS]
    cells += [text(of_references[kind]) for kind in kinds]
    return [*cells, found.together_or_alone().verdict]


def main(seeds: int, names: Sequence[str]) -> None:
    """Print the table, row by row."""
    warnings.simplefilter("ignore")
    heads = ["table", *METHODS, *REFERENCES, "together, or alone?"]
    print(f"| {' | '.join(heads)} |")
    print(f"|{' --- |' * len(heads)}")
    for name in names:
        owned = TABLES[name]()
        data = owned.data
        if not isinstance(data, str):
            data = ua.load(
                data, target=owned.target, group=owned.owner, regression=owned.regression
            )
        print(f"| {name} | {' | '.join(compared(data, owned, seeds))} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or list(TABLES))
