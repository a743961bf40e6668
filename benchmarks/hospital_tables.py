"""Public tables of hospitals, branches and shops: methods of rounds beside models that are fitted alone and on pooled rows.

    make tables
    python benchmarks/hospital_tables.py [seeds, 3 unless given] [tables, all unless given]

Prints a row for each table: the mean ROC AUC over seeds in percent, of all test rows or the mean of the sites, and the answer to
"together, or alone?".
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

METHODS = ["fedavg", "newton(l2=1)", "local_only", "centralised"]
REFERENCES = ["alone(logistic)", "alone(forest)", "pooled(logistic)", "pooled(boosting)"]
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
    """A table with its target, the column of its owners, and how a score of all owners is taken."""

    table: pd.DataFrame
    target: str
    owner: str
    across: str = "pooled"


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


TABLES: dict[str, Callable[[], Owned]] = {
    "loanapp": loanapp,
    "Caravan": caravan,
    "medpar": medpar,
    "OJ": orange_juice,
    "cgd": cgd,
}


def compared(data: ua.Dataset | str, across: str, seeds: int) -> list[str]:
    """The scores of methods and references, and the answer."""
    found = ua.compare(
        METHODS,
        data=data,
        model="logistic",
        rounds=ROUNDS,
        metric="roc_auc",
        across=across,
        seeds=seeds,
        progress=False,
    )
    # of the protocols the last one is that of the models that sites use
    in_use = found.summary.drop_duplicates("method", keep="last")
    of_methods = in_use.set_index("method")["roc_auc"]
    of_references = references(found.content()).set_index("method")["roc_auc"]
    cells = [f"{100 * of_methods[method]:.1f}" for method in METHODS]
    cells += [f"{100 * of_references[reference]:.1f}" for reference in REFERENCES]
    return [*cells, found.together_or_alone().verdict]


def main(seeds: int, names: Sequence[str]) -> None:
    """Print the table, row by row."""
    warnings.simplefilter("ignore")
    heads = ["table", *METHODS, *REFERENCES, "together, or alone?"]
    print(f"| {' | '.join(heads)} |")
    print(f"|{' --- |' * len(heads)}")
    for name in names:
        if name == "heart disease":
            cells = compared("heart_disease", "clients", seeds)
        else:
            owned = TABLES[name]()
            data = ua.load(owned.table, target=owned.target, group=owned.owner)
            cells = compared(data, owned.across, seeds)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or ["heart disease", *TABLES])
