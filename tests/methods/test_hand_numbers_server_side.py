"""Numbers by hand for server optimizers, shrinking, weights and learned aggregation: the equations in numpy, in
float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from simulation import Clients, Server, Simulation, advance, mlp, plane, same
from two_clients import LAYER, TENSOR, A, B, U, W, advanced, entries

from unalike._utils.errors import UnalikeError
from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.registry import find_task
from unalike.core.types import Batch, ClientUpdate
from unalike.core.views import Cohort, Members

# --- server optimizers ------------------------------------------------------------------------------------------------

RULES = {
    "fedadam": lambda v, d: 0.99 * v + 0.01 * d**2,
    "fedyogi": lambda v, d: v - 0.01 * d**2 * np.sign(v - d**2),
    "fedadagrad": lambda v, d: v + d**2,
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("b1", [0.9, 0.0])
def test_adaptive_server_optimizer_three_rounds_equal_formula(name, b1):
    """Section 2, three rounds of one client: m <- b1 m + (1 - b1) D, w+ = w + lr m / (sqrt v + tau)."""
    server = Server(f"{name}(lr=0.3, b1={b1}, tau=0.01)", {"w": [1.0, -2.0]})
    w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for target in ([2.0, 0.0], [-1.0, -2.0], [0.5, 0.5]):
        d = np.array(target) - w
        m, v = b1 * m + (1 - b1) * d, RULES[name](v, d)
        w = w + 0.3 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(server.advance([{"w": target}])["w"], w, rtol=1e-12)


def test_adaptive_server_optimizer_default_first_round_equals_hand_numbers():
    """D = 1: Adam m = 1/10, v = 1/100 -> 0.1 * 0.1 / 0.101; Yogi the same, as v = 0 - 0.01 * 1 * sign(-1); Adagrad m =
    v = 1 -> 0.1 / 1.001."""
    for name, expected in {
        "fedadam": 0.01 / 0.101,
        "fedyogi": 0.01 / 0.101,
        "fedadagrad": 0.1 / 1.001,
    }.items():
        found = Server(name, {"w": [0.0]}).advance([{"w": [1.0]}])["w"][0]
        assert found == pytest.approx(expected, rel=1e-12)


def test_fedyogi_and_fedadam_shrinking_updates_differ():
    """v = 0.01 after D = 1; then D = 0.05, D^2 = 0.0025: Adam 0.0099 + 0.000025, Yogi 0.01 - 0.000025."""
    for name, v in {"fedadam": 0.009925, "fedyogi": 0.009975}.items():
        server = Server(name + "(b1=0, lr=1)", {"w": [0.0]})
        w = server.advance([{"w": [1.0]}])["w"][0]
        again = server.advance([{"w": [w + 0.05]}])["w"][0]
        assert again - w == pytest.approx(0.05 / (np.sqrt(v) + 1e-3), rel=1e-9)


def test_adaptive_server_optimizer_bias_correction_equals_formula():
    """Adam's: lr sqrt(1 - b2^t) / (1 - b1^t); in round 1 sqrt(0.01) / 0.1 = 1. Adagrad's v has no bias."""
    moved = {}
    for name in ("fedadam", "fedadagrad(b1=0.9)"):
        for on in (False, True):
            text = name.rstrip(")") + ("," if "(" in name else "(") + f"bias_correction={on})"
            server = Server(text, {"w": [0.0]})
            first = server.advance([{"w": [1.0]}])["w"][0]
            moved[name, on] = first, server.advance([{"w": [first + 1.0]}])["w"][0] - first
    (a, b), (c, d) = moved["fedadam", False], moved["fedadam", True]
    assert c / a == pytest.approx(1.0) and d / b == pytest.approx(
        np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    )
    (a, b), (c, d) = moved["fedadagrad(b1=0.9)", False], moved["fedadagrad(b1=0.9)", True]
    assert c / a == pytest.approx(10.0) and d / b == pytest.approx(1 / 0.19)


# --- shrinking --------------------------------------------------------------------------------------------------------


def test_fixed_shrink_second_layer_is_scaled_and_never_below_zero():
    """gamma = 1 for the first layer, 1 - 0.1 for the second; never below 0."""
    np.testing.assert_allclose(
        entries(advanced("fixed_shrink(step=0.1)")), [3.25, 1.5, 6.25, 0, 2.25], rtol=1e-15
    )
    np.testing.assert_allclose(
        entries(advanced("fixed_shrink(step=5)")), [3.25, 1.5, 6.25, 0, 0], rtol=1e-15
    )


def test_fixed_shrink_with_step_zero_scales_all_layers_by_first():
    np.testing.assert_allclose(
        entries(advanced("fixed_shrink(step=0, first=0.8)")), [2.6, 1.2, 5.0, 0, 2.0], rtol=1e-15
    )
    expected = [2.6, 1.2, 5.0, 0, 1.75]  # the second layer by 0.8 - 0.1
    np.testing.assert_allclose(
        entries(advanced("fixed_shrink(step=0.1, first=0.8)")), expected, rtol=1e-15
    )


def test_awd_two_rounds_equal_formula():
    """Section 21, two rounds: l <- 0.1 l + 0.9 lam ||u|| / ||w||, w+ = w + u - l w, norms of the whole model."""
    server = Server(
        "awd(lam=0.5)",
        {"body.weight": [[3.0, 0.0]], "body.bias": [4.0], "head.weight": [[0.0, 2.0]]},
    )
    w, decay = W, 0.0
    for _ in range(2):
        u = np.array([0.25, 0.75]) @ (np.stack([entries(A), entries(B)]) - w)
        decay = 0.1 * decay + 0.9 * 0.5 * np.linalg.norm(u) / np.linalg.norm(w)
        w = w + u - decay * w
        np.testing.assert_allclose(entries(server.advance([A, B], [1, 3])), w, rtol=1e-12)


def test_awd_zero_model_is_not_decayed():
    assert Server("awd", {"w": [0.0]}).advance([{"w": [2.0]}])["w"].tolist() == [2.0]


def test_adadecay_one_round_equals_formula():
    """Section 21, z within each tensor; a tensor of one entry has std 0 and theta 1."""
    expected = W + U
    for group in TENSOR:
        u, std = np.abs(U[group]), np.std(np.abs(U[group]))
        z = (u - u.mean()) / std if std else np.zeros_like(u)
        expected[group] -= 0.01 * 2 / (1 + np.exp(-4 * z)) * W[group]
    np.testing.assert_allclose(entries(advanced("adadecay(lam=0.01)")), expected, rtol=1e-12)
    assert expected[2] == pytest.approx(W[2] + U[2] - 0.01 * W[2])


def test_adadecay_updates_equal_up_to_rounding_decay_alike():
    """Entries that moved alike but for the last bit decay alike."""
    start = {"w": [1.0, 1.0]}
    found = Server("adadecay(lam=0.1)", start).advance([{"w": [1.3, 1.3 + 1e-15]}])["w"]
    np.testing.assert_allclose(found, 1.3 - 0.1, rtol=1e-12)


def test_fixed_shrink_with_fedavgm_acts_after_optimizer():
    """fixed_shrink acts on what FedAvgM would apply."""
    expected = (W + 2 * U) * np.concatenate(
        [np.full(len(g), 1 - 0.1 * i) for i, g in enumerate(LAYER)]
    )
    np.testing.assert_allclose(
        entries(advanced("fedavgm(lr=2) + fixed_shrink(step=0.1)")), expected, rtol=1e-13
    )


# --- feddisco ---------------------------------------------------------------------------------------------------------


def disco(spec, counts, sizes=(1, 3)):
    """The weights of two clients that ended in 1 and 0: the new parameter is the first one's weight."""
    shared = {"label_histogram": {"counts": torch.tensor(counts)}}
    return Server(spec, {"w": [0.0]}).advance([{"w": [1.0]}, {"w": [0.0]}], sizes, shared=shared)[
        "w"
    ][0]


