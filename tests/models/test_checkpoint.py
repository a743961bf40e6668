"""Initial weights from files, and which files are refused."""

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from unalike._utils.errors import UnalikeError
from unalike.core.model import Model
from unalike.models.checkpoint import read_state_dict, start_from
from unalike.models.registry import model


def network(classes=10, seed=0):
    return model("mlp(hidden=(6,))", (4,), classes, seed=seed)


@pytest.fixture(params=["weights.safetensors", "weights.pt"])
def file(request, tmp_path):
    path = tmp_path / request.param
    state = network(seed=7).state_dict()
    (save_file if path.suffix == ".safetensors" else torch.save)(state, path)
    return path


def test_start_from_file_of_the_same_model_takes_every_tensor(file):
    started, start = start_from(Model(network()), file)
    assert start.taken == "4 of 4 tensors"
    wanted = network(seed=7).state_dict()
    assert all(torch.equal(t, wanted[n]) for n, t in started.params.items())
    assert all(
        torch.equal(t, wanted[n])
        for n, t in started.module(started.params, {}).state_dict().items()
    )


def test_start_from_leaves_the_given_model_as_it_is(file):
    given = Model(network())
    start_from(given, file)
    assert all(torch.equal(t, given.params[n]) for n, t in network().state_dict().items())


def test_partial_start_leaves_a_head_of_other_classes_as_initialized(file):
    started, start = start_from(Model(network(classes=3)), file, partial=True)
    assert start.taken == "2 of 4 tensors; left as initialized: head.weight, head.bias"
    old, new = network(seed=7).state_dict(), network(classes=3).state_dict()
    for name, tensor in started.params.items():
        assert torch.equal(tensor, new[name] if name.startswith("head") else old[name])


def test_start_from_other_model_says_what_does_not_fit(file):
    with pytest.raises(
        UnalikeError, match=r"head.weight \[10, 6\] instead of \[3, 6\].*take the 2 of 4 tensors"
    ):
        start_from(Model(network(classes=3)), file)
    deeper = Model(model("mlp(hidden=(6, 6))", (4,), 10))
    with pytest.raises(
        UnalikeError, match=r"it lacks body.3.weight, body.3.bias; .* take the 4 of 6"
    ):
        start_from(deeper, file)
    with pytest.raises(
        UnalikeError, match=r"the model has no body.1.\w+, body.1.\w+, other shapes"
    ):
        start_from(Model(model("linear", (4,), 10)), file)


def test_partial_start_leaves_a_layer_as_a_whole(file):
    wider = Model(
        model("mlp(hidden=(6, 5))", (4,), 10)
    )  # its head has the file's bias [10], and a weight [10, 5]
    _, start = start_from(wider, file, partial=True)
    assert start.taken == (
        "2 of 6 tensors; left as initialized: body.3.weight, body.3.bias, head.weight, head.bias"
    )


def test_partial_start_names_tensors_of_the_file_that_are_not_used(file):
    _, start = start_from(Model(nn.ModuleDict({"head": nn.Linear(6, 10)})), file, partial=True)
    assert sorted(start.taken.split(": ")[1].split(", ")) == ["body.1.bias", "body.1.weight"]
    assert start.taken.startswith("2 of 2 tensors; not used: ")


def test_partial_start_without_a_fitting_tensor_raises(file):
    with pytest.raises(
        UnalikeError, match=r"has no tensor that fits the model by name and shape: it has "
    ):
        start_from(Model(nn.Sequential(nn.Linear(4, 10))), file, partial=True)


def test_start_from_reads_buffers_half_precision_and_tied_parameters(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.first, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.head.weight = self.first.weight

        def forward(self, x):
            return self.head(self.first(self.norm(x)))

    source = Tied()
    source.norm.running_mean.fill_(3.0)
    source.norm.num_batches_tracked.fill_(5)
    torch.save(
        {n: t.half() if t.is_floating_point() else t for n, t in source.state_dict().items()},
        tmp_path / "w",
    )
    started, start = start_from(Model(Tied()), tmp_path / "w")
    assert start.taken == "7 of 7 tensors"
    assert torch.equal(started.buffers["norm.running_mean"], torch.full((4,), 3.0))
    assert started.buffers["norm.num_batches_tracked"] == 5
    assert started.params["first.weight"].dtype == torch.float32
    assert torch.equal(started.params["first.weight"], source.first.weight.half().float())


def test_read_state_dict_refuses_what_is_no_state_dict(tmp_path):
    class Own:
        pass

    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    (tmp_path / "run").mkdir()
    with open(tmp_path / "pickle.pt", "wb") as file:
        pickle.dump(print, file)
    torch.save({"epoch": 3, "state_dict": {}}, tmp_path / "nested.pt")
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    torch.save(network(), tmp_path / "module.pt")
    for name, message in {
        "nothing.pt": "found no .*nothing.pt; give a file of weights",
        "run": "found no .*model.safetensors; .* or the folder of a finished run",
        "text.pt": "cannot read .*text.pt",
        "text.safetensors": "cannot read .*text.safetensors",
        "pickle.pt": "cannot read .*pickle.pt",
        "module.pt": "cannot read .*module.pt .*tensors alone",
        "nested.pt": "holds a dict with epoch, state_dict; expected tensors by name",
        "tensor.pt": "holds Tensor; expected tensors by name",
    }.items():
        with pytest.raises(UnalikeError, match=message):
            read_state_dict(tmp_path / name)


def test_start_from_weights_that_are_not_finite_raises(tmp_path):
    state = network().state_dict()
    state["head.bias"][0] = torch.nan
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(UnalikeError, match=r"head.bias has numbers that are not finite"):
        start_from(Model(network()), tmp_path / "w.pt")
