"""TensorBoard, MLflow and Weights & Biases: what their own readers find after a run and after a resumed one."""

from __future__ import annotations

import json
import struct

import pytest

import unalike as ua

PARAMETERS = {"work.lr": "0.25", "data.clients": "3", "method": "task_loss() + by_size() + mean()"}
WORK = ua.Work(lr=0.25)
BLOCK, HEADER, FULL, LAST = 32768, struct.Struct("<IHB"), 1, 4


def interrupted(train, **options):
    """Two of four rounds, then the rest of the run in another call."""
    train(**options, rounds=2, work=WORK)
    return train(**options, rounds=4, work=WORK)


def test_tensorboard_reads_each_round_of_a_resumed_run_once(train, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = interrupted(train, out=tmp_path, track="tensorboard")
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    scalars = found.Scalars("accuracy")
    assert [event.step for event in scalars] == [0, 1, 2, 3, 4]
    assert [event.value for event in scalars] == pytest.approx(list(run.history.rounds["accuracy"]))
    text = found.Tensors("config/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| work.lr | 0.25 |" in text


def test_tensorboard_folder_holds_one_folder_per_run(train, tmp_path):
    pytest.importorskip("tensorboard")
    for seed in (0, 1):
        train(track=f"tensorboard(folder={str(tmp_path)!r})", seed=seed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedavg-seed-0", "fedavg-seed-1"]


def test_mlflow_store_holds_one_run_of_a_resumed_run(train, tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.chdir(tmp_path)  # artifacts of a local store are in the current folder
    uri = "sqlite:///runs.db"
    run = interrupted(train, out=tmp_path / "run", track=f"mlflow(uri={uri!r}, experiment='try')")
    client = tracking.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("try").experiment_id])
    assert found.info.run_name == "fedavg (seed 0)" and found.info.status == "FINISHED"
    assert {name: found.data.params[name] for name in PARAMETERS} == PARAMETERS
    metrics = client.get_metric_history(found.info.run_id, "accuracy")
    assert [metric.step for metric in metrics] == [0, 1, 2, 3, 4]
    assert [metric.value for metric in metrics] == list(run.history.rounds["accuracy"])
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["model.safetensors"]


def test_wandb_files_hold_config_and_every_round(train, tmp_path):
    wandb = pytest.importorskip("wandb")
    run = interrupted(train, out=tmp_path, track="wandb(project='try', mode='offline')")
    wandb.teardown()  # its process has written everything
    begun, resumed = sorted(
        (tmp_path / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime
    )
    assert begun.name == resumed.name  # the same run, which `wandb sync` joins
    records = wandb_records(resumed)
    (start,) = [record.run for record in records if record.WhichOneof("record_type") == "run"][:1]
    config = {item.key: json.loads(item.value_json) for item in start.config.update}
    assert (
        start.project == "try"
        and start.display_name == "fedavg (seed 0)"
        and config["work.lr"] == 0.25
    )
    rows = [
        wandb_row(record.history)
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["_step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["accuracy"] for row in rows] == list(run.history.rounds["accuracy"])


def wandb_row(history):
    return {
        item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in history.item
    }


def wandb_records(file):
    """The records of a .wandb file: LevelDB's log format after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, pieces, found = file.read_bytes(), 7, b"", []
    while place + HEADER.size <= len(data):
        if BLOCK - place % BLOCK < HEADER.size:  # a block's rest has no room for a record
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        pieces += data[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if kind in (FULL, LAST):
            found.append(Record.FromString(pieces))
            pieces = b""
    return found


def test_comparison_in_tensorboard_has_one_folder_per_cell(clients, tmp_path):
    pytest.importorskip("tensorboard")
    ua.compare(
        ["fedavg"],
        clients,
        model="linear",
        rounds=1,
        seeds=2,
        out=tmp_path,
        track="tensorboard",
        progress=False,
    )
    assert len(list(tmp_path.glob("cells/*/tensorboard/events.*"))) == 2
