"""Numbers computed by hand for what happens on the server: clients' models in, the new model out, everything in
float64."""

import numpy as np
import pytest
from simulation import Server
from two_clients import LAYER, MODEL, TENSOR, A, G, U, W, advanced, entries

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.methods.method import Method


def test_fedavg_two_clients_equal_hand_numbers():
    np.testing.assert_array_equal(entries(advanced("fedavg")), [3.25, 1.5, 6.25, 0, 2.5])


def test_fedlws_one_layer_equals_hand_numbers():
    """One layer w = (3, 4), updates (1, 0) and (0, 3) of equal sizes: mean (1/2, 3/2), differences +-(1/2, -3/2) of
    norm
    sqrt(5/2) = tau; ||u|| = sqrt(5/2), ||w|| = 5: gamma = 5 / (beta 5/2 + 5) = 5/6 for beta = 2/5, w^ = (7/2, 11/2)."""
    start, a, b = ({"bias": v} for v in ([3.0, 4], [4.0, 4], [3.0, 7]))
    for mode, expected in {
        "full": [35 / 12, 55 / 12],
        "only_opt": [3 + 5 / 12, 4 + 15 / 12],
        "only_reg": [7 / 2 - 3 / 6, 11 / 2 - 4 / 6],
    }.items():
        found = advanced(f"fedlws(beta=0.4, mode={mode!r})", [a, b], [1, 1], start)["bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    # beta tau = 2/5 sqrt(5/2) = 0.632 is bounded to 0.2: gamma = 5 / (0.2 sqrt(5/2) + 5); and to at least 1
    for clamp, bound in {(0.01, 0.2): 0.2, (1.0, 2.0): 1.0}.items():
        gamma = 5 / (bound * np.sqrt(2.5) + 5)
        found = advanced(f"fedlws(beta=0.4, clamp={clamp})", [a, b], [1, 1], start)["bias"]
        np.testing.assert_allclose(found, gamma * np.array([3.5, 5.5]), rtol=1e-14)


@pytest.mark.parametrize("scope, groups", [("layer", LAYER), ("tensor", TENSOR), ("model", MODEL)])
@pytest.mark.parametrize("mode", ["full", "only_reg", "only_opt"])
@pytest.mark.parametrize("clamp", [None, (0.01, 0.2), (0.3, 0.4)])
@pytest.mark.parametrize("block", [tree.BLOCK_ENTRIES, 2])
def test_fedlws_scopes_modes_and_clamps_equal_formula(
    scope, groups, mode, clamp, block, monkeypatch
):
    """Section 20: tau from the unweighted mean, u from the weighted one; in one block of columns, and one by one."""
    monkeypatch.setattr(tree, "BLOCK_ENTRIES", block)
    expected = np.empty(5)
    for g in groups:
        w, u = W[g], U[g]
        strength = 0.1 * np.mean([np.linalg.norm(row - G[:, g].mean(0)) for row in G[:, g]])
        if clamp:
            strength = min(max(strength, clamp[0]), clamp[1])
        gamma = np.linalg.norm(w) / (strength * np.linalg.norm(u) + np.linalg.norm(w))
        expected[g] = {
            "full": gamma * (w + u),
            "only_opt": w + gamma * u,
            "only_reg": w + u - (1 - gamma) * w,
        }[mode]
    found = entries(advanced(f"fedlws(scope={scope!r}, mode={mode!r}, clamp={clamp})"))
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_fedlws_zero_layer_or_single_client_is_not_shrunk():
    zero = {"weight": [1.0], "bias": [0.0]}  # one layer each by tensor: the bias has ||w|| = 0
    found = advanced(
        "fedlws(scope='tensor')",
        [{"weight": [2.0], "bias": [1.0]}, {"weight": [1.0], "bias": [3.0]}],
        [1, 1],
        zero,
    )
    assert found["bias"] == [2.0] and 0 < found["weight"][0] < 1.5
    np.testing.assert_array_equal(entries(advanced("fedlws", [A], [1])), entries(A))


def test_fedlws_full_equals_sum_of_only_opt_and_only_reg():
    full, opt, reg, plain = (
        entries(advanced(m))
        for m in ("fedlws", "fedlws(mode='only_opt')", "fedlws(mode='only_reg')", "fedavg")
    )
    np.testing.assert_allclose(full, opt + reg - plain, atol=1e-15)


def test_lws_after_fedavgm_acts_on_optimizer_update():
    """u is what the base method would apply: FedAvgM's velocity, here twice the update with lr = 2."""
    gamma = [
        np.linalg.norm(W[g])
        / (
            0.1
            * np.mean([np.linalg.norm(r - G[:, g].mean(0)) for r in G[:, g]])
            * np.linalg.norm(2 * U[g])
            + np.linalg.norm(W[g])
        )
        for g in LAYER
    ]
    expected = np.concatenate([c * (W + 2 * U)[g] for c, g in zip(gamma, LAYER)])
    np.testing.assert_allclose(entries(advanced("fedavgm(lr=2) + lws")), expected, rtol=1e-13)


def test_fedavgm_three_rounds_equal_torch_sgd():
    """Three rounds against torch.optim.SGD, the update being its negative gradient."""
    import torch

    for nesterov, dampening in ((False, 0.0), (True, 0.0), (False, 0.3)):
        server = Server(
            f"fedavgm(lr=0.7, momentum=0.8, nesterov={nesterov}, dampening={dampening})",
            {"w": [1.0, -2]},
        )
        w = torch.tensor([1.0, -2], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD(
            [w], lr=0.7, momentum=0.8, nesterov=nesterov, dampening=dampening
        )
        for target in ([2.0, 0], [-1.0, 1], [0.5, 0.5]):
            w.grad = w.detach() - torch.tensor(target, dtype=torch.float64)
            optimizer.step()
            found = server.advance([{"w": target}])["w"]
            np.testing.assert_allclose(found, w.detach().numpy(), rtol=1e-12)


def test_fedexp_orthogonal_updates_equal_hand_numbers():
    """Updates (3, 0, 0), (0, 3, 0), (0, 0, 3) of sizes 1, 1, 2: u = (3, 3, 6) / 4, eta = 9 / (2 (27/8 + 1/8)) = 9/7."""
    models = [{"w": row} for row in (3 * np.eye(3)).tolist()]
    server = Server("fedexp(epsilon=0.125)", {"w": [0.0, 0, 0]})
    found = server.advance(models, [1, 1, 2])["w"]
    np.testing.assert_allclose(found, 9 / 7 * np.array([3, 3, 6]) / 4, rtol=1e-14)


def test_fednova_solver_weights_equal_hand_numbers():
    """p = (1/4, 3/4), ||a|| = (2, 6): tau_eff = 5; w + 5 (1/4 g_A / 2 + 3/4 g_B / 6)."""
    expected = W + 5 * (G[0] / 8 + G[1] / 8)
    np.testing.assert_allclose(
        entries(advanced("fednova", weight=[2, 6])), expected, rtol=1e-7
    )  # scalars are float32
    np.testing.assert_array_equal(
        entries(advanced("fednova", weight=[7, 7])), entries(advanced("fedavg"))
    )


@pytest.mark.parametrize("spec", ["fednova", "fedmix(mu=0.5)"])
def test_fednova_normalized_by_steps_equals_hand_numbers_whatever_the_solver_weights(spec):
    """p = (1/4, 3/4), tau = (2, 6): w + 5 (1/4 g_A / 2 + 3/4 g_B / 6)."""
    by_steps = Method.parse(spec).swap("normalized_mean(normalize_by='steps')")
    expected = W + 5 * (G[0] / 8 + G[1] / 8)
    np.testing.assert_allclose(
        entries(advanced(by_steps, steps=[2, 6], weight=[1, 9])), expected, rtol=1e-7
    )
    assert Method.parse("fedmix(normalize_by='steps')") == Method.parse(
        "fedprox + fednova(normalize_by='steps')"
    )
    with pytest.raises(UnalikeError, match="normalize_by='steps'"):
        Method.parse("fednova(prox_aware=True, normalize_by='steps')")


def test_fednova_prox_aware_tiny_mu_is_numerically_stable():
    """alpha = lr mu = 1e-5 (the defaults) and 1e-9: (1 - (1 - alpha)^tau) / alpha = tau - alpha tau (tau - 1) / 2 +
    ...: with tau = (1, 4) w + 5/2 (1/2 * 1 + 1/2 * 2/4), to 1e-4, what is left of alpha and of float32."""
    for lr, mu in ((0.01, 0.001), (0.001, 1e-6)):
        server = Server(f"fedprox(mu={mu}) + fednova(prox_aware=True)", {"w": [1.0]}, lr=lr)
        assert server.advance([{"w": [2.0]}, {"w": [3.0]}], steps=[1, 4])["w"][0] == pytest.approx(
            2.875, rel=1e-4
        )


def test_fednova_unsuitable_optimizers_are_refused_or_warned():
    from unalike.core.work import Work

    with pytest.raises(UnalikeError, match="momentum"):
        Method.parse("fednova(prox_aware=True)").check(Work(momentum=0.9))
    with pytest.warns(UserWarning, match="adam"):
        Method.parse("fednova").check(Work(optimizer="adam"))
    with pytest.warns(UserWarning, match="keep_optimizer_state"):
        Method.parse("fednova").check(Work(momentum=0.9, keep_optimizer_state=True))
    for good in ("fednova", "fedmix"):
        Method.parse(good).check(Work(momentum=0.9))


def test_scaffold_with_client_momentum_warns():
    from unalike.core.work import Work

    with pytest.warns(UserWarning, match="plain SGD"):
        Method.parse("scaffold").check(Work(momentum=0.9))
    Method.parse("scaffold(option=1)").check(Work())
