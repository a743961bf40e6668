"""Tables in a federation: all sites use one encoding, fitted on the coordinator's sample."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from in_memory_transport import InMemoryTransport
from small_federation import federation_of, make_clients
from typer.testing import CliRunner

from unalike._utils.errors import UnalikeError
from unalike.cli import app
from unalike.cli.data_flags import spec
from unalike.cli.federation.init import schema_like
from unalike.cli.finished_run import fitting
from unalike.data import load
from unalike.data.table_encoding import Encoding
from unalike.federation.coordinator.coordinator import Coordinator, run_rounds
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.operations.run_site import wire_lines
from unalike.federation.protocol.bundle import Bundle
from unalike.federation.protocol.federation_file import Federation, Schema
from unalike.federation.site.site_data import own_samples, site_data
from unalike.federation.site.site_folder import DATA, STATE
from unalike.federation.site.site_worker import SiteWorker


def patients(seed: int, mean: float, wards: str, gaps: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.normal(mean, 10, 40)
    age[:gaps] = np.nan
    ward = np.array(list(wards))[rng.integers(0, len(wards), 40)]
    return pd.DataFrame(
        {"age": age, "ward": ward, "outcome": np.array(["ill", "well"])[np.arange(40) % 2]}
    )


@pytest.fixture
def made(tmp_path):
    """A federation made by `init --like` from a sample with gaps and three wards."""
    frames = {
        "sample": patients(0, 60, "abc", gaps=8),
        "north": patients(1, 30, "ab"),
        "south": patients(2, 80, "bcx", 2),
    }
    files = {name: tmp_path / f"{name}.parquet" for name in frames}
    for name, frame in frames.items():
        frame.to_parquet(files[name])
    words = [
        "federation",
        "init",
        tmp_path / "fed",
        "--sites",
        "north,south",
        "--like",
        files["sample"],
    ]
    words += [
        "--target",
        "outcome",
        "--test",
        files["south"],
        "--model",
        "linear",
        "--protocol",
        "server",
    ]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return FederationFolder(tmp_path / "fed"), frames, files


def by_hand(frame: pd.DataFrame, sample: pd.DataFrame) -> np.ndarray:
    train = load_rows(sample)
    filled = train["age"].fillna(train["age"].median())
    age = (frame["age"].fillna(train["age"].median()) - filled.mean()) / filled.std(ddof=0)
    return np.column_stack(
        [age, frame["age"].isna(), *(frame["ward"] == ward for ward in "abc")]
    ).astype(np.float32)


def load_rows(sample: pd.DataFrame) -> pd.DataFrame:
    """The training rows: all but every fifth sample of a class."""
    return sample[sample.groupby("outcome").cumcount() % 5 != 4]


def test_site_table_is_read_with_agreed_encoding(made):
    folder, frames, files = made
    for name in ("north", "south"):
        federation = Bundle.read(folder.bundles[name]).federation
        assert federation == folder.federation
        found = site_data(federation, spec(str(files[name]), {"target": "outcome"}), None, name)
        x = torch.cat([found.train[0], found.test[0]])
        order = pd.concat(
            [load_rows(frames[name]), frames[name].drop(load_rows(frames[name]).index)]
        )
        # float64 sums in another order, then float32
        np.testing.assert_allclose(x, by_hand(order, frames["sample"]), rtol=1e-5, atol=1e-6)
    assert (
        (x[:, 2:].sum(1) == 0).sum() == (frames["south"]["ward"] == "x").sum() > 0
    )  # a ward that the sample lacks
    north = own_samples(federation.data, spec(str(files["north"]), {"target": "outcome"}))[0]
    assert (
        not north[:, 4].any() and abs(float(north[:, 0].mean())) > 1
    )  # no c there, and its ages are not its own zero
    test, _ = folder.samples("test")
    assert torch.equal(
        test, own_samples(federation.data, spec(str(files["south"]), {"target": "outcome"}))[0]
    )
    assert any(
        "leaves" in line
        for line in wire_lines(
            federation, spec(str(files["north"]), {"target": "outcome"}), None, "north"
        )
    )


def test_site_table_missing_columns_are_reported(made, tmp_path):
    folder, frames, _ = made
    federation = folder.federation
    for change, message in (
        ({"ward": None}, None),
        (
            {"ward": 7},
            r"column 'ward' holds numbers, expected texts or true/false, such as 'a', 'b', 'c'",
        ),
        ({"age": "old"}, "column 'age' holds texts, expected numbers"),
    ):
        frames["north"].assign(**change).to_parquet(tmp_path / "other.parquet")
        data = spec(str(tmp_path / "other.parquet"), {"target": "outcome"})
        if message is None:
            assert not site_data(federation, data, None, "north").train[0][:, 2:].any()
            continue
        with pytest.raises(UnalikeError, match=message):
            site_data(federation, data, None, "north")
    frames["north"].drop(columns="ward").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(UnalikeError, match="found no column 'ward'"):
        site_data(federation, data, None, "north")


def test_arrays_ignore_agreed_encoding(made, tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    np.savez(tmp_path / "site.npz", x=x, y=np.arange(20) % 2, classes=np.array(["ill", "well"]))
    assert torch.equal(
        own_samples(made[0].federation.data, str(tmp_path / "site.npz"))[0], torch.from_numpy(x)
    )


def test_encoding_is_part_of_terms(made):
    federation = made[0].federation
    assert Federation.of(federation_values(federation)) == federation
    encoding = federation.data.encoding
    for change in (
        {"numbers": tuple(replace(n, mean=n.mean + 1e-9) for n in encoding.numbers)},
        {"categories": tuple(replace(c, values=c.values[::-1]) for c in encoding.categories)},
    ):
        other = replace(
            federation, data=replace(federation.data, encoding=replace(encoding, **change))
        )
        assert other.terms != federation.terms
    with pytest.raises(UnalikeError, match=r"the encoding makes samples of shape \[5\]"):
        replace(federation.data, shape=(4,))


def federation_values(federation: Federation) -> dict:
    return tomllib.loads(federation.text())


def test_terms_without_encoding_are_unchanged(monkeypatch):
    federation = federation_of(make_clients())
    assert "encoding" not in federation.text()
    monkeypatch.setattr(
        "unalike.federation.protocol.federation_file.digest", bytes.decode
    )  # what the digest is made of
    assert '"data": {"classes": 4, "shape": [6]}' in federation.terms
    assert Federation.of(federation_values(federation)).data.encoding is None


def test_terms_without_a_target_are_unchanged(made, monkeypatch):
    federation = made[0].federation
    assert federation.data.encoding.target == "outcome"
    older = replace(federation.data, encoding=replace(federation.data.encoding, target=None))
    monkeypatch.setattr("unalike.federation.protocol.federation_file.digest", bytes.decode)
    assert (
        '"target"' in federation.terms and '"target"' not in replace(federation, data=older).terms
    )


def test_no_encoding_scales_tables_per_site_and_refuses_texts(made, tmp_path):
    *_, files = made
    schema = Schema(shape=(3,), classes=("ill", "well"))
    with pytest.warns(UserWarning, match="agreed on no encoding of tables"):
        own_samples(schema, spec(str(files["north"]), {"target": "outcome"}))
    with pytest.raises(
        UnalikeError,
        match=r"the federation has no agreed encoding of tables, or the folder was moved elsewhere; give a file of numbers",
    ):
        fitting(
            spec(str(files["north"]), {"target": "outcome"}),
            None,
            tmp_path,
            {"federation": "fed", "data": {"input_shape": [5], "task": "classification"}},
        )
    texts = f"file(path={str(files['north'])!r}, target='outcome', text='ward', length=3)"
    with pytest.raises(UnalikeError, match="agreed on no vocabulary"):
        own_samples(schema, texts)
    agreed = schema_like(texts)
    assert agreed.tokens and agreed.encoding.words.name == "ward"
    x, _ = own_samples(agreed, spec(str(files["south"]), {"target": "outcome"}))
    known = {word: token for token, word in enumerate(agreed.encoding.words.words, start=2)}
    rows = load(spec(str(files["south"]), {"target": "outcome"}))
    assert len(x) == len(rows.merged()[1]) and set(x[:, 0].tolist()) == {
        known["b"],
        1,
    }  # c and x are unknown


def test_evaluate_reads_tables_with_encoding_of_run(made):
    folder, _, files = made
    config = {"federation": "fed", "data": {"input_shape": [5], "task": "classification"}}
    data = spec(str(files["north"]), {"target": "outcome"})
    x, _ = fitting(data, None, folder.run, config).merged()
    assert torch.equal(x, load(data, encoding=folder.federation.data.encoding).merged()[0])


def workers(folder, files, root):
    """The sites, which read the agreed target of their tables."""
    made = {}
    for name in ("north", "south"):
        bundle = Bundle.read(folder.bundles[name])
        own = site_data(bundle.federation, str(files[name]), None, name)
        made[name] = SiteWorker(bundle.federation, name, bundle.key, own, root / name)
    return made


def test_site_names_a_target_of_its_own(made, tmp_path):
    federation, (_, frames, files) = made[0].federation, made
    frames["north"].rename(columns={"outcome": "end"}).to_parquet(tmp_path / "mine.parquet")
    mine, agreed = (
        site_data(federation, data, None, "north")
        for data in (spec(str(tmp_path / "mine.parquet"), {"target": "end"}), str(files["north"]))
    )
    assert all(map(torch.equal, (*mine.train, *mine.test), (*agreed.train, *agreed.test)))
    with pytest.raises(UnalikeError, match="has no column 'outcome'"):
        site_data(federation, str(tmp_path / "mine.parquet"), None, "north")


def test_commands_take_the_folder_of_a_federation(made, tmp_path):
    folder, _, files = made

    def ran(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.exception
        return done.output

    assert ran("federation", "status", folder.path) == (
        f"not up; 0 of 50 rounds are done, `unalike federation up {folder.path}` continues\n"
    )
    assert (
        CliRunner().invoke(app, ["federation", "status", str(folder.path), "--json"]).exit_code != 0
    )
    run_rounds(folder, InMemoryTransport(workers(folder, files, tmp_path)), lambda line: None)
    assert ran("federation", "status", folder.path) == "finished, 50 of 50 rounds\n"
    scores = ran("evaluate", folder.path, "--data", files["north"])
    assert scores == ran("evaluate", folder.run, "--data", files["north"]) and "40" in scores
    site = tmp_path / "site"
    shutil.copytree(tmp_path / "north", site / STATE)
    assert "40" in ran("evaluate", site, "--data", files["north"])
    (site / DATA).write_text(str(files["north"]))
    with pytest.warns(UserWarning, match=r"is the data of the run, .*: these scores are too good$"):
        ran("evaluate", site, "--data", files["north"])
    ran("predict", folder.path, "--data", files["north"], "--out", tmp_path / "predictions.csv")
    ran("export", folder.path, "--out", tmp_path / "exported")
    assert str(folder.path / "report.html") in ran("report", folder.path)


def test_moved_run_folder_keeps_encoding(made, tmp_path):
    folder, _, files = made
    federation, test = folder.federation, folder.samples("test")
    transport = InMemoryTransport(workers(folder, files, tmp_path))
    Coordinator(federation, folder.key, transport, tmp_path / "run", test=test).run(
        stop=lambda row: True
    )
    copied = shutil.copytree(tmp_path / "run", tmp_path / "away" / "copy")
    assert Encoding.load(copied / "encoding.json") == federation.data.encoding
    config = {"federation": "fed", "data": {"input_shape": [5], "task": "classification"}}
    data = spec(str(files["north"]), {"target": "outcome"})
    x, _ = fitting(data, None, copied, config).merged()
    assert torch.equal(x, load(data, encoding=federation.data.encoding).merged()[0])


def test_local_federation_keeps_encoding(made, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "unalike.federation.operations.run_coordinator.coordinate", lambda *a, **more: None
    )
    data = spec(str(made[2]["sample"]), {"target": "outcome"})
    words = [
        "federation",
        "up",
        "--local",
        2,
        "--data",
        data,
        "--model",
        "linear",
        "--out",
        tmp_path / "local",
    ]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.exception
    encoding, file = load(data).encoding, tmp_path / "local" / "federation.toml"
    found = Federation.load(file).data.encoding
    assert (found, found.target) == (encoding, encoding.target)
    file.write_text(
        file.read_text().replace('target = "outcome"\n', "")
    )  # as of an older version: it goes on
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
    assert Federation.load(file).data.encoding.target is None


def test_local_federation_of_more_sites_than_owners_is_refused(made):
    data = spec(str(made[2]["sample"]), {"target": "outcome", "group": ["ward"]})
    done = CliRunner().invoke(
        app, ["federation", "up", "--local", "4", "--data", data, "--out", "local"]
    )
    assert "found --local 4, and the data has 3 owners" in str(done.exception)


def test_encoding_too_large_for_bundle_is_refused(made, tmp_path, monkeypatch):
    bundle = Bundle.read(made[0].bundles["north"])
    monkeypatch.setattr("unalike.federation.protocol.bundle.MAX_FILE_BYTES", 500)
    with pytest.raises(UnalikeError, match="too much for a bundle"):
        Bundle.write(
            tmp_path / "large.zip", "north", bundle.address, {}, bundle.authority, bundle.federation
        )


def test_federation_of_summaries_needs_no_sample(tmp_path):
    frames = {"north": patients(1, 30, "ab"), "south": patients(2, 80, "bc", 2)}
    words = ["federation", "init", tmp_path / "fed", "--sites", "north,south", "--model", "linear"]
    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
        summary = [
            "federation",
            "summarize",
            tmp_path / f"{name}.parquet",
            "--target",
            "outcome",
            "--least",
            2,
        ]
        done = CliRunner().invoke(
            app, [str(word) for word in [*summary, "--out", tmp_path / f"{name}.json"]]
        )
        assert done.exit_code == 0 and "read it before you send it" in done.output, done.output
        words += ["--summary", tmp_path / f"{name}.json"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0 and "2 summaries" in done.output, done.output
    folder = FederationFolder(tmp_path / "fed")
    federation = folder.federation
    assert federation.data.classes == ("ill", "well") and federation.data.shape == (5,)
    pooled = pd.concat([load_rows(frame)["age"] for frame in frames.values()])
    assert federation.data.encoding.numbers[0].mean == pytest.approx(
        pooled.mean(), rel=0.02
    )  # two ages are missing
    workers = {}
    for name in frames:
        own = site_data(
            Bundle.read(folder.bundles[name]).federation,
            str(tmp_path / f"{name}.parquet"),
            None,
            name,
        )
        workers[name] = SiteWorker(
            federation, name, Bundle.read(folder.bundles[name]).key, own, tmp_path / name
        )
    run = Coordinator(federation, folder.key, InMemoryTransport(workers), tmp_path / "run").run(
        stop=lambda row: True
    )
    assert run.params["head.weight"].shape == (2, 5)
    few = CliRunner().invoke(
        app, ["federation", "init", str(tmp_path / "few"), *map(str, words[3:-2])]
    )
    assert "expected one of every site, also of south" in str(few.exception)
    both = CliRunner().invoke(app, [*map(str, words), "--like", str(tmp_path / "north.parquet")])
    assert both.exit_code != 0
