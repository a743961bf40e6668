"""The tasks whose runs recommendations are learnt from."""

import numpy as np
import pytest
import torch
from planted_runs import planted_runs

import unalike as ua
from unalike_studies.recommendation import task_runs
from unalike_studies.recommendation.stored_runs import METRICS, RESULTS, StoredRuns
from unalike_studies.recommendation.stored_tasks import StoredTask, grid, with_concepts
from unalike_studies.recommendation.task_features import TITLES
from unalike_studies.recommendation.task_runs import collect

EMBEDDED = ("digits", "breast_cancer", "synthetic", "glyphs")


def test_grid_is_the_same_in_every_call_and_names_are_unique():
    tasks = grid()
    assert tasks == grid()
    assert len({task.name for task in tasks}) == len(tasks) > 150


@pytest.mark.parametrize("data", EMBEDDED)
def test_population_of_every_task_with_embedded_data_can_be_divided(data):
    for task in (task for task in grid() if task.data == data):
        assert len(task.population(0)) == task.clients, task.name


def test_with_concepts_group_has_the_next_class():
    data = ua.Dataset("four", (torch.arange(8.0)[:, None], torch.arange(8) % 4))
    changed = with_concepts(data, 2, seed=0)
    x, y = changed.merged()
    group = torch.from_numpy(changed.groups["concept"])
    assert sorted(group.tolist()) == [0] * 4 + [1] * 4
    torch.testing.assert_close(y, (x[:, 0].long() + group) % 4)


def test_run_task_gives_a_row_per_method_and_fresh_seed(monkeypatch):
    monkeypatch.setattr(task_runs, "METHODS", {"FedAvg": "fedavg", "local only": "local_only"})
    monkeypatch.setattr(task_runs, "ROUNDS", 10)
    task = StoredTask("digits", "label skew", "dirichlet(alpha=0.3)", 5, 1.0, 1, "linear")
    table = task_runs.run_task(task)
    assert list(table["seed"]) == [0, 1, 0, 1] and set(RESULTS) - set(METRICS) | {"accuracy"} < set(
        table
    )
    assert (
        table["accuracy"].between(0.2, 1).all()
        and (table["worst_decile"] <= table["accuracy"] + 0.05).all()
    )
    assert np.isfinite(table[list(TITLES)].to_numpy(float)).all()
    assert (table.query("method == 'local only'")["bytes"] == 0).all()
    # a linear model of 64 pixels and 10 classes, float32, to five clients and back
    assert table.query("method == 'FedAvg'")["bytes"].iloc[0] == pytest.approx(
        2 * 5 * 650 * 4, rel=0.05
    )


def test_run_task_run_that_diverges_scores_zero(monkeypatch):
    def diverged(run_config):
        raise task_runs.Diverged("no update can be used")

    monkeypatch.setattr(task_runs, "METHODS", {"FedAvg": "fedavg"})
    monkeypatch.setattr(task_runs, "execute", diverged)
    table = task_runs.run_task(StoredTask("digits", "none", "iid", 5, 1.0, 1, "linear"))
    assert (table["accuracy"] == 0).all() and table["bytes"].isna().all()


def test_collect_finished_tasks_are_not_run_again(tmp_path):
    path = tmp_path / "runs.parquet"
    task = StoredTask("digits", "none", "iid", 5, 1.0, 1, "linear")
    planted_runs().table.assign(task=task.name).to_parquet(path)
    before = path.read_bytes()
    assert list(collect([task], path)) == [] and path.read_bytes() == before


def test_read_damaged_file_is_refused(tmp_path):
    (tmp_path / "runs.parquet").write_bytes(b"not parquet")
    with pytest.raises(ua.UnalikeError, match="cannot read the stored runs"):
        StoredRuns.read(tmp_path / "runs.parquet")
