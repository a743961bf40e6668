"""Harmonization of sites: equal to ComBat on pooled samples, written here with a design matrix; what it removes and keeps."""

import numpy as np
import pytest
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.data.harmonization import estimate, harmonized, site_sums

SIZES = (60, 25, 40)
AGE = 0
COLUMNS = (1, 2, 3, 4)


def samples(shift=3.0, seed=0):
    """Three sites of a column, age, that has an effect on four others, and differs between sites as these do."""
    rng = np.random.default_rng(seed)
    sites = []
    for k, n in enumerate(SIZES):
        age = rng.normal(k, 1.0, n)
        noise = rng.normal(size=(n, len(COLUMNS)))
        shifts = shift * (k - 1) + 0.1 * rng.normal(size=len(COLUMNS))
        values = 2.0 * age[:, None] + shifts + (1 + shift * k / 3) * noise
        sites.append(np.column_stack([age, values]))
    return sites


def pooled_combat(sites):
    """ComBat of all rows at once (Johnson et al. 2007, section 3): the columns without age, [N, G]."""
    x = np.concatenate(sites)
    site = np.repeat(np.arange(len(sites)), [len(s) for s in sites])
    y = x[:, COLUMNS]
    design = np.column_stack([site[:, None] == np.arange(len(sites)), x[:, AGE]]).astype(float)
    coefficients, *_ = np.linalg.lstsq(design, y, rcond=None)
    alpha = (design[:, :-1] @ coefficients[:-1]).mean(0)
    sigma = np.sqrt(((y - design @ coefficients) ** 2).mean(0))
    kept = alpha + x[:, [AGE]] @ coefficients[-1:]
    z = (y - kept) / sigma
    result = np.empty_like(y)
    for k in range(len(sites)):
        of_site = z[site == k]
        n = len(of_site)
        gamma_hat, delta_hat = of_site.mean(0), of_site.var(0, ddof=1)
        m, t = gamma_hat.mean(), gamma_hat.var(ddof=1)
        v, s = delta_hat.mean(), delta_hat.var(ddof=1)
        a, b = (2 * s + v**2) / s, (v * s + v**3) / s
        gamma, delta = gamma_hat, delta_hat
        for _ in range(500):
            gamma = (n * t * gamma_hat + delta * m) / (n * t + delta)
            delta = (((of_site - gamma) ** 2).sum(0) / 2 + b) / (n / 2 + a - 1)
        result[site == k] = kept[site == k] + sigma * (of_site - gamma) / np.sqrt(delta)
    return result


def corrected(sites):
    sites = [torch.from_numpy(x) for x in sites]
    sums = [site_sums(x, COLUMNS, [AGE]) for x in sites]
    common = estimate(sums, sites[0].shape[1], COLUMNS, [AGE])
    return [common.corrected(x, common.effects(s)).numpy() for x, s in zip(sites, sums)]


def test_harmonization_from_sums_equals_combat_of_the_pooled_samples():
    sites = samples()
    after = np.concatenate(corrected(sites))
    np.testing.assert_allclose(after[:, COLUMNS], pooled_combat(sites), rtol=0, atol=1e-8)
    assert np.array_equal(after[:, AGE], np.concatenate(sites)[:, AGE])


def moments(sites):
    """Means and deviations, by site, of what age does not explain with its true effect."""
    residuals = [x[:, COLUMNS] - 2.0 * x[:, [AGE]] for x in sites]
    return np.array([r.mean() for r in residuals]), np.array([r.std() for r in residuals])


def test_harmonized_clients_lose_the_effect_of_the_site_and_keep_that_of_age():
    sites = samples()
    labels = [np.arange(len(x)) % 2 for x in sites]
    clients = [ua.ClientData(train=(x, y), test=(x[:5], y[:5])) for x, y in zip(sites, labels)]
    population = harmonized(ua.Population.of(clients), kept=[AGE])
    after = [client.train[0].double().numpy() for client in population]
    assert np.ptp(moments(sites)[0]) > 5
    assert np.ptp(moments(sites)[1]) > 1
    assert np.ptp(moments(after)[0]) < 0.5
    assert np.ptp(moments(after)[1]) < 0.5
    for before, client in zip(sites, population):
        np.testing.assert_allclose(client.train[0][:, AGE], before[:, AGE], rtol=1e-6)
        np.testing.assert_array_equal(client.test[0], client.train[0][:5])


def test_inputs_without_site_effects_change_little():
    rng = np.random.default_rng(1)
    sites = [rng.normal(size=(400, 5)) for _ in range(3)]
    for x, after in zip(sites, corrected(sites)):
        assert np.sqrt(((after - x) ** 2).mean()) < 0.1


@pytest.mark.parametrize(
    ("columns", "kept", "message"),
    [([1], [0], "two columns or more"), ([1, 2], [5], "kept columns .5. are constant"),
     ([1, 5], [0], "columns .5. are constant"), (None, [-1], "positions from 0 to 5"),
     ([1, 2, 6], [0], "positions from 0 to 5"), ([1, 2, 2], [0], "each once")],
)  # fmt: skip
def test_columns_that_cannot_be_corrected_are_refused(columns, kept, message):
    sites = [np.column_stack([x, np.full(len(x), 7.0)]) for x in samples()]
    clients = [ua.ClientData(train=(x, np.arange(len(x)) % 2)) for x in sites]
    with pytest.raises(UnalikeError, match=message):
        harmonized(ua.Population.of(clients), columns, kept=kept)
