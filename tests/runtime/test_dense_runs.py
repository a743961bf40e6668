"""Masks, texts and reconstructions through a whole run: training, stop rules, scores, files, predictions, reports."""

import json

import numpy as np
import pytest
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError

SIDE = 8
UNET = "unet(width=4, depth=1)"


def images_with_masks(samples, seed=0):
    """Noisy images [N, 1, 8, 8] and masks of their bright half, whose border pixels do not count."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 1, SIDE, SIDE)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    y[:, 0] = 255
    return x, y


def segmented(owners=("north", "south", "west"), samples=24):
    x, y = images_with_masks(samples * len(owners))
    return ua.Dataset(
        "blobs",
        train=(x, y),
        groups={"clinic": np.repeat(owners, samples)},
        task="segmentation(ignored=255)",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    clients = ua.partition(segmented(), val=0.2)
    return ua.run(
        "fedavg",
        clients,
        model=UNET,
        rounds=4,
        work=ua.Work(batch_size=5, lr=0.1),
        select="best",
        stop="dice >= 0.99",
        metric=["class_iou(label=1)"],
        out=tmp_path_factory.mktemp("runs") / "unet",
    )


def test_run_of_masks_is_scored_by_images_and_chosen_by_a_metric_of_masks(run):
    rounds = run.history.rounds
    assert rounds["dice"].iloc[-1] > rounds["dice"].iloc[0]
    assert run.history.columns.metric.name == "class_iou_1"
    assert run.config["data"]["task"] == "segmentation(classes=2, ignored=255)"
    # clients are weighted by images
    clients = run.history.clients
    sizes = clients[clients["round"] == 0].set_index("client")["n_train"]
    assert set(sizes) == {15}


def test_masks_are_predicted_as_an_array_from_the_run_its_folder_and_its_export(run, tmp_path):
    x, _ = images_with_masks(3, seed=1)
    predicted = run.predict(x)
    assert predicted.shape == (3, SIDE, SIDE) and predicted.dtype == np.int64
    with torch.no_grad():
        masks = run.predictor()(torch.from_numpy(x)).argmax(1).numpy()
    np.testing.assert_array_equal(predicted, masks)
    np.testing.assert_array_equal(ua.open_run(run.out).predict(x), predicted)

    run.export(tmp_path / "model")
    program = torch.export.load(tmp_path / "model" / "model.pt2").module()
    np.testing.assert_array_equal(program(torch.from_numpy(x)).numpy(), predicted)
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert facts["output"] == "predictions [n, ...] in the shape of the labels"


def test_masks_train_alike_in_loop_and_batched():
    clients = ua.partition(segmented(), seed=1)
    runs = []
    for executor in ("loop", "batched"):
        work = ua.Work(batch_size=7, lr=0.1)
        runs.append(ua.run("scaffold", clients, model=UNET, rounds=2, work=work, executor=executor))
    loop, batched = runs
    for name, value in loop.params.items():
        torch.testing.assert_close(batched.params[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["segmentation", "next_token", "reconstruction"])
def test_methods_are_compared_and_reported(task, tmp_path):
    rng = np.random.default_rng(0)
    owners = np.repeat(["a", "b", "c"], 12)
    if task == "segmentation":
        x, y = images_with_masks(36)
        data = ua.Dataset("masks", (x, np.minimum(y, 1)), groups={"owner": owners}, task=task)
        model = UNET
    elif task == "next_token":
        tokens = rng.integers(0, 6, (36, 5))
        data = ua.Dataset("texts", (tokens, None), groups={"owner": owners}, task=task)
        model = "char_lstm(vocabulary=6, embedding=4, hidden=6, layers=1, every=True)"
    else:
        rows = rng.normal(size=(36, 5)).astype(np.float32)
        data = ua.Dataset("rows", (rows, None), groups={"owner": owners}, task=task)
        model = "mlp(hidden=(3,))"
    comparison = ua.compare(
        ["fedavg", "fedprox"],
        data=data,
        model=model,
        rounds=2,
        seeds=2,
        work=ua.Work(batch_size=6),
        out=tmp_path / "comparison",
    )
    metric = {"segmentation": "dice", "next_token": "perplexity", "reconstruction": "rmse"}[task]
    assert comparison.columns.metric.name == metric
    assert comparison.summary["difference"].notna().any()
    page = comparison.report(tmp_path / "report.html").read_text()
    assert comparison.columns.metric.title in page


def test_methods_and_partitions_that_need_classes_say_so():
    clients = ua.partition(segmented())
    for method in ("fedntd", "feature_alignment", "feddisco", "balanced_softmax"):
        with pytest.raises(UnalikeError, match=r"needs classes.*found a task of segmentation"):
            ua.run(method, clients, model=UNET, rounds=1)
    with pytest.raises(UnalikeError, match="labels that are no classes: give groups"):
        ua.partition(segmented(), "dirichlet(alpha=0.1)", clients=3)
    with pytest.raises(UnalikeError, match="rotation moves the pixels of images"):
        ua.partition(segmented(), "rotation", clients=4)
    with pytest.raises(UnalikeError, match="changes images at random and leaves their labels"):
        ua.run("fedavg", clients, model=UNET, rounds=1, transform="flip")


@pytest.mark.parametrize("model", ["cnn", torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))])
def test_model_without_an_output_for_each_class_and_pixel_is_refused(model):
    with pytest.raises(UnalikeError, match=r"expected \[2, 2, 8, 8\], a logit of each class for"):
        ua.run("fedavg", ua.partition(segmented()), model=model, rounds=1)