def test_feddisco_two_clients_equal_hand_numbers():
    """p = (1/4, 3/4); D = (1, 0) and (1/2, 1/2); from uniform KL = (log 2, 0), as shares (1, 0)."""
    counts = [[4, 0], [2, 2]]
    assert disco("feddisco(a=0.5, b=0.1)", counts) == 0  # 1/4 - 1/2 + 1/10 < 0
    assert disco("feddisco(a=0.5, b=0.5)", counts) == pytest.approx(
        0.25 / 1.5, rel=1e-6
    )  # weights are float32
    assert disco("feddisco(a=0.1, b=0.1, discrepancy='l1')", counts) == pytest.approx(
        0.25 / 1.1, rel=1e-6
    )
    a, b = 0.25 - 0.1 * np.sqrt(0.5) + 0.1, 0.85
    assert disco("feddisco(a=0.1, b=0.1, discrepancy='l2')", counts) == pytest.approx(
        a / (a + b), rel=1e-6
    )
    a = 0.25 - 0.1 * (1 - np.sqrt(0.5)) + 0.1
    assert disco("feddisco(a=0.1, b=0.1, discrepancy='cosine')", counts) == pytest.approx(
        a / (a + b), rel=1e-5
    )


def test_feddisco_global_target_equals_hand_numbers():
    """T = (6, 2) / 8: KL = (log 4/3, 1/2 log 2/3 + 1/2 log 2)."""
    kl = np.array([np.log(4 / 3), 0.5 * np.log(2 / 3) + 0.5 * np.log(2)])
    w = np.maximum([0.25, 0.75] - 0.5 * kl / kl.sum() + 0.2, 0)
    found = disco("feddisco(a=0.5, b=0.2, target='global')", [[4, 0], [2, 2]])
    assert found == pytest.approx(w[0] / w.sum(), rel=1e-5)


