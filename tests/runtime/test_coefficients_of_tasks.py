"""Coefficients of counts, of times to an event, and beside intercepts of the sites' own, against statsmodels on pooled rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from divided_tables import design, divided
from public_tables import of_r
from statsmodels.duration.hazard_regression import PHReg

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.tasks.survival import tied_share
from unalike.reporting.coefficients import page


def assert_equal(found, pooled, names):
    """The coefficients, errors and p of these terms are those of a fit of statsmodels, to a millionth of an error."""
    ours = found.set_index("term").loc[list(names)]
    theirs = pd.DataFrame({"b": pooled.params, "se": pooled.bse, "p": pooled.pvalues})
    theirs.index = pooled.model.exog_names
    theirs = theirs.loc[list(names)]
    np.testing.assert_allclose(
        ours["coefficient"] / theirs["se"], theirs["b"] / theirs["se"], atol=1e-6
    )
    np.testing.assert_allclose(ours["se"], theirs["se"], rtol=1e-6)
    np.testing.assert_allclose(ours["p"], theirs["p"], atol=1e-6)


def events():
    """Events of 400 persons of four sites, observed for one to thirty days, some hundreds each: far from the start of a fit."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.normal(50, 10, 400),
            "dose": rng.exponential(2, 400),
            "kind": rng.choice(["x", "y", "z"], 400),
            "days": rng.uniform(1, 30, 400).astype(np.float32),
            "site": rng.integers(0, 4, 400),
        }
    )
    rate = np.exp(2 + 0.02 * table["age"] - 0.1 * table["dose"] + 0.3 * (table["kind"] == "y"))
    return table.assign(count=rng.poisson(rate * table["days"])), "count", "site", "days"


def visits():
    """Visits to a doctor of 2000 persons of the RAND experiment, by health; diseases in the place of a time of observation."""
    table = sm.datasets.randhie.load_pandas().data.iloc[::10].reset_index(drop=True)
    table = table.assign(site=table["hlthf"] + table["hlthp"], disea=table["disea"] + 1)
    return table[["mdvis", "lncoins", "idp", "lpi", "disea", "site"]], "mdvis", "site", "disea"


@pytest.mark.parametrize("make", [events, visits])
def test_rate_ratios_equal_those_of_a_poisson_regression_with_offset_on_pooled_rows(make):
    table, target, site, exposure = make()
    clients, rows = divided(table, target, site, offset=f"log({exposure})", task="counts")
    x = design(rows.drop(columns=[target, site, exposure]), clients.encoding)
    offset = np.log(rows[exposure])
    model = sm.GLM(rows[target], x, family=sm.families.Poisson(), offset=offset)
    exactly = {"tol": 1e-12, "maxiter": 100}
    pooled = model.fit(**exactly)
    clusters = {"groups": rows[site].to_numpy()}
    robust = model.fit(cov_type="cluster", cov_kwds=clusters, **exactly)

    run = ua.run("newton", clients, model="linear", rounds=12)
    found = run.coefficients().dropna(subset="se")
    assert_equal(found, pooled, x.columns)
    found = found.set_index("term").loc[x.columns]
    np.testing.assert_allclose((found["robust_se"] - robust.bse) / pooled.bse, 0, atol=1e-5)
    np.testing.assert_allclose(found["rate_ratio"], np.exp(pooled.params), rtol=1e-6)
    np.testing.assert_allclose(
        found[["rate_low", "rate_high"]], np.exp(pooled.conf_int()), rtol=1e-6
    )
    assert len(run.history.rounds) < 12, "the run ends when it has converged"


