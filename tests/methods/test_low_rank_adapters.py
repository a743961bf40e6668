"""Averages of low-rank adapters: what the server makes of them, what is sent, and adapters with the names of peft."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from simulation import Clients, Simulation, mlp
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError

SIZES = (6, 2, 4)
A, B, WEIGHT = "body.lora_A.weight", "body.lora_B.weight", "body.base_layer.weight"
WORK = {"epochs": 3, "lr": 0.5, "batch_size": 2}


def adapted(frozen=True):
    return ua.low_rank(mlp(), rank=2, alpha=6.0, frozen=frozen)


def weight_in_use(params):
    """W + 3 B A, as NumPy computes it in double precision."""
    weight, a, b = (params[name].double().numpy() for name in (WEIGHT, A, B))
    return weight + 3.0 * b @ a


def after_rounds(method, executor="loop", rounds=2, cohort=None, frozen=False):
    """The simulation of a method after these rounds of the adapted model."""
    sim = Simulation(method, adapted(frozen), Clients.random(SIZES), executor=executor, **WORK)
    for _ in range(rounds):
        sim.round(cohort)
    return sim


def mean_of_products(sim):
    """The mean by size of the clients' weights W + 3 B A after local training, which is not applied."""
    update = sim.run().stacked.update
    mean = np.zeros((5, 4))
    for client, size in enumerate(SIZES):
        own = {name: sim.params[name] + update[name][client] for name in {A, B} & set(update)}
        mean += size / sum(SIZES) * weight_in_use(sim.params | own)
    return mean


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_fedex_lora_makes_the_mean_of_products_and_fedavg_does_not(executor):
    # the first round has moved B away from 0
    sim = after_rounds("fedex_lora", executor, rounds=1)
    before = sim.params[WEIGHT]
    expected = mean_of_products(sim)
    sim.round()
    np.testing.assert_allclose(weight_in_use(sim.params), expected, atol=2e-6)
    # the averages of A and B are FedAvg's, and their product alone is another weight
    averages = sim.params | {WEIGHT: before}
    assert np.abs(weight_in_use(averages) - expected).max() > 1e-3


def test_fedex_lora_of_one_client_is_fedavg():
    exact = after_rounds("fedex_lora", cohort=[0])
    plain = after_rounds("fedavg", cohort=[0], frozen=True)
    torch.testing.assert_close(exact.params, plain.params)


@pytest.mark.parametrize("other", ["scaffold", "fedavgm"])
def test_fedex_lora_refuses_a_part_with_a_state_for_each_trained_parameter_before_the_first_round(
    other,
):
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    clients = [ua.ClientData(train=(x, y), test=(x, y), name=name) for name in "ab"]
    with pytest.raises(UnalikeError, match=f"moves {WEIGHT}, which no client trains, and .* has a"):
        ua.run(f"fedex_lora + {other}", clients, model=adapted(False), rounds=1, progress=False)


@pytest.mark.parametrize("rule", ["flora", "fedex_lora"])
@pytest.mark.parametrize("step", ["fedexp", "fixed_shrink", "fedlama"])
def test_scaled_or_partial_steps_that_lose_the_mean_of_products_are_refused(rule, step):
    with pytest.raises(UnalikeError, match=r"do not add up to the clients' mean; leave out"):
        Simulation(f"{rule} + {step}", adapted(False), Clients.random(SIZES), **WORK)


def test_fedex_lora_beside_an_own_model_keeps_what_the_server_moves_out_of_it():
    sim = after_rounds("fedex_lora + ditto", rounds=2)
    assert WEIGHT not in sim.memory(0)["proximal_model"]
    plain = after_rounds("fedex_lora", rounds=2)
    torch.testing.assert_close(sim.params, plain.params)


def test_flora_merges_the_mean_of_products_and_begins_with_new_adapters():
    sim = after_rounds("flora", rounds=1)
    before = sim.params
    expected = mean_of_products(sim)
    sim.round()
    np.testing.assert_allclose(sim.params[WEIGHT].double().numpy(), expected, atol=2e-6)
    assert not sim.params[B].any()
    assert not torch.equal(sim.params[A], before[A])
    spread = adapted().get_parameter(A).std()
    redrawn = after_rounds("flora", rounds=2)
    assert torch.equal(redrawn.params[A], sim.params[A])
    assert 0.3 * spread < sim.params[A].std() < 3 * spread


@pytest.mark.parametrize("other", ["ffa_lora", "fedsa_lora"])
def test_fedex_lora_adds_nothing_where_a_or_b_is_not_averaged(other):
    sim = after_rounds(f"{other} + fedex_lora")
    plain = after_rounds(other, frozen=True)
    for name, value in plain.params.items():
        torch.testing.assert_close(sim.params[name], value)


def test_fedex_lora_refuses_frozen_weights_that_the_server_would_have_to_move():
    with pytest.raises(UnalikeError, match=r"found body.base_layer.weight frozen; .*frozen=False"):
        after_rounds("fedex_lora", frozen=True)