def test_feddisco_no_positive_weight_or_discrepancy_falls_back_to_sizes():
    assert disco("feddisco(a=1, b=0, discrepancy='l1')", [[4, 0], [0, 4]]) == 0.25
    assert disco("feddisco(a=0, b=0)", [[4, 0], [2, 2]]) == 0.25
    assert disco("feddisco", [[2, 2], [3, 3]]) == pytest.approx(
        0.35 / 1.2
    )  # all uniform: no discrepancy


def test_label_histogram_missing_classes_count_zero():
    """Classes a client lacks count 0: the number of classes is that of the task, not of the client."""
    x = np.zeros((3, 4))
    clients = Clients.of((x, [0, 0, 1]), (x[:1], [3]), (x, [2, 2, 2]))
    for executor in ("loop", "batched"):
        sim = Simulation("feddisco", mlp(), clients, executor=executor, batch_size=2)
        counts = sim.run([0, 2]).stacked.shared["label_histogram"]["counts"]
        assert counts.tolist() == [[2, 1, 0, 0], [0, 0, 3, 0]]


def test_feddisco_regression_is_refused():
    clients = Clients.of((np.ones((2, 2)), np.ones(2)))
    with pytest.raises(UnalikeError, match="regression"):
        Simulation("feddisco", plane(1, 1), clients, task="regression").run()


# --- L-DAWA -----------------------------------------------------------------------------------------------------------


def test_ldawa_known_cosines_equal_hand_numbers():
    """w = (3, 4): (6, 8) has cosine 1, (-4, 3) has 0, (-3, -4) has -1, (7, 1) has 25 / (5 sqrt 50) = 1 / sqrt 2."""
    start = {"w": [3.0, 4.0]}

    def found(*models, **more):
        return Server(more.pop("spec", "ldawa"), start).advance([{"w": m} for m in models], **more)[
            "w"
        ]

    np.testing.assert_allclose(found([6.0, 8.0], [-4.0, 3.0]), [3, 4], rtol=1e-12)
    np.testing.assert_allclose(found([-3.0, -4.0]), [3, 4], rtol=1e-12)
    np.testing.assert_allclose(found([7.0, 1.0]), np.array([7, 1]) / np.sqrt(2), rtol=1e-12)
    np.testing.assert_allclose(found([3.0, 4.0], [3.0, 4.0]), [3, 4], rtol=1e-15)  # nobody moved
    np.testing.assert_allclose(
        found([0.0, 0.0], [6.0, 8.0]), [3, 4], rtol=1e-12
    )  # taken as it is: 0
    weighted = found([6.0, 8.0], [-4.0, 3.0], sizes=[1, 3], spec="ldawa(weighted=True)")
    np.testing.assert_allclose(weighted, [1.5, 2], rtol=1e-12)
    np.testing.assert_array_equal(
        found([6.0, 8.0], [-4.0, 3.0], sizes=[1, 3]), found([6.0, 8.0], [-4.0, 3.0])
    )


