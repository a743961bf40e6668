"""A site keeps the model that it would use: the one that simulation gives this client."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import torch
from small_federation import SmallFederation

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import read_tensors
from unalike.cli.finished_run import load_model, model_folder, note_shared_model
from unalike.federation.site.site_folder import STATE, kept_model


def site_folder(fed, site, to):
    """The folder of a site as `unalike join` lays it out."""
    shutil.copytree(fed.folder / site, to / STATE)
    return to


@pytest.mark.parametrize(
    "spec", ["fedavg", "ditto", "fedper", "apfl", "fedavg + local_finetune", "ifca(clusters=2)"]
)
def test_site_keeps_its_model_of_the_last_round(tmp_path, spec):
    fed = SmallFederation(tmp_path / "fed", method=spec, rounds=3)
    fed.run()
    simulated = fed.simulated()
    for k, client in enumerate(fed.clients):
        own = site_folder(fed, client.name, tmp_path / client.name)
        folder = kept_model(own)
        assert folder is not None and model_folder(own) == folder
        tensors, _ = read_tensors(folder / "model.safetensors")
        expected = simulated.personal(k)
        assert list(tensors) == list(expected) and all(
            torch.equal(tensors[n], t) for n, t in expected.items()
        )
        predict, config = load_model(folder)
        x, y = (torch.as_tensor(np.asarray(values)) for values in client.test)
        accuracy = (predict(x).argmax(1) == y).float().mean().item()
        row = simulated.history.last_clients[k]
        known = row["personal_accuracy"]
        assert accuracy == pytest.approx(row["accuracy"] if np.isnan(known) else known)
        assert config["site"] == client.name


def test_run_of_a_federation_says_where_the_models_of_sites_are(tmp_path):
    fed = SmallFederation(tmp_path, method="ditto", rounds=1)
    fed.run()
    _, config = load_model(fed.out)
    with pytest.warns(
        UserWarning, match=r"each site has a model of its own: there, `unalike evaluate`"
    ) as notes:
        note_shared_model(config, None)
    assert "--client" not in str(notes[0].message)
    with pytest.raises(
        UnalikeError, match="stored at its site only; there, `unalike evaluate SITE_FOLDER"
    ):
        load_model(fed.out, "site0")


def test_models_of_a_run_whose_best_round_is_chosen_are_not_kept(tmp_path):
    clients = SmallFederation(tmp_path / "a").clients
    with_val = [type(c)(c.train, c.test, c.test, c.name) for c in clients]
    fed = SmallFederation(tmp_path / "b", with_val, select="best")
    fed.run()
    assert kept_model(site_folder(fed, "site0", tmp_path / "site0")) is None


@pytest.mark.parametrize("spec", ["fedavg", "ditto"])
def test_site_without_test_samples_keeps_its_model_and_has_no_score(tmp_path, spec):
    """Its model is that of the simulation, where nobody tests it either; the others have their scores."""
    full, other = SmallFederation(tmp_path / "full").clients
    without = type(full)(full.train, None, None, full.name)
    fed = SmallFederation(tmp_path / "fed", [without, other], method=spec, rounds=2)
    run = fed.run()
    tensors, _ = read_tensors(
        kept_model(site_folder(fed, full.name, tmp_path / "site")) / "model.safetensors"
    )
    expected = fed.simulated().personal(0)
    assert all(torch.equal(tensors[name], t) for name, t in expected.items())
    untested, tested = run.history.last_clients
    assert np.isnan(untested["accuracy"]) and tested["accuracy"] >= 0


def test_federation_without_scores_keeps_models_everywhere(tmp_path):
    clients = SmallFederation(tmp_path / "full").clients
    without = [type(c)(c.train, None, None, c.name) for c in clients]
    fed = SmallFederation(tmp_path / "fed", without, method="ditto", rounds=2)
    fed.run()
    assert all(kept_model(site_folder(fed, c.name, tmp_path / c.name)) is not None for c in clients)


def test_site_is_told_that_its_update_did_not_count(tmp_path):
    fed = SmallFederation(tmp_path, rounds=3, quorum=1)
    lines = []
    fed.workers["site0"].log = lines.append

    def spoil(head, facts, tensors):
        if head.round != 1 or "size" not in tensors:
            return None
        name = next(name for name, t in tensors.items() if t.dim() == 2)
        return head, facts, tensors | {name: torch.full_like(tensors[name], float("nan"))}

    fed.corrupt("site0", spoil)
    fed.run()
    told = [line for line in lines if "did not count" in line]
    assert told and all(line.startswith("round 2:") for line in told)


def test_site_is_told_with_which_share_its_update_counted(tmp_path):
    fed = SmallFederation(tmp_path, rounds=2)
    lines = []
    fed.workers["site0"].log = lines.append

    def enlarge(head, facts, tensors):
        if head.round or "size" not in tensors:
            return None
        large = {name: 100 * t for name, t in tensors.items() if name.startswith("update/")}
        return head, facts, tensors | large

    fed.corrupt("site0", enlarge)
    fed.run()
    [scaled] = fed.events("scaled down")
    sent, counted = map(float, re.findall(r"[0-9.]+(?=;|$)", scaled["why"]))
    [told] = [line for line in lines if "counted with" in line]
    assert told.startswith(f"round 1: the update of this site counted with {counted / sent:.2g} of")
