"""Low-rank adapters: examples/lora.py, and the library peft where it is installed."""

import importlib.util
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import unalike as ua
from unalike import UnalikeError
from unalike.core.model import Model

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"
NUMBERS = 4 * 4
"""Bytes of size, steps, weight and loss in a client update."""
SMALL = "vit(patch=4, width=8, depth=1, heads=2)"


@pytest.fixture(scope="module")
def lora():
    spec = importlib.util.spec_from_file_location("lora", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def clients(lora):
    return ua.partition(lora.digits(5), "dirichlet(alpha=0.3)", clients=3)


def trained(module, clients, method, rounds=1):
    work = ua.Work(lr=0.1, batch_size=32)
    return ua.run(method, clients, model=module, rounds=rounds, work=work, progress=False).module()


def test_adapters_change_nothing_before_they_are_trained():
    net, x = ua.model(SMALL, (1, 8, 8), 5), torch.rand(3, 1, 8, 8)
    assert torch.equal(ua.low_rank(deepcopy(net))(x), net(x))


def test_module_with_adapters_gets_no_others():
    net = ua.low_rank(ua.model(SMALL, (1, 8, 8), 5))
    with pytest.raises(UnalikeError, match="found a module with adapters"):
        ua.low_rank(net)


def test_adapters_and_head_alone_cross_the_wire(lora):
    net = ua.model("vit(patch=2, width=48, depth=2, heads=4)", (1, 8, 8), 5)
    assert lora.kilobytes("fedavg", net) == (2 * 4 * 57_989 + NUMBERS) / 1000
    # rank 4: 4 (48 + 144) + 4 (48 + 48) + 2 * 4 (48 + 192) = 3,072 in each of two blocks, 245 in the head
    adapters = 2 * 4 * (2 * 3_072 + 245)
    assert lora.kilobytes("fedavg", ua.low_rank(net)) == (adapters + NUMBERS) / 1000
    assert (
        lora.kilobytes("scaffold", net) == (2 * adapters + NUMBERS) / 1000
    )  # as many control variates, and no others


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_adapters_train_and_the_backbone_keeps_its_bits(lora, clients, method):
    net = ua.low_rank(ua.model(SMALL, (1, 8, 8), 5), rank=2)
    before, after = net.state_dict(), trained(net, clients, method).state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {n for n, p in net.named_parameters() if p.requires_grad}
    assert {n.split(".")[-2] for n in moved if n.startswith("blocks")} == {"lora_A", "lora_B"}


def test_adapters_of_a_pretrained_model_learn_new_classes(lora, clients):
    source = ua.partition(lora.digits(0), "iid", clients=1)
    work = ua.Work(lr=0.003, batch_size=32, optimizer="adam")
    spec = "vit(patch=4, width=16, depth=1, heads=2)"
    net = ua.run("fedavg", source, model=spec, rounds=4, work=work, progress=False).module()
    run = ua.run("fedavg", clients, model=ua.low_rank(net), rounds=4, work=work, progress=False)
    accuracy = run.history.rounds["accuracy"]
    assert accuracy.iloc[-1] > 0.4 > accuracy.iloc[0]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedrep(epochs=1)"])
def test_peft_adapters_train_and_the_backbone_keeps_its_bits(lora, clients, method):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, target_modules=["qkv", "out", "expand", "contract"], modules_to_save=["head"]
    )
    net = peft.get_peft_model(ua.model(SMALL, (1, 8, 8), 5), config)
    after = trained(net, clients, method)
    assert isinstance(after, peft.PeftModel)
    before, after = net.state_dict(), after.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(net.get_parameter(name).requires_grad for name in moved)
    model = Model(net)
    heads = {n for n in model.params if model.in_head(n) and model.trainable(n)}
    assert {name.rpartition(".")[2] for name in heads} == {"weight", "bias"}
    assert heads & moved == (set() if method.startswith("fedrep") else heads)


def test_adapters_alone_of_a_transformer_of_transformers_cross_the_wire(clients):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=5,
    )
    vit = transformers.ViTForImageClassification(config)
    net = ua.low_rank(ua.Logits(vit, input="pixel_values"), rank=2)
    before, after = net.state_dict(), trained(net, clients, "fedavg").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    trainable = {n for n, p in net.named_parameters() if p.requires_grad}
    # a step moves A as far as B is from 0, which may be less than A's rounding
    assert {n for n in trainable if "lora_A" not in n} <= moved <= trainable
    numbers = sum(p.numel() for p in net.parameters() if p.requires_grad)
    sent = {item.what: item.bytes for item in ua.wire("fedavg", net)}
    assert sent["parameters"] == sent["update"] == 4 * numbers
