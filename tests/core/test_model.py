"""Modules of other libraries: outputs that are not a tensor, inputs by name, tied parameters, buffers, dropout."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.model import Model

CLASSES = 3


@dataclass
class Result:
    """An output with attributes."""

    loss: None
    logits: torch.Tensor


class Pictures(nn.Module):
    """Mimics a vision model of Transformers: `pixel_values` by keyword, an output with `logits`."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, *, pixel_values):
        return Result(None, self.classifier(self.dropout(self.norm(pixel_values).flatten(1))))


class Words(nn.Module):
    """Mimics a text model: a dictionary as output, a mask, tied embeddings, a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(7, 4)
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.encoder.weight
        self.classifier = nn.Linear(7, CLASSES)
        self.register_buffer("places", torch.arange(5).float(), persistent=False)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weight = (1 + self.places) * mask
        pooled = (self.decoder(self.encoder(input_ids)) * weight[..., None]).sum(1) / weight.sum(
            1, keepdim=True
        )
        return {"loss": None, "logits": self.classifier(pooled)}


class Pair(nn.Module):
    """A module that returns logits and something else."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)

    def forward(self, x):
        hidden = x.flatten(1)
        return hidden, self.layer(hidden)


def images(count=3):
    torch.manual_seed(0)
    return [
        ua.ClientData(train=(torch.rand(8, 1, 4, 4), torch.arange(8) % CLASSES))
        for _ in range(count)
    ]


def texts(count=3):
    torch.manual_seed(0)
    drawn = [torch.randint(1, 7, (8, 5)) for _ in range(count)]
    for x in drawn:
        x[:, 3:] = 0
    return [ua.ClientData(train=(x, torch.arange(8) % CLASSES)) for x in drawn]


def test_logits_takes_attribute_key_and_position():
    x, tokens = torch.rand(2, 1, 4, 4), torch.tensor([[1, 2, 3, 0, 0]])
    pictures, words, pair = Pictures().eval(), Words(), Pair()
    assert torch.equal(
        ua.Logits(pictures, "logits", input="pixel_values")(x), pictures(pixel_values=x).logits
    )
    assert torch.equal(ua.Logits(words, input="input_ids")(tokens), words(tokens)["logits"])
    assert torch.equal(ua.Logits(pair, 1)(x), pair(x)[1]) and torch.equal(
        ua.Logits(pair, -1)(x), pair(x)[1]
    )


def test_logits_mask_marks_tokens_and_leaves_out_padding():
    tokens, words = torch.tensor([[1, 2, 3, 0, 0]]), Words()
    masked = ua.Logits(words, input="input_ids", mask="attention_mask")(tokens)
    assert torch.equal(masked, words(tokens, torch.tensor([[1, 1, 1, 0, 0]]))["logits"])
    assert not torch.allclose(masked, words(tokens)["logits"])


@pytest.mark.parametrize(
    ("module", "output", "message"),
    [
        (Pair(), "logits", "Pair returns tuple of 2; expected a tensor at output='logits'"),
        (Pair(), 2, "Pair returns tuple of 2; expected a tensor at output=2"),
        (
            Words(),
            "scores",
            "Words returns dict with 'loss', 'logits'; expected a tensor at output='scores'",
        ),
        (Words(), "loss", "expected a tensor at output='loss'"),
        (Words(), 0, "expected a tensor at output=0"),
    ],
)
def test_logits_without_such_an_entry_says_what_there_is(module, output, message):
    x = torch.ones(1, 5, dtype=torch.int64) if isinstance(module, Words) else torch.rand(1, 16)
    with pytest.raises(UnalikeError, match=message):
        ua.Logits(module, output)(x)


def test_logits_of_something_else_than_a_module_raises():
    with pytest.raises(UnalikeError, match=r"expected a torch.nn.Module"):
        ua.Logits(Pair)


def test_run_with_module_that_returns_no_tensor_names_the_adapter():
    with pytest.raises(
        UnalikeError, match=r"returned tuple; expected a tensor .* ua\.Logits\(module"
    ):
        ua.run("fedavg", images(), model=Pair(), rounds=1, progress=False)


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedrep(epochs=1)"])
def test_adapted_modules_train_with_dropout_buffers_and_tied_parameters(method, executor):
    options = {
        "rounds": 2,
        "work": ua.Work(lr=0.1, batch_size=4),
        "executor": executor,
        "progress": False,
    }
    pictures = ua.Logits(Pictures(), input="pixel_values")
    words = ua.Logits(Words(), input="input_ids", mask="attention_mask")
    for clients, module in ((images(), pictures), (texts(), words)):
        run = ua.run(method, clients, model=module, **options)
        after = run.module()
        assert isinstance(after, ua.Logits)
        state, start = after.state_dict(), module.state_dict()
        assert any(not torch.equal(state[n], start[n]) for n in start)
    assert torch.equal(state["module.encoder.weight"], state["module.decoder.weight"])
    assert after.module.encoder.weight is after.module.decoder.weight
    assert torch.equal(after.module.places, torch.arange(5).float())


def test_tied_parameters_cross_the_wire_once():
    names = list(Model(ua.Logits(Words(), input="input_ids")).params)
    assert names == ["module.encoder.weight", "module.classifier.weight", "module.classifier.bias"]


def test_head_of_an_adapted_module_is_its_last_linear_layer():
    model = Model(ua.Logits(Pictures(), input="pixel_values"))
    assert [n for n in model.params if model.in_head(n)] == [
        "module.classifier.weight",
        "module.classifier.bias",
    ]
    assert model.head_size == (16, CLASSES)


def tiny_vit(transformers):
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = transformers.ViTConfig(
        **sizes, image_size=4, patch_size=2, num_channels=1, num_labels=CLASSES
    )
    return transformers.ViTForImageClassification(config)


def tiny_bert(transformers):
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = transformers.BertConfig(
        **sizes, vocab_size=7, max_position_embeddings=8, num_labels=CLASSES
    )
    return transformers.BertForSequenceClassification(config)


@pytest.mark.parametrize("executor", ["loop", "auto"])
def test_models_of_transformers_train(executor):
    transformers = pytest.importorskip("transformers")
    vision = ua.Logits(tiny_vit(transformers), input="pixel_values")
    text = ua.Logits(tiny_bert(transformers), input="input_ids", mask="attention_mask")
    for clients, module in ((images(), vision), (texts(), text)):
        run = ua.run("fedavg", clients, model=module, rounds=1, executor=executor, progress=False)
        before, after = module.state_dict(), run.module().state_dict()
        assert before.keys() == after.keys()
        assert not torch.equal(
            before["module.classifier.weight"], after["module.classifier.weight"]
        )