def sent(method, frozen=True):
    """Bytes of parameters down and of the update up."""
    items = ua.wire(method, adapted(frozen))
    return tuple(i.bytes for i in items if i.what in ("parameters", "update"))


def test_adapters_and_the_head_alone_are_sent_up():
    # rank 2: A has 2 x 4 numbers, B 5 x 2, the weight beneath 5 x 4, the head 3 x 5 + 3
    a, b, weight, head = 4 * 8, 4 * 10, 4 * 20, 4 * 18
    assert sent("fedavg") == (a + b + head, a + b + head)
    assert sent("ffa_lora") == (b + head, b + head)
    assert sent("fedsa_lora") == (a + head, a + head)
    assert sent("fedex_lora", frozen=False) == (a + b + weight + head, a + b + head)


def test_ffa_lora_is_exact_as_a_never_moves():
    sim = after_rounds("ffa_lora", rounds=1, frozen=True)
    before = sim.params
    expected = mean_of_products(sim)
    sim.round()
    assert torch.equal(sim.params[A], before[A])
    assert not torch.equal(sim.params[B], before[B])
    np.testing.assert_allclose(weight_in_use(sim.params), expected, atol=2e-6)


def test_fedsa_lora_shares_a_and_keeps_b_at_the_client():
    sim = after_rounds("fedsa_lora", frozen=True)
    assert not torch.equal(sim.params[A], adapted().get_parameter(A))
    assert torch.equal(sim.params[B], torch.zeros(5, 2))
    own = [sim.memory(client)["private"] for client in range(len(SIZES))]
    assert all(set(state) == {B} for state in own)
    assert not torch.equal(own[0][B], own[1][B])


class PeftLayer(nn.Module):
    """The names and the form of a layer of peft: adapters and scalings by adapter, the weight transposed as in its GPT-2."""

    fan_in_fan_out = True

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base_layer = nn.Module()
        self.base_layer.weight = nn.Parameter(torch.ones(inputs, outputs))
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, outputs, bias=False)})
        self.scaling = {"default": 0.5}

    def forward(self, x):
        product = self.lora_B["default"](self.lora_A["default"](x))
        return x @ self.base_layer.weight + self.scaling["default"] * product


def test_fedex_lora_takes_adapters_with_the_names_of_peft():
    torch.manual_seed(0)
    net = nn.Sequential(PeftLayer(4, 5), nn.Linear(5, 3))
    results = {}
    for cohort in ([0], [1], [0, 1]):
        sim = Simulation("fedex_lora + uniform", net, Clients.random(SIZES), lr=0.5)
        sim.round(cohort)
        params = {name: t.double().numpy() for name, t in sim.params.items()}
        product = params["0.lora_B.default.weight"] @ params["0.lora_A.default.weight"]
        results[tuple(cohort)] = params["0.base_layer.weight"] + 0.5 * product.T
    expected = (results[0,] + results[1,]) / 2
    np.testing.assert_allclose(results[0, 1], expected, atol=1e-6)


def test_flora_of_unequal_ranks_adds_the_product_of_the_stacked_adapters(tmp_path):
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(n, 4, generator=generator), torch.arange(n) % 3) for n in SIZES]
    networks = {f"rank {r}": ua.low_rank(mlp(), rank=r, frozen=False) for r in (3, 1)}
    # in a run the rows of the smaller A are the first ones of the larger
    networks["rank 1"].get_parameter(A).data = networks["rank 3"].get_parameter(A).data[:1].clone()
    work = {"steps": 3, "lr": 0.5, "batch_size": None}
    clients = [ua.ClientData(train=pair, test=pair) for pair in samples]
    options = {"model": networks, "rounds": 1, "work": ua.Work(**work), "out": tmp_path}
    run = ua.run("flora", clients, progress=False, **options)

    # each client's A and B after its training, one above the other and side by side, weighted by its share of samples
    rows, columns = [], []
    for name, members in run.run_config.groups.items():
        for client in members:
            sim = Simulation("flora", networks[name], Clients.of(*samples), **work)
            update = sim.run([client]).stacked.update
            share = SIZES[client] / sum(SIZES) * 8.0 / int(name[-1])
            rows.append(share * (sim.params[A] + update[A][0]).double().numpy())
            columns.append((sim.params[B] + update[B][0]).double().numpy())
    assert len({len(a) for a in rows}) == 2
    product = np.hstack(columns) @ np.vstack(rows)
    expected = mlp().get_parameter("body.weight").detach().double().numpy() + product
    after = {name: load_file(tmp_path / f"model-{name}.safetensors") for name in networks}
    for params in after.values():
        np.testing.assert_allclose(params[WEIGHT].double().numpy(), expected, atol=1e-6)
        assert not params[B].any()
    torch.testing.assert_close(after["rank 3"][A][:1], after["rank 1"][A])