def relapses():
    """Times in whole days, with ties, of 300 patients of three sites whose baseline hazards differ; a third are censored."""
    rng = np.random.default_rng(1)
    age = rng.normal(60, 8, 300)
    arm = rng.choice(["control", "treated"], 300)
    site = rng.integers(0, 3, 300)
    time = rng.exponential(200 * np.exp(-0.03 * (age - 60) + 0.5 * (arm == "treated") - 0.7 * site))
    end = rng.exponential(300, 300)
    event = time <= end
    days = np.ceil(np.minimum(time, end))
    return (
        pd.DataFrame(
            {"age": age, "arm": arm, "days": days, "event": event.astype(int), "site": site}
        ),
        "days",
        "event",
        "site",
    )


def transplants():
    """Survival of 69 patients after a transplant of the heart, by two halves of the study."""
    table = sm.datasets.heart.load_pandas().data
    table = table.assign(half=np.arange(len(table)) % 2, censors=table["censors"].astype(int))
    return table, "survival", "censors", "half"


def lung():
    """Survival of 226 patients of 18 institutions, some of which have a few patients; some losses of weight are missing."""
    table = of_r("survival", "cancer")
    table = table.dropna(subset=["inst", "ph.ecog"])
    table = table.assign(inst=table["inst"].astype(int), died=(table["status"] == 2).astype(int))
    return (
        table[["time", "died", "inst", "age", "sex", "ph.ecog", "wt.loss"]],
        "time",
        "died",
        "inst",
    )


@pytest.mark.filterwarnings("ignore:.* clients have fewer samples")
@pytest.mark.parametrize("make", [relapses, transplants, lung])
def test_hazard_ratios_equal_those_of_a_cox_model_that_is_stratified_by_site(make):
    table, time, event, site = make()
    clients, rows = divided(table, (), site, time=time, event=event, task="survival")
    x = design(rows.drop(columns=[time, event, site]), clients.encoding).drop(columns="(intercept)")
    model = PHReg(
        rows[time].to_numpy(np.float32), x, status=rows[event], strata=rows[site], ties="breslow"
    )
    pooled = model.fit(method="newton", disp=0, tol=1e-12)

    run = ua.run("newton", clients, model="linear", rounds=12)
    found = run.coefficients().dropna(subset="se")
    assert set(found["term"]) == set(x.columns), "a Cox model has no intercept"
    assert_equal(found, pooled, x.columns)
    assert "Hazard ratio" in page(found, title="", about="", notes=[])
    found = found.set_index("term").loc[x.columns]
    np.testing.assert_allclose(found["hazard_ratio"], np.exp(pooled.params), rtol=1e-6)
    low, high = np.exp(pooled.conf_int()).T
    np.testing.assert_allclose(found["hazard_low"], low, rtol=1e-6)
    np.testing.assert_allclose(found["hazard_high"], high, rtol=1e-6)


def test_coarse_times_are_noted_with_what_breslows_ties_lose_against_efrons():
    table, time, event, site = relapses()
    label = {"time": time, "event": event, "task": "survival"}
    coarse = table.assign(days=np.ceil(table[time] / 60))
    age = table[["age"]].to_numpy()
    fits = []
    for ties in ("breslow", "efron"):
        model = PHReg(coarse[time], age, status=table[event], ties=ties)
        fits.append(model.fit(disp=0).params[0])
    loss = 1 - fits[0] / fits[1]
    found = tied_share(coarse[time].to_numpy(), table[event].to_numpy())
    assert found == pytest.approx(loss, rel=0.25) and loss > 0.05

    said = f"log hazard ratios some {100 * found:.0f} % too small"
    with pytest.warns(UserWarning, match=said):
        ua.load(coarse, group=site, **label)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ua.load(table, group=site, **label)


def test_samples_without_an_event_have_no_coefficients():
    table, time, event, site = relapses()
    clients, _ = divided(table.assign(event=0), (), site, time=time, event=event, task="survival")
    run = ua.run("newton", clients, model="linear", rounds=2)
    with pytest.raises(UnalikeError, match="determine no coefficient; expected events"):
        run.coefficients()


