"""Federations whose coordinator begins from weights in a file."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_federation import SmallFederation, federation_of, make_clients

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.terms_check import check_terms_run
from unalike.federation.protocol.federation_file import Schema


@pytest.fixture
def weights(tmp_path):
    """A file of weights of the federation's model."""
    clients = make_clients()
    module = ua.model(federation_of(clients).model, (6,), 4, seed=99)
    save_file(module.state_dict(), tmp_path / "start.safetensors")
    return tmp_path / "start.safetensors"


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_federation_from_a_start_equals_its_simulation(tmp_path, weights, method):
    federation = SmallFederation(tmp_path / "fed", method=method)
    run = federation.coordinator(start=weights).run()
    simulated = federation.simulated(start=weights)
    plain = federation.simulated()
    ours, theirs, other = (r.module().state_dict() for r in (run, simulated, plain))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)
    assert any(not torch.equal(ours[n], other[n]) for n in other)


@pytest.mark.parametrize("method", ["fedper", "ditto(lam=0.1)"])
def test_start_that_sites_would_not_receive_is_refused(weights, method):
    federation = federation_of(make_clients(), method)
    check_terms_run(federation, {})
    with pytest.raises(
        UnalikeError, match=r"sites keep values of their own for .*head\.weight.*--start-partial"
    ):
        check_terms_run(federation, {}, weights)


def test_start_of_the_body_alone_fits_private_heads(tmp_path, weights):
    body = {n: t for n, t in load_file(weights).items() if not n.startswith("head")}
    save_file(body, tmp_path / "body.safetensors")
    run_config = check_terms_run(
        federation_of(make_clients(), "fedper"), {}, tmp_path / "body.safetensors", True
    )
    assert run_config.start.taken == "2 of 4 tensors; left as initialized: head.weight, head.bias"


def test_folder_keeps_the_whole_start(tmp_path):
    source = ua.model("mlp(hidden=(4,))", (2,), 5, seed=99).state_dict()
    torch.save(source, tmp_path / "w.pt")
    terms = {
        "name": "own",
        "method": "fedavg",
        "model": "mlp(hidden=(4,))",
        "rounds": 2,
        "data": Schema((2,), 3),
    }

    def made(name, **start):
        return FederationFolder.create(
            tmp_path / name, {"a": 9}, host="localhost", port=1, **start, **terms
        )

    assert made("plain").start is None
    with pytest.raises(UnalikeError, match=r"head.weight \[5, 4\] instead of \[3, 4\]"):
        made("other", start=tmp_path / "w.pt")
    kept = load_file(made("fed", start=tmp_path / "w.pt", start_partial=True).start)
    initial = ua.model("mlp(hidden=(4,))", (2,), 3, seed=0).state_dict()
    for name, tensor in kept.items():
        assert torch.equal(tensor, (initial if name.startswith("head") else source)[name])
