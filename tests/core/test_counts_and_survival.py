"""Losses and metrics of counts, event times and several labels, against direct formulas and other libraries."""

import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.tasks.registry import find_task
from unalike.core.tasks.survival import uncensored_before
from unalike.core.types import Batch
from unalike.metrics.metrics import measure
from unalike.metrics.scoring import score

EVENT_TIMES = torch.tensor([[3.0, 1], [1, 1], [2, 0], [2, 1], [5, 0], [2, 1]])
"""Times with ties, two of them censored."""
RISKS = torch.tensor([0.3, 1.1, -0.4, 0.9, -1.0, 0.2])


def scores_of(task, logits, y, client=None):
    owners = np.zeros(len(y), np.int64) if client is None else np.array(client)
    return score(task, lambda x: x, logits, y, owners, logits=True)


def direct_contributions(z, y):
    """event_i (log sum_{j: t_j >= t_i} exp z_j - z_i), term by term."""
    terms = []
    for i in range(len(z)):
        at_risk = [math.exp(z[j]) for j in range(len(z)) if y[j, 0] >= y[i, 0]]
        terms.append(float(y[i, 1]) * (math.log(sum(at_risk)) - float(z[i])))
    return torch.tensor(terms)


def test_cox_losses_are_the_partial_likelihood_with_breslow_ties():
    task = find_task("survival")
    torch.testing.assert_close(
        task.losses(RISKS[:, None], EVENT_TIMES), direct_contributions(RISKS, EVENT_TIMES)
    )
    # rows of padding are in no risk set, whatever they hold
    padded = torch.cat([EVENT_TIMES, torch.tensor([[9.0, 1]])])
    weight = torch.tensor([1.0] * 6 + [0])
    logits = torch.cat([RISKS, torch.tensor([50.0])]).requires_grad_()
    loss = task.batch_loss(logits, Batch(logits, padded, weight))
    torch.testing.assert_close(loss, direct_contributions(RISKS, EVENT_TIMES).mean())
    [gradient] = torch.autograd.grad(loss, logits)
    assert gradient[-1] == 0 and gradient.isfinite().all()


def test_scores_of_cox_have_the_risk_sets_of_clients():
    task = find_task("survival")
    y = torch.cat([EVENT_TIMES, EVENT_TIMES + torch.tensor([10.0, 0])])
    z = torch.cat([RISKS, -RISKS])
    owners = [0, 1] * 6
    losses = scores_of(task, z, y, owners).loss
    for owner in (0, 1):
        wanted = direct_contributions(z[owner::2], y[owner::2])
        np.testing.assert_allclose(losses[owner::2], wanted, rtol=1e-5)


def test_c_index_is_the_share_of_ordered_pairs():
    y = EVENT_TIMES.numpy()
    pairs = concordant = 0.0
    for i in range(6):
        for j in range(6):
            outlasts = y[j, 0] > y[i, 0] or (y[j, 0] == y[i, 0] and not y[j, 1])
            if i != j and y[i, 1] and outlasts:
                pairs += 1
                concordant += (RISKS[i] > RISKS[j]) + 0.5 * (RISKS[i] == RISKS[j])
    found = measure(find_task("survival"), scores_of(find_task("survival"), RISKS, EVENT_TIMES))
    assert pairs == 5 + 3 + 3 + 1  # those that outlast the events at 1, 2, 2 and 3
    assert found["c_index"] == pytest.approx(float(concordant / pairs))
    alike = measure(find_task("survival"), scores_of(find_task("survival"), 0 * RISKS, EVENT_TIMES))
    assert alike["c_index"] == 0.5


def test_discrete_survival_by_hand():
    task = find_task("discrete_survival(edges=[2, 4])")
    assert task.spec == "discrete_survival(edges=(2.0, 4.0))" and find_task(task.spec) == task
    assert task.outputs(None, (2,)) == 2
    hazards = torch.tensor([0.2, 0.5])
    y = torch.tensor([[1.0, 1], [2, 1], [3, 0], [4, 1]])
    logits = hazards.logit().expand(4, 2)
    # an event in the first interval; in the second; censored in the second; both survived
    wanted = [-math.log(0.2), -math.log(0.8 * 0.5), -math.log(0.8), -math.log(0.8 * 0.5)]
    torch.testing.assert_close(task.losses(logits, y), torch.tensor(wanted))
    torch.testing.assert_close(task.predict(logits), torch.full((4,), 1 - 0.8 * 0.5))

    # At 2 all are known: (0.8)^2 / 4 for the event, (1 - 0.8)^2 / 4 for each of three survivors. At 4 the third one is not
    # known, and the one who was as long at risk, and is known, counts twice.
    first = (0.8**2 + 3 * 0.2**2) / 4
    second = (0.4**2 + 0.4**2 + 2 * 0.6**2) / 4
    found = measure(task, scores_of(task, logits, y))
    assert found["integrated_brier"] == pytest.approx((first + second) / 2, rel=1e-5)
    with pytest.raises(UnalikeError, match=r"edges=\(4, 2\), expected numbers above 0 in asc"):
        find_task("discrete_survival(edges=(4, 2))")


