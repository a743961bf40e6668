"""Coefficients of `newton` on divided tables, against statsmodels on the pooled rows."""

import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from divided_tables import design, divided

import unalike as ua
from unalike._utils.errors import UnalikeError


def fair():
    """Affairs of 6366 women, by occupation: two classes."""
    table = sm.datasets.fair.load_pandas().data
    affairs = table["affairs"] > 0
    return (
        table.assign(affairs=affairs, occupation=table["occupation"].astype(int)),
        "affairs",
        "occupation",
    )


def anes96():
    """Parties of 944 voters, by education: three classes."""
    table = sm.datasets.anes96.load_pandas().data.drop(columns=["popul", "vote", "income"])
    party = pd.cut(table["PID"], [-1, 2, 3, 6], labels=["D", "I", "R"]).astype(str)
    return table.assign(PID=party, educ=table["educ"].astype(int)), "PID", "educ"


def grunfeld():
    """Investments of 11 firms: a regression."""
    table = sm.datasets.grunfeld.load_pandas().data.drop(columns="year")
    return table.assign(invest=table["invest"] / 100), "invest", "firm"


def modechoice():
    """Choices of 210 travellers, by the size of their party: a category in words, and a column with missing numbers."""
    table = sm.datasets.modechoice.load_pandas().data
    modes = table["mode"].map({1: "air", 2: "train", 3: "bus", 4: "car"})
    income = table["hinc"].mask(table["individual"] % 7 == 0)
    table = table.assign(
        mode=modes, hinc=income, psize=table["psize"].astype(int), choice=table["choice"] > 0
    )
    return table[["choice", "ttme", "invt", "hinc", "mode", "psize"]], "choice", "psize"


@pytest.mark.filterwarnings("ignore:.* clients have fewer samples")
@pytest.mark.parametrize("make", [fair, anes96, grunfeld, modechoice])
def test_coefficients_and_errors_equal_those_of_statsmodels_on_pooled_rows(make):
    table, target, site = make()
    clients, rows = divided(table, target, site)
    x = design(rows.drop(columns=[target, site]), clients.encoding)
    clusters = {"groups": rows[site].astype("category").cat.codes.to_numpy()}
    if clients.classes is None:
        model = sm.OLS(rows[target], x)
        exactly = {}
    else:
        model = sm.MNLogit(rows[target].astype("category").cat.codes, x)
        exactly = {"method": "newton", "tol": 1e-12, "maxiter": 100, "disp": 0}
    pooled = model.fit(**exactly)
    robust = model.fit(cov_type="cluster", cov_kwds=clusters, **exactly)

    run = ua.run(
        "newton", clients, model="linear" if clients.classes is None else "logistic", rounds=10
    )
    ours = run.coefficients().dropna(subset="se")

    def columns(name):
        by_outcome = ours.pivot(index="term", columns="outcome", values=name)
        return by_outcome.loc[x.columns].to_numpy()

    def theirs(values):
        return np.asarray(values).reshape(len(x.columns), -1)

    errors = theirs(pooled.bse)
    np.testing.assert_allclose(
        columns("coefficient") / errors, theirs(pooled.params) / errors, atol=1e-6
    )
    np.testing.assert_allclose(columns("se"), errors, rtol=1e-6)
    np.testing.assert_allclose(columns("robust_se"), theirs(robust.bse), rtol=1e-6)
    np.testing.assert_allclose(columns("p"), theirs(pooled.pvalues), atol=1e-6)
    assert len(run.history.rounds) <= 8, "the run ends when it has converged"


def test_interval_of_regression_is_that_of_t_tests_and_has_no_odds_ratio():
    clients, rows = divided(*grunfeld())
    pooled = sm.OLS(rows["invest"], design(rows[["value", "capital"]], clients.encoding)).fit()
    table = ua.run("newton", clients, model="linear", rounds=5).coefficients().set_index("term")
    np.testing.assert_allclose(
        table[["low", "high"]], pooled.conf_int().loc[table.index], rtol=1e-5
    )
    assert "odds_ratio" not in table


def separated():
    """Outcomes of two sites that the sign of `dose` tells, but for none of its values; `age` does not."""
    rng = np.random.default_rng(0)
    dose = rng.normal(size=80)
    table = pd.DataFrame(
        {"dose": dose, "age": rng.normal(size=80), "sick": dose > 0, "site": ["a", "b"] * 40}
    )
    return divided(table, "sick", "site")[0]


def test_separated_class_is_refused_and_a_penalty_is_proposed_that_works():
    clients = separated()
    run = ua.run("newton", clients, model="logistic", rounds=12)
    with pytest.raises(
        UnalikeError, match=r"no coefficient has converged; a class is separated.*newton\(l2=0.1\)"
    ):
        run.coefficients()
    penalized = ua.run("newton(l2=0.1)", clients, model="logistic", rounds=20).coefficients()
    assert penalized["coefficient"].notna().all()


def test_constant_and_doubled_columns_are_named_and_the_others_have_coefficients():
    table, target, site = grunfeld()
    clients, rows = divided(table.assign(again=2 * table["value"]), target, site)
    pooled = sm.OLS(
        rows[target], design(rows[["value", "capital"]], divided(table, target, site)[0].encoding)
    ).fit()
    run = ua.run("newton", clients, model="linear", rounds=5)
    with pytest.warns(UserWarning, match="no coefficient of value, again: .* sums of others"):
        found = run.coefficients().set_index("term")["coefficient"]
    assert found[["value", "again"]].isna().all()
    np.testing.assert_allclose(found["capital"], pooled.params["capital"], rtol=1e-5)


def test_clients_with_fewer_samples_than_coefficients_are_counted():
    table, target, site = grunfeld()
    features = {f"noise{k}": np.random.default_rng(k).normal(size=len(table)) for k in range(20)}
    clients, _ = divided(table.assign(**features), target, site)
    run = ua.run("newton", clients, model="linear", rounds=5)
    with pytest.warns(
        UserWarning,
        match=re.escape("11 of 11 firms have fewer samples than the model has coefficients (23)"),
    ):
        run.coefficients()


@pytest.mark.parametrize(
    "method, model, said",
    [("fedavg", "logistic", "give method='newton'"), ("newton", "mlp", "layers below its head")],
)
def test_other_methods_and_models_have_no_table(method, model, said):
    run = ua.run(method, separated(), model=model, rounds=1)
    with pytest.raises(UnalikeError, match=said):
        run.coefficients()


def test_folder_of_a_run_gives_the_same_table(tmp_path):
    clients, _ = divided(*grunfeld())
    run = ua.run("newton", clients, model="linear", rounds=5, out=tmp_path)
    pd.testing.assert_frame_equal(ua.open_run(tmp_path).coefficients(), run.coefficients())
