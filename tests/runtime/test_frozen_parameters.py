"""What a module froze stays as it is, whatever the server does, and is not sent."""

import numpy as np
import pytest
import torch

import unalike as ua
from unalike.core.model import Model
from unalike.methods.method import Method

FROZEN = ("0.bias", "2.weight")
WORK = ua.Work(epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.01)
PLANS = "awd adadecay fedlws fixed_shrink(step=0.1) fedlaw gaussian_noise feddf fedgh fedgen fedadam ldawa fedsa pfedme perfedavg"


def half_frozen():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    return module


@pytest.fixture(scope="module")
def crowd():
    rng = np.random.default_rng(0)
    return [
        ua.ClientData(
            *((rng.normal(size=(n, 4)).astype("float32"), rng.integers(0, 3, n)) for n in (size, 6))
        )
        for size in (7, 3, 10, 5)
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("spec", [*PLANS.split(), "ccvr(steps=5)", "ifca(clusters=2)", "clustered"])
def test_frozen_parameter_any_method_keeps_its_value(spec, executor, crowd):
    proxy = (
        crowd[0].test if any(p.needs_proxy for p in getattr(ua.plan(spec), "parts", ())) else None
    )
    run = ua.run(
        spec,
        crowd,
        model=half_frozen(),
        rounds=3,
        work=WORK,
        proxy=proxy,
        executor=executor,
        progress=False,
    )
    start, moved = half_frozen().state_dict(), []
    for client in range(len(crowd)):
        own = run.personal(client)
        for name in FROZEN:
            assert torch.equal(own[name], start[name]), name
        moved += [not torch.equal(own[name], w) for name, w in start.items() if name not in FROZEN]
    assert all(moved)


def test_frozen_parameter_is_not_on_the_wire():
    sent = {item.what: item.bytes for item in ua.wire(Method.parse("fedavg"), Model(half_frozen()))}
    assert sent["parameters"] == sent["update"] == 4 * (5 * 4 + 3)


def test_awd_with_frozen_parameters_decays_by_norms_of_trained_ones(crowd):
    """One round by hand: d = 0.9 lam ||u|| / ||w||, over the parameters that move."""
    plain, decayed = (
        ua.run(
            spec, crowd, model=half_frozen(), rounds=1, work=WORK, executor="loop", progress=False
        ).params
        for spec in ("fedavg", "awd(lam=0.5)")
    )
    w = {n: t for n, t in half_frozen().state_dict().items() if n not in FROZEN}
    length, way = (
        torch.cat([t.flatten() for t in ts]).norm()
        for ts in (w.values(), [plain[n] - w[n] for n in w])
    )
    for name, start in w.items():
        torch.testing.assert_close(
            decayed[name], plain[name] - 0.45 * way / length * start, rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize(
    "spec", ["perfedavg(alpha=0.5)", "perfedavg(alpha=0.5, second_order=True)", "pfedme(rate=0.1)"]
)
def test_adaptation_with_fixed_head_equals_model_with_frozen_head(spec, crowd):
    """A fixed head is that of a model whose head is frozen."""
    frozen, fixed = half_frozen(), half_frozen()
    for module, head in ((frozen, False), (fixed, True)):
        module.requires_grad_()
        module[2].requires_grad_(head)
    one, other = (
        ua.run(s, crowd, model=m, rounds=2, work=WORK, executor="loop", progress=False)
        for s, m in ((spec, frozen), (f"{spec} + fixed", fixed))
    )
    for client in range(len(crowd)):
        mine, theirs = one.personal(client), other.personal(client)
        for name, w in mine.items():
            torch.testing.assert_close(w, theirs[name], rtol=1e-6, atol=1e-7)
            assert torch.equal(w, frozen.state_dict()[name]) == name.startswith("2.")


def deep(norms=0):
    torch.manual_seed(0)
    block = [
        torch.nn.Linear(6, 6, bias=not norms),
        *([torch.nn.BatchNorm1d(6)] if norms else []),
        torch.nn.Tanh(),
    ]
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.Tanh(), *block, torch.nn.Linear(6, 3)
    )


def moved(spec, module, crowd):
    """What a round makes of the start, every client's batch being all that it has."""
    run = ua.run(
        spec, crowd, model=module, rounds=1, work=ua.Work(batch_size=None, lr=0.5), progress=False
    )
    return {n: run.params[n] for n, _ in module.named_parameters()}


def test_fixed_shrink_with_frozen_first_layer_keeps_layer_numbers(crowd):
    module = deep()
    module[0].requires_grad_(False)
    plain, shrunk = (moved(spec, module, crowd) for spec in ("fedavg", "fixed_shrink(step=0.2)"))
    for name, w in plain.items():
        factor = {"0": 1.0, "2": 0.8, "4": 0.6}[name[0]]
        torch.testing.assert_close(shrunk[name], factor * w)


def test_lws_with_private_norms_shrinks_each_layer_by_its_own_factor(crowd):
    """FedBN, linear layers without a bias before their norms: gamma_l by hand, of each layer what is shared."""
    module = deep(norms=1)
    start, plain, shrunk = (
        dict(module.named_parameters()),
        *(moved(f"fedbn{s}", module, crowd) for s in ("", " + lws")),
    )
    gammas = set()
    for layer in (["0.weight", "0.bias"], ["2.weight"], ["5.weight", "5.bias"]):
        [gamma] = {round(float((shrunk[n] / plain[n]).median()), 5) for n in layer}
        gammas.add(gamma)
        for n in layer:
            torch.testing.assert_close(shrunk[n], gamma * plain[n], rtol=1e-4, atol=1e-6)
    assert len(gammas) == 3
    assert torch.equal(shrunk["3.weight"], start["3.weight"])  # nobody sends it