def test_hazard_ratios_without_ties_equal_those_of_lifelines():
    """Made once by lifelines 0.30.3, whose ties are Efron's, on `design` of the pooled rows with their days, event and site:

    CoxPHFitter().fit(rows, "days", "event", strata=["site"], fit_options={"precision": 1e-12}).summary[["coef", "se(coef)"]]
    """
    table, time, event, site = relapses()
    without_ties = table.assign(days=table[time] + np.arange(len(table)) / 1000)
    clients, _ = divided(without_ties, (), site, time=time, event=event, task="survival")
    run = ua.run("newton", clients, model="linear", rounds=12)
    found = run.coefficients().set_index("term").loc[["age", "arm=treated"]]
    assert found["coefficient"].tolist() == pytest.approx([0.0306308744, -0.3578275608], rel=1e-6)
    assert found["se"].tolist() == pytest.approx([0.0127374788, 0.1664580089], rel=1e-6)


def test_intercepts_of_the_sites_own_are_those_of_a_dummy_for_each_site():
    """Logit of `events`: whether a person had many events. The site's own intercept is in its personal model alone."""
    table, target, site, exposure = events()
    table = table.assign(many=table[target] > table[target].median()).drop(
        columns=[target, exposure]
    )
    clients, rows = divided(table, "many", site)
    dummies = pd.get_dummies(rows[site], dtype=float)
    x = design(rows.drop(columns=["many", site]), clients.encoding).drop(columns="(intercept)")
    model = sm.Logit(rows["many"].astype(int), pd.concat([x, dummies], axis=1))
    exactly = {"method": "newton", "tol": 1e-12, "maxiter": 100, "disp": 0}
    pooled = model.fit(**exactly)
    clusters = {"groups": rows[site].to_numpy()}
    robust = model.fit(cov_type="cluster", cov_kwds=clusters, **exactly)

    run = ua.run("newton_own_intercepts", clients, model="logistic", rounds=12)
    found = run.coefficients().dropna(subset="se")
    assert set(found["term"]) == set(x.columns)
    assert_equal(found, pooled, x.columns)
    found = found.set_index("term").loc[x.columns]
    np.testing.assert_allclose(found["robust_se"], robust.bse[x.columns], rtol=1e-5)

    for number, name in enumerate(clients.names):
        its = rows[rows[site] == int(name)]
        ours = run.predict(its.drop(columns=["many", site]), client=number)["probability_True"]
        theirs = pooled.predict(model.exog[(rows[site] == int(name)).to_numpy()])
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_own_intercepts_of_small_sites_are_said_to_make_coefficients_too_large():
    table, target, site, exposure = events()
    is_many = table[target] > table[target].median()
    small = table.assign(many=is_many, site=table.index // 20).drop(columns=[target, exposure])
    clients, _ = divided(small, "many", site)
    run = ua.run("newton_own_intercepts", clients, model="logistic", rounds=12)
    with pytest.warns(UserWarning, match="15 samples per site, each with an intercept of its own"):
        run.coefficients()


def test_errors_of_a_regression_count_the_intercepts_of_the_sites_own():
    table, target, site, _ = events()
    clients, rows = divided(table.assign(count=np.log1p(table[target])), target, site)
    x = design(rows.drop(columns=[target, site]), clients.encoding).drop(columns="(intercept)")
    dummies = pd.get_dummies(rows[site], dtype=float)
    pooled = sm.OLS(rows[target], pd.concat([x, dummies], axis=1)).fit()
    run = ua.run("newton_own_intercepts", clients, model="linear", rounds=6)
    assert_equal(run.coefficients().dropna(subset="se"), pooled, x.columns)


def test_cox_model_has_no_intercept_to_give_to_a_site():
    table, time, event, site = relapses()
    clients, _ = divided(table, (), site, time=time, event=event, task="survival")
    with pytest.raises(UnalikeError, match=r"a task or a model without intercepts.*use newton"):
        ua.run("newton_own_intercepts", clients, model="linear", rounds=1)