def test_share_that_is_not_censored_is_that_of_kaplan_and_meier():
    time = np.array([1.0, 2, 2, 3, 4])
    event = np.array([0, 1, 0, 0, 1])
    # of five, one is censored at 1; of three without an event then, one at 2; of two, one at 3
    shares = uncensored_before(np.array([1.0, 1.5, 2, 3, 3.5]), time, event)
    np.testing.assert_allclose(shares, [1, 4 / 5, 4 / 5, 4 / 5 * 2 / 3, 4 / 5 * 2 / 3 * 1 / 2])


def test_counts_have_the_poisson_likelihood_and_deviance():
    task = find_task("counts")
    y = torch.tensor([[0.0, 0], [3, math.log(2)], [1, -0.5]])
    z = torch.tensor([0.1, 0.2, -0.3])
    expected = (z + y[:, 1]).exp()
    wanted = -torch.distributions.Poisson(expected).log_prob(y[:, 0])
    torch.testing.assert_close(task.losses(z[:, None], y), wanted)
    torch.testing.assert_close(task.predict(z[:, None]), z.exp())
    found = measure(task, scores_of(task, z[:, None], y))
    assert found["poisson_deviance"] == pytest.approx(
        sk.mean_poisson_deviance(y[:, 0], expected), rel=1e-5
    )
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(y[:, 0], expected), rel=1e-5)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y[:, 0], expected), rel=1e-5)
    # 4 events in 1 + 2 + exp(-0.5) units
    assert f"{4 / (3 + math.exp(-0.5)):.4g}" in task.constant_prediction(y, y, None)


def test_newton_fits_counts_as_a_generalized_linear_model():
    from statsmodels.genmod.families import Poisson
    from statsmodels.genmod.generalized_linear_model import GLM

    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2)).astype(np.float32)
    log_exposure = rng.uniform(0, 1, 120)
    counts = rng.poisson(np.exp(x[:, 0] / 2 + log_exposure))
    y = np.column_stack([counts, log_exposure])
    clients = [ua.ClientData(train=(x[rows], y[rows])) for rows in np.split(np.arange(120), [50])]
    run = ua.run("newton", ua.Population.of(clients, task="counts"), model="linear", rounds=8)
    table = run.coefficients()
    columns = np.column_stack([np.ones(120), x])
    fit = GLM(counts, columns, family=Poisson(), offset=log_exposure).fit()
    np.testing.assert_allclose(table["coefficient"], fit.params, rtol=1e-4)
    np.testing.assert_allclose(table["se"], fit.bse, rtol=1e-4)


def test_metrics_of_several_labels_and_amounts_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(50, 4)).astype(np.float32))
    y = torch.from_numpy(rng.normal(size=(50, 4)) + logits.numpy() > 0.5)
    guess = logits > 0
    found = measure(find_task("multilabel"), scores_of(find_task("multilabel"), logits, y))
    assert found["subset_accuracy"] == pytest.approx(sk.accuracy_score(y, guess))
    assert found["micro_f1"] == pytest.approx(sk.f1_score(y, guess, average="micro"))
    assert found["label_f1"] == pytest.approx(sk.f1_score(y, guess, average="macro"))
    assert found["label_roc_auc"] == pytest.approx(sk.roc_auc_score(y, logits))

    amounts = torch.from_numpy(rng.normal(size=(50, 4)).astype(np.float32)) * torch.arange(1, 5)
    found = measure(find_task("amounts"), scores_of(find_task("amounts"), logits, amounts))
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(amounts, logits), rel=1e-5)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(amounts, logits), rel=1e-5)
    assert found["r2"] == pytest.approx(sk.r2_score(amounts, logits), rel=1e-5)


@pytest.mark.parametrize(
    "task, y, fault",
    [
        ("survival", [[1.0, 2.0]], "found events other than 0 and 1"),
        ("survival", [[-1.0, 1.0]], "found the time -1, expected times of 0 or more"),
        ("survival", [1.0], r"y has shape \[1\], expected \[N, 2\], the time and 1 for an event"),
        ("counts", [-1], "counts are whole numbers of 0 or more"),
        ("counts", [[1.0, 0, 0]], r"expected counts \[N\], or \[count, log exposure\]"),
        ("multilabel", [[0, 2]], "which task multilabel cannot take; expected bool"),
    ],
)
def test_labels_that_a_task_cannot_have_are_refused(task, y, fault):
    with pytest.raises(UnalikeError, match=fault):
        ua.Dataset("own", (np.ones((len(y), 2), np.float32), np.array(y)), task=task)


def test_method_that_needs_losses_of_single_samples_refuses_risk_sets():
    x = np.ones((6, 2), np.float32)
    population = ua.Population.of([ua.ClientData(train=(x, EVENT_TIMES))], task="survival")
    with pytest.raises(UnalikeError, match="dp_sgd needs a loss of each sample by itself"):
        ua.run("dp_sgd", population, model="linear", rounds=1)
