"""The closed form of the Local Statistics paper: with the OLS statistic and W = I the model is each client's least squares."""

import pytest
import torch

import unalike as ua
from unalike.core.types import Batch
from unalike.methods.method import Method


def test_conditional_linear_with_identity_and_ols_statistic_is_least_squares():
    features = 10
    clients = ua.partition(
        ua.load("linear_clusters(clusters=3, clients=20)"), "natural(cluster='cluster')"
    )
    model = ua.model(f"conditional_linear(statistic={features + 1})", (features,), None)
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(features + 1).reshape(1, -1))
    method, squares = Method.parse("conditional(statistic='ols')"), []
    for client in clients:
        (x, y), (x_test, y_test) = client.train, client.test
        rows, unseen = (torch.cat([t, torch.ones(len(t), 1)], 1) for t in (x, x_test))
        solution = torch.linalg.lstsq(rows, y[:, None]).solution[:, 0]
        with torch.no_grad():
            predicted = model(x_test, method.describe(Batch(x, y), None))[:, 0]
        torch.testing.assert_close(predicted, unseen @ solution, rtol=1e-3, atol=1e-3)
        squares.append((predicted - y_test).square().mean())
    # noise of deviation 0.1, and 11 coefficients from 100 points: 0.1 sqrt(1 + 11 / 88) = 0.106, the paper's number
    assert float(torch.stack(squares).mean().sqrt()) == pytest.approx(0.106, abs=0.003)


@pytest.mark.parametrize(("statistic", "expected"), [("ols", 0.106), ("covariance", 3.5)])
def test_conditional_linear_solved_exactly_has_the_printed_size_with_least_squares_alone(
    statistic, expected
):
    """The best W of model 1 on all training points. The paper prints 0.127; a covariance from 100 points cannot give it."""
    clients = ua.partition(
        ua.load("linear_clusters(clusters=3, clients=20)"), "natural(cluster='cluster')"
    )
    method, rows = Method.parse(f"conditional(statistic='{statistic}')"), {"train": [], "test": []}
    for client in clients:
        mu = method.describe(Batch(*client.train), None)["conditional"]["statistic"]
        for split, (x, y) in (("train", client.train), ("test", client.test)):
            inputs = torch.cat([x, torch.ones(len(x), 1)], 1)[:, :, None] * mu
            rows[split].append(torch.cat([inputs.flatten(1), y[:, None]], 1).double())
    train, test = (torch.cat(rows[split]) for split in ("train", "test"))
    solution = torch.linalg.lstsq(train[:, :-1], train[:, -1], driver="gelsd").solution
    rmse = float((test[:, :-1] @ solution - test[:, -1]).square().mean().sqrt())
    assert rmse == pytest.approx(expected, rel=0.1)
