"""`ua.diagnose` and its result: table, JSON, figures, page, errors."""

import json

import numpy as np
import pytest

import unalike as ua


def test_diagnosis_of_data_equals_that_of_its_clients():
    of_data = ua.diagnose(
        6, data="digits", partition="dirichlet(alpha=0.3)", seed=2, progress=False
    )
    clients = ua.partition(ua.load("digits"), "dirichlet(alpha=0.3)", clients=6, seed=2)
    of_clients = ua.diagnose(clients, seed=2, progress=False)
    assert of_data.table.equals(of_clients.table) and of_data.name.startswith(
        "digits, dirichlet(alpha=0.3"
    )


def test_summary_says_each_kind_in_words(plant):
    clients = plant([48] * 6, labels_of=lambda k: [0, 1, 2, 3] if k < 3 else [1, 0, 3, 2])
    found = ua.diagnose(clients, progress=False)
    assert str(found) == found.summary == " ".join(found.findings)
    kinds = [sentence.partition(":")[0] for sentence in found.findings]
    assert kinds == ["Label skew", "Quantity skew", "Feature skew", "Concept shift", "Clusters"]
    assert "none beyond chance" in found.findings[0] and "none" in found.findings[1]
    assert "the same inputs have other labels" in found.findings[3]
    assert repr(found).startswith(
        "<Diagnosis of 6 clients with 288 samples: "
    ) and "concept shift" in repr(found)
    assert "Label skew" in found._repr_html_() and "<table>" in found._repr_html_()


def test_table_and_json_hold_every_measure(trained):
    content = json.loads(trained.to_json())
    assert list(content["measures"]) == list(trained.table.index) == list(trained.measures)
    assert {
        "label_tv",
        "label_js",
        "label_hellinger",
        "size_gini",
        "size_ratio",
        "drift",
        "cosine",
    } <= set(trained.table.index)
    assert content["measures"]["label_tv"]["scale"]["iid"] > 0
    assert np.sum(content["counts"]) == trained.counts.to_numpy().sum()
    bounded = trained.table.dropna(subset=["low"])
    assert (bounded["low"] <= bounded["value"]).all() and (
        bounded["value"] <= bounded["high"]
    ).all()


@pytest.mark.parametrize(
    "kind", ["labels", "scale", "distances", "concepts", "clusters", "cosines", "layers"]
)
def test_plot_draws_every_kind(trained, kind):
    assert trained.plot(kind).data


def test_plot_unknown_or_missing_kind_is_refused(plant):
    found = ua.diagnose(plant([24] * 3), progress=False)
    with pytest.raises(
        ua.UnalikeError, match="unknown figure of a diagnosis 'label'; did you mean 'labels'"
    ):
        found.plot("label")
    with pytest.raises(ua.UnalikeError, match="rounds=5"):
        found.plot("layers")


def test_save_writes_page_and_numbers(trained, tmp_path):
    page = trained.save(tmp_path / "deep" / "diagnosis")
    assert (
        page.name == "diagnosis.html"
        and json.loads((page.parent / "diagnosis.json").read_text())["name"] == trained.name
    )
    text = page.read_text()
    assert "All measures; heterogeneity is found where p is at most 0.01" in text
    assert all(
        f'id="panel-{key}"' in text
        for key in ("scale", "labels", "distances", "clusters", "cosines", "layers")
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(ua.UnalikeError, match="cannot write"):
        trained.save(tmp_path / "file")


def test_page_escapes_names_of_clients_and_classes(tmp_path):
    rng = np.random.default_rng(0)
    clients = [
        ua.ClientData(
            train=(rng.normal(size=(20, 2)).astype(np.float32), np.arange(20) % 2),
            name=f"<script>alert({k})",
        )
        for k in range(4)
    ]
    text = ua.diagnose(clients, progress=False).save(tmp_path).read_text()
    assert "<script>alert(" not in text


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "found no data"),
        ({"rounds": -1}, "rounds=-1"),
        ({"round": 3}, "did you mean 'rounds'"),
        ({"learning_rate": 0.1}, r"work=ua.Work\(lr="),
        ({"features": "resnet"}, "features='resnet'"),
        ({"partition": "dirichlat"}, "did you mean"),
    ],
)
def test_diagnose_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ua.UnalikeError, match=message):
        ua.diagnose(**({"data": "digits"} if "partition" in arguments else {}) | arguments)


def test_diagnose_one_client_is_refused(plant):
    with pytest.raises(ua.UnalikeError, match="two or more"):
        ua.diagnose(plant([24]))


@pytest.mark.parametrize(
    "features", [lambda x: x[:3], lambda x: x.sum(), lambda x: x / 0, lambda x: x @ x]
)
def test_diagnose_wrong_features_are_refused(plant, features):
    with pytest.raises(ua.UnalikeError, match="one row of"):
        ua.diagnose(plant([24] * 3), features=features)


def test_diagnose_constant_features_and_empty_clients_are_left_out():
    x, y = np.ones((12, 2), np.float32), np.arange(12) % 2
    clients = [
        ua.ClientData(train=(x, y)),
        ua.ClientData(train=(x, y)),
        ua.ClientData(train=(x[:0], y[:0])),
    ]
    found = ua.diagnose(clients, progress=False)
    assert len(found.counts) == 2 and "1 of 3 clients" in found.notes[0]
    assert "feature_distance" not in found.measures and "not tested" in found.findings[2]


def test_diagnose_texts_compares_word_counts(tmp_path):
    rng = np.random.default_rng(0)
    clients = [
        ua.ClientData(
            train=(
                rng.integers(1 + 10 * (k > 1), 11 + 10 * (k > 1), size=(40, 6)),
                np.arange(40) % 2,
            )
        )
        for k in range(4)
    ]
    assert ua.diagnose(clients, progress=False).measures["feature_distance_within"].found


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_page_draws_every_chart_in_a_browser(trained, browser, tmp_path, width):
    address, complaints, requests = trained.save(tmp_path).as_uri(), [], []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    for panel in page.locator(".panel").all():
        for label in panel.locator(".views label").all():
            label.click()
        panel.locator(".plot:visible svg.main-svg").first.wait_for()
    assert page.locator(".panel").count() == 7
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