def test_ldawa_scalars_and_zero_tensors_are_averaged_plainly():
    found = Server("ldawa", {"s": 2.0, "zero": [0.0, 0.0]}).advance(
        [{"s": -4.0, "zero": [1.0, 0.0]}, {"s": 1.0, "zero": [0.0, 3.0]}]
    )
    assert found["s"] == -1.5 and found["zero"].tolist() == [0.5, 1.5]


# --- FedLAW -----------------------------------------------------------------------------------------------------------

X = np.array([[1.0, 2.0], [0.5, -1.0], [-2.0, 0.3], [1.5, 1.0]])
Y = X @ [1.0, -0.5]
MODELS = np.array([[1.2, 0.1], [0.3, -0.9], [-1.0, 2.0]])
START = np.array([0.4, 0.2])


def law(spec, sizes=(1, 2, 5)):
    """w+ of three clients' models of y = w x under squared error on the four samples above."""
    server = Server(spec, {"head.weight": [START]})
    batch = Batch(torch.as_tensor(X), torch.as_tensor(Y))
    server.settings = replace(
        server.settings,
        model=Model(plane(0, 0).double()),
        task=find_task("regression"),
        proxy=batch,
    )
    size = torch.tensor(sizes, dtype=torch.float64)
    update = {"head.weight": torch.as_tensor(MODELS - START)[:, None]}
    report = ClientUpdate(update, {}, {}, size, size, size, size, {})
    state = advance(
        server.method, server.settings, server.state, Cohort((0, 1, 2), report, Members(3, 3.0))
    )
    return state.params["head.weight"].numpy()[0]


def exponential(v):
    return np.exp(v[0]) * np.exp(v[1:]) / np.exp(v[1:]).sum()


def quadratic(v):
    return v[0] ** 2 * v[1:] ** 2 / (v[1:] ** 2).sum()


def slope(mapping, v):
    """The gradient of the mean squared error by central differences (exact to 1e-9)."""

    def loss(v):
        return np.mean((X @ (mapping(v) @ MODELS) - Y) ** 2)

    steps = np.eye(len(v)) * 1e-5
    return np.array([(loss(v + h) - loss(v - h)) / 2e-5 for h in steps])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kind, mapping", [("exp", exponential), ("quadratic", quadratic)])
