"""Runs and comparisons that start from weights in a file."""

import tomllib

import pytest
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError

MODEL = "mlp(hidden=(8,))"
OPTIONS = {"rounds": 2, "work": ua.Work(batch_size=5, lr=0.1), "progress": False}


@pytest.fixture
def finished(people, tmp_path):
    folder = tmp_path / "finished"
    return ua.run("fedavg", people, model=MODEL, out=folder, **OPTIONS), folder


def scores(run):
    return run.history.rounds[["loss", "accuracy"]].to_numpy()


def test_run_from_a_finished_run_begins_where_that_ended(people, finished):
    before, folder = finished
    after = ua.run("fedavg", people, model=MODEL, start=folder, **OPTIONS)
    assert (scores(after)[0] == scores(before)[-1]).all()
    assert (scores(after)[0] != scores(before)[0]).any()
    assert after.warnings == before.warnings


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt"])
def test_run_from_a_file_has_its_weights_and_keeps_the_given_module(
    people, finished, tmp_path, name
):
    before, folder = finished
    file, state = tmp_path / name, before.module().state_dict()
    if name.endswith(".pt"):
        torch.save(state, file)
    else:
        file.write_bytes((folder / "model.safetensors").read_bytes())
    module = ua.model(MODEL, (6,), 4, seed=5)
    run = ua.run("scaffold", people, model=module, start=file, **OPTIONS)
    assert (scores(run)[0] == scores(before)[-1]).all()
    assert all(
        torch.equal(t, module.state_dict()[n])
        for n, t in ua.model(MODEL, (6,), 4, seed=5).state_dict().items()
    )


def test_partial_start_is_reported_by_count_and_names(people, finished):
    _, folder = finished
    deeper = "mlp(hidden=(8, 8))"
    with pytest.raises(
        UnalikeError,
        match=r"it lacks body.3.weight.* start_partial=True .* the 4 of 6 tensors that fit",
    ):
        ua.run("fedavg", people, model=deeper, start=folder, **OPTIONS)
    with pytest.warns(
        UserWarning, match="4 of 6 tensors; left as initialized: body.3.weight, body.3.bias"
    ):
        run = ua.run("fedavg", people, model=deeper, start=folder, start_partial=True, **OPTIONS)
    assert any(
        note.startswith(f"the run starts from {folder}: 4 of 6 tensors") for note in run.notes
    )


def test_start_is_part_of_the_record_by_its_weights(people, finished, tmp_path):
    _, folder = finished
    out = tmp_path / "second"
    ua.run("fedavg", people, model=MODEL, start=folder, out=out, **OPTIONS)
    first, second = (tomllib.loads((f / "config.toml").read_text())["model"] for f in (folder, out))
    assert first["name"] == second["name"] and first["fingerprint"] != second["fingerprint"]
    with pytest.raises(UnalikeError, match="fingerprint"):
        ua.run("fedavg", people, model=MODEL, out=out, **OPTIONS)


def test_compare_starts_every_method_and_seed_from_the_file(people, finished):
    before, folder = finished
    table = ua.compare(
        ["fedavg", "scaffold"], people, model=MODEL, start=folder, seeds=2, **OPTIONS
    )
    first = table.rounds[table.rounds["round"] == 0]
    assert len(first) == 4 and set(first["loss"]) == {scores(before)[-1][0]}


def test_start_that_cannot_be_used_is_refused_before_data_is_read(tmp_path):
    for call in (ua.run, ua.compare):
        methods = "fedavg" if call is ua.run else ["fedavg"]
        with pytest.raises(UnalikeError, match=r"found no .*nothing.pt; give a file of weights"):
            call(methods, data="nothing.csv", start=tmp_path / "nothing.pt")
        with pytest.raises(UnalikeError, match="start_partial=True without start"):
            call(methods, data="nothing.csv", start_partial=True)
