"""Test helper: tables that are divided among sites, and what a statistician makes of the pooled rows."""

import numpy as np
import pandas as pd
import statsmodels.api as sm

import unalike as ua


def divided(table, target, site, **label):
    """The table by site, and its training rows, pooled. `label` are more options of `ua.load` about the label."""
    data = ua.load(table.assign(row=range(len(table))), target=target, group=[site, "row"], **label)
    clients = ua.partition(data, f"natural(column={site!r})")
    trained = np.concatenate(list(clients.train))
    return clients, table.iloc[data.groups["row"][trained]]


def design(features, encoding):
    """A statistician's columns: an intercept, numbers with a mark where one was missing, and categories without the first."""
    marks = {f"{n.name}=(missing)": features[n.name].isna() for n in encoding.numbers if n.gaps}
    filled = features.fillna({n.name: n.fill for n in encoding.numbers})
    columns = pd.get_dummies(filled, prefix_sep="=", drop_first=True).assign(**marks)
    return sm.add_constant(columns.astype(float)).rename(columns={"const": "(intercept)"})