def test_fedlaw_45_epochs_equal_numpy(kind, mapping, optimizer):
    """Section 18, 45 epochs by numpy: Adam(0.5, 0.999) or plain descent, the rate halved after epochs 20 and 40."""
    p = np.array([1, 2, 5]) / 8
    v = np.concatenate([[0.0], np.log(p)]) if kind == "exp" else np.ones(4)
    m, s = np.zeros(4), np.zeros(4)
    for epoch in range(45):
        lr, g = 0.05 * 0.5 ** (epoch // 20), slope(mapping, v)
        if optimizer == "sgd":
            v = v - lr * g
            continue
        m, s = 0.5 * m + 0.5 * g, 0.999 * s + 0.001 * g**2
        v = v - lr * m / (1 - 0.5 ** (epoch + 1)) / (np.sqrt(s / (1 - 0.999 ** (epoch + 1))) + 1e-8)
    found = law(f"fedlaw(epochs=45, lr=0.05, optimizer={optimizer!r}, mapping={kind!r})")
    np.testing.assert_allclose(found, mapping(v) @ MODELS, rtol=1e-6)  # the differences


def test_fedlaw_epochs_zero_equals_mean():
    np.testing.assert_allclose(
        law("fedlaw(epochs=0)"), np.array([1, 2, 5]) / 8 @ MODELS, rtol=1e-12
    )
    np.testing.assert_allclose(
        law("fedlaw(epochs=0, mapping='quadratic')"), MODELS.mean(0), rtol=1e-12
    )


def test_learned_shrinking_finds_the_factor_of_least_squares():
    """The best factor of a linear model under squared error is <Xw, y> / |Xw|^2."""
    sizes = (5, 2, 1)
    mean = np.array(sizes) / 8 @ MODELS
    score = X @ mean
    best = score @ Y / (score @ score)
    np.testing.assert_allclose(
        law("fedavg + learned_shrinking(epochs=100, lr=0.1)", sizes), best * mean, rtol=2e-3
    )
    np.testing.assert_allclose(law("fedavg + learned_shrinking(epochs=0)", sizes), mean, rtol=1e-15)


def test_learned_shrinking_two_epochs_equal_numpy():
    """Adam(0.5, 0.999) on g with gamma = exp(g), by numpy."""
    mean, g, m, s = np.array([1, 2, 5]) / 8 @ MODELS, 0.0, 0.0, 0.0
    for epoch in range(2):
        score = np.exp(g) * X @ mean
        slope_of_g = 2 * np.mean((score - Y) * score)
        m, s = 0.5 * m + 0.5 * slope_of_g, 0.999 * s + 0.001 * slope_of_g**2
        g -= 0.05 * m / (1 - 0.5 ** (epoch + 1)) / (np.sqrt(s / (1 - 0.999 ** (epoch + 1))) + 1e-8)
    found = law("fedavg + learned_shrinking(epochs=2, lr=0.05)")
    np.testing.assert_allclose(found, np.exp(g) * mean, rtol=1e-9)


LAYERS_WITH_BUFFERS = (
    ("body.weight", "norm.weight", "norm.bias"),
    (
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "head.weight",
        "head.bias",
    ),
)
"""The layers of the authors' code: names in state-dict order up to one with a bias."""


def test_lws_buffers_count_in_the_layer_that_follows_and_shrink_with_it():
    """The authors' grouping by numpy: buffers are in the norms of w, u and in tau of the next layer. The counter, an integer,
    counts there too but keeps the largest value of the clients."""
    sim = Simulation(
        "lws(beta=5, buffers=True)", mlp(norm=True), Clients.random((6, 4, 9)), lr=0.5, epochs=3
    )
    sim.round([0, 1, 2])
    cohort, before = sim.run(), sim.state
    old = before.params | before.buffers
    sent = {
        name: old[name] + u for name, u in cohort.stacked.update.items()
    } | cohort.stacked.buffers
    rows = {name: t.double().numpy().reshape(3, -1) for name, t in sent.items()}
    p = np.array([6, 4, 9]) / 19
    combined = {name: r.max(0) if name.endswith("tracked") else p @ r for name, r in rows.items()}
    after = advance(sim.method, sim.settings, before, cohort)
    assert list(sim.settings.model.state_dict(old)) == [
        name for layer in LAYERS_WITH_BUFFERS for name in layer
    ]
    for layer in LAYERS_WITH_BUFFERS:
        w = np.concatenate([old[name].double().numpy().ravel() for name in layer])
        w_k = np.concatenate([rows[name] for name in layer], axis=1)
        mean = np.concatenate([combined[name] for name in layer])
        tau = np.linalg.norm(w_k - w_k.mean(0), axis=1).mean()
        gamma = np.linalg.norm(w) / (5 * tau * np.linalg.norm(mean - w) + np.linalg.norm(w))
        assert gamma < 0.99
        for name in layer:
            found = (after.params | after.buffers)[name]
            expected = combined[name] if name.endswith("tracked") else gamma * combined[name]
            np.testing.assert_allclose(
                found.numpy().ravel(), expected, rtol=2e-5, atol=1e-6, err_msg=name
            )


def test_lws_leaves_buffers_alone_by_default():
    states = {}
    for method in ("lws", "fedavg"):
        sim = Simulation(method, mlp(norm=True), Clients.random((6, 4, 9)))
        states[method] = advance(sim.method, sim.settings, sim.state, sim.run())
    torch.testing.assert_close(states["lws"].buffers, states["fedavg"].buffers, rtol=0, atol=0)


def test_fedlaw_buffers_are_averaged_without_shrinking():
    """gamma shrinks parameters alone: the average stays within the clients' buffers, which are all 1."""
    sim = Simulation(
        "fedlaw(epochs=30, lr=0.2)", mlp(norm=True), Clients.random((6, 4)), proxy=_proxy()
    )
    cohort = sim.run()
    cohort.stacked.buffers["norm.running_var"][:] = 1.0
    state = advance(sim.method, sim.settings, sim.state, cohort)
    torch.testing.assert_close(state.buffers["norm.running_var"], torch.ones(5))


def _proxy(n=12):
    rng = np.random.default_rng(5)
    return Batch(torch.as_tensor(rng.normal(size=(n, 4)), dtype=torch.float32), torch.arange(n) % 3)


# --- FedDF ------------------------------------------------------------------------------------------------------------


def test_feddf_two_steps_equal_torch_adam_on_ensemble():
    """Two steps on all samples (no row order matters): Adam with a cosine schedule on the KL to the mean of the logits,
    by torch on a plain module."""
    clients, proxy = Clients.random((6, 4, 9)), _proxy()
    sim = Simulation("feddf(steps=2, lr=0.01, temperature=2)", mlp(), clients, proxy=proxy)
    cohort = sim.run()
    start, model = sim.params, sim.settings.model
    with torch.no_grad():
        modules = [model.module(tree.add(start, tree.row(cohort.update, k)), {}) for k in range(3)]
        taught = torch.stack([m(proxy.x) for m in modules]).mean(0) / 2
    mean = {
        n: start[n] + torch.tensordot(torch.tensor([6, 4, 9]) / 19, u, 1)
        for n, u in cohort.update.items()
    }
    student = model.module(mean, {})
    optimizer = torch.optim.Adam(student.parameters(), 0.01)
    for lr in (0.01, 0.005):  # the cosine of two steps: 1, 1/2
        optimizer.param_groups[0]["lr"] = lr
        p, q = taught.softmax(1), (student(proxy.x) / 2).softmax(1)
        optimizer.zero_grad()
        (p * (p.log() - q.log())).sum(1).mean().backward()
        optimizer.step()
    sim.round()
    for n, w in student.named_parameters():
        torch.testing.assert_close(sim.params[n], w.detach(), rtol=1e-4, atol=1e-5)  # float32


def test_feddf_regression_is_refused_and_global_generator_is_unchanged():
    clients = Clients.of((np.ones((2, 2)), np.ones(2)))
    with pytest.raises(UnalikeError, match="regression"):
        Simulation(
            "feddf", plane(1, 1), clients, task="regression", proxy=Batch(clients.x, clients.y)
        )
    before = torch.get_rng_state()
    sims = [
        Simulation("feddf", mlp(dropout=0.5), Clients.random((5, 3)), proxy=_proxy())
        for _ in range(2)
    ]
    for sim in sims:
        sim.round()
    assert torch.equal(before, torch.get_rng_state()) and same(sims[0].params, sims[1].params)


# --- noise ------------------------------------------------------------------------------------------------------------


def test_gaussian_noise_rounds_have_given_std_and_repeat_by_seed():
    """std of 20000 entries to 3%; anew in every round, the same again for the same seed."""
    start = {"w": np.zeros(20000)}
    server, other = (Server("gaussian_noise(std=0.5)", start) for _ in range(2))
    first = server.advance([{"w": start["w"] + 1}])["w"]
    assert first.mean() == pytest.approx(1, abs=0.02) and first.std() == pytest.approx(
        0.5, rel=0.03
    )
    second = server.advance([{"w": first}])["w"] - first
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    np.testing.assert_array_equal(other.advance([{"w": start["w"] + 1}])["w"], first)


def test_gaussian_noise_with_fedavgm_acts_before_optimizer():
    """With momentum the noise of round 1 is still there in round 2."""
    server = Server("gaussian_noise(std=1) + fedavgm(momentum=0.5)", {"w": [0.0]})
    first = server.advance([{"w": [0.0]}])["w"][0]
    quiet = server.advance([{"w": [first]}])["w"][0] - first
    alone = Server("gaussian_noise(std=1)", {"w": [0.0]})
    noise = alone.advance([{"w": [0.0]}])["w"][0]
    again = alone.advance([{"w": [noise]}])["w"][0] - noise
    assert first == noise and quiet == pytest.approx(0.5 * noise + again)
