"""What every registered task declares, and that its loss, its predictions and its metrics fit together."""

import math

import numpy as np
import pytest
import torch
from every_method import PLANS
from every_task import (
    NAMES,
    ROWS,
    OneLayer,
    class_count,
    class_names,
    fitted,
    labels_of,
    population_of,
)
from small_federation import SmallFederation
from torch import nn

import unalike as ua
from unalike.core.tasks.registry import find_task, task_for
from unalike.core.tasks.task import CLASSES, Task
from unalike.core.types import Batch
from unalike.federation.protocol.federation_file import Schema
from unalike.loops import kernels
from unalike.methods.plan import method_of
from unalike.metrics.metric_sums import MetricSums, names_computed_by_client
from unalike.metrics.metrics import measure, metric_names, per_client
from unalike.metrics.named_metrics import metric_named
from unalike.metrics.scoring import score
from unalike.models.registry import registry as models

every = pytest.mark.parametrize("name", NAMES)


def logits_of(task, y):
    shape = task.output_shape(class_count(task), y.shape[1:])
    return torch.randn(len(y), *shape, generator=torch.Generator().manual_seed(1))


def scores_of(task, y, logits, owners=None):
    owners = np.zeros(len(y), np.int64) if owners is None else owners
    return score(task, lambda x: x, logits, y, owners, logits=True)


@every
def test_task_declares_what_others_ask(name):
    task = find_task(name)
    assert task.name == name and type(task).__doc__
    assert task.label_type in (torch.int64, torch.bool, torch.float32)
    assert task.labels_in_words and task.metrics[0] == "loss"
    assert task.compiled_loss is None or task.compiled_loss in kernels.LOSSES
    assert not task.class_names or task.offers(CLASSES)


@every
def test_tasks_of_one_name_are_equal_values(name):
    task = find_task(name)
    assert task == find_task(name) and hash(task) == hash(find_task(name))
    assert [other for other in NAMES if find_task(other) == task] == [name]


@every
def test_task_takes_its_own_labels(name):
    task = fitted(name)
    y = labels_of(task)
    assert task.label_fault(y, class_count(task)) == ""
    # a task that takes no labels by default is named
    assert not task.takes(y) or task_for(y) == task


@every
def test_mean_of_losses_is_the_loss(name):
    task = fitted(name)
    y = labels_of(task)
    logits = logits_of(task, y)
    losses = task.losses(logits, y)
    assert losses.shape == (ROWS,) and losses.isfinite().all()
    torch.testing.assert_close(task.loss(logits, y), losses.mean())
    torch.testing.assert_close(task.stacked.losses(logits, y), losses)
    torch.testing.assert_close(task.stacked.loss(logits, y), losses.mean())


@every
def test_built_in_losses_are_not_negative(name):
    """What a federation refuses of a site, samples do not give; a task of one's own may have other losses."""
    task = fitted(name)
    y = labels_of(task)
    assert not task.loss_may_be_negative
    assert (task.losses(3 * logits_of(task, y), y) >= 0).all()
    assert Task.loss_may_be_negative


@every
def test_batch_loss_leaves_out_padding(name):
    task = fitted(name)
    y = labels_of(task)
    logits = logits_of(task, y)
    weight = (torch.arange(ROWS) < 25).float()
    whole = task.batch_loss(logits, Batch(logits, y))
    padded = task.batch_loss(logits, Batch(logits, y, weight))
    nothing = task.batch_loss(logits, Batch(logits, y, torch.zeros(ROWS)))
    torch.testing.assert_close(whole, task.loss(logits, y))
    torch.testing.assert_close(padded, task.loss(logits[:25], y[:25]))
    assert nothing == 0


@every
def test_predictions_have_the_shape_of_labels(name):
    task = fitted(name)
    y = labels_of(task)
    logits = logits_of(task, y)
    label, predicted = task.scored(logits, y)
    assert len(label) == len(predicted) == len(task.predict(logits)) == ROWS
    # a label of a fixed shape says more than what is predicted, such as a time and an event
    assert task.label_shape or predicted.shape == label.shape == y.shape
    probabilities = task.probabilities(logits)
    assert (probabilities is None) != task.offers(CLASSES)
    if probabilities is not None:
        assert probabilities.shape == (ROWS, class_count(task))
        torch.testing.assert_close(probabilities.sum(1), torch.ones(ROWS))


class Predictions(nn.Module):
    """Predictions from outputs, as an exported model makes them."""

    def __init__(self, task):
        super().__init__()
        self.task = task

    def forward(self, logits):
        return self.task.predict(logits)


@every
def test_predictions_are_exported_for_any_number_of_samples(name):
    task = fitted(name)
    logits = logits_of(task, labels_of(task))
    rows = {0: torch.export.Dim("rows")}
    program = torch.export.export(Predictions(task), (logits[:2],), dynamic_shapes=(rows,))
    predict = program.module()
    torch.testing.assert_close(predict(logits), task.predict(logits))
    torch.testing.assert_close(predict(logits[:1]), task.predict(logits[:1]))


@every
def test_kept_logits_have_one_row_a_sample(name):
    task = fitted(name)
    logits = logits_of(task, labels_of(task))
    assert len(task.scored_logits(logits, wanted=False)) == ROWS
    assert task.scored_logits(logits, wanted=True).numel() == logits.numel()


@every
def test_no_sample_has_no_loss_and_no_prediction(name):
    task = fitted(name)
    y = labels_of(task)
    scores = scores_of(task, y[:0], logits_of(task, y)[:0])
    assert len(scores.loss) == len(scores.predicted) == len(scores.logits) == 0


@every
def test_metrics_that_a_task_names_exist_and_are_measured(name):
    task = fitted(name)
    y = labels_of(task)
    scores = scores_of(task, y, logits_of(task, y))
    assert all(metric_named(metric).fits(task) for metric in task.metrics)
    measured = measure(task, scores)
    assert tuple(measured) == task.metrics == metric_names(task)
    assert np.isfinite([*measured.values()]).all()


@every
def test_sums_of_clients_give_the_metrics_of_all_samples(name):
    task = fitted(name)
    y = labels_of(task)
    owners = np.arange(ROWS) % 3
    scores = scores_of(task, y, logits_of(task, y), owners)
    classes = class_count(task) or 0
    total = MetricSums()
    for client, own_metrics in enumerate(per_client(task, scores, 3)):
        rows = owners == client
        sums = MetricSums.of(task, scores.of(rows))
        read = MetricSums.read(sums.as_fields(), task, int(rows.sum()), classes)
        assert read.metrics(task) == pytest.approx(own_metrics, rel=1e-5)
        total = total.added(read)
    pooled = total.metrics(task)
    whole = measure(task, scores)
    for metric in set(task.metrics) - set(names_computed_by_client(task)):
        assert pooled[metric] == pytest.approx(whole[metric], rel=1e-5)


@every
def test_constant_prediction_is_a_sentence(name):
    task = fitted(name)
    y = labels_of(task)
    text = task.constant_prediction(y[:20], y[20:], class_names(task))
    assert text == "" or text.startswith("always predicting ")


@every
def test_training_is_alike_in_loop_and_batched(name):
    task = fitted(name)
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(2))
    y = labels_of(task)
    # clients of unlike sizes, so that a batch of stacked clients has padding
    sizes = (7, 12, 21)
    clients = []
    for some, labels in zip(x.split(sizes), y.split(sizes), strict=True):
        clients.append(ua.ClientData(train=(some, labels), test=(some[:5], labels[:5])))
    population = ua.Population.of(clients, class_names(task), task)
    work = ua.Work(batch_size=4, lr=0.05)
    model = "linear"
    if task.predicts_arrays:
        model = OneLayer(3, task.output_shape(None, y.shape[1:]))
    runs = []
    for executor in ("loop", "batched"):
        runs.append(
            ua.run("fedavg", population, model=model, rounds=2, work=work, executor=executor)
        )
    loop, batched = runs
    for parameter, value in loop.params.items():
        torch.testing.assert_close(batched.params[parameter], value)
    losses = loop.history.rounds["loss"]
    assert losses.iloc[-1] < losses.iloc[0]
    assert len(loop.predict(x[:5].numpy())) == 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@every
def test_task_is_served_in_a_federation_in_reports_and_by_exported_models(
    name, tmp_path, monkeypatch
):
    clients = population_of(fitted(name))
    task = clients.task
    outputs = task.output_shape(class_count(task), clients.y.shape[1:])
    # sites make their model by its name
    monkeypatch.setitem(
        models._builders, "one_layer", lambda input_shape, classes: OneLayer(4, outputs)
    )
    work = ua.Work(batch_size=20, lr=0.01)
    options = {"model": "one_layer", "rounds": 2, "work": work, "progress": False}
    run = ua.run("fedavg", clients, executor="loop", out=tmp_path / "run", **options)

    schema = Schema.like((clients.x, clients.y), class_names(task), task, None)
    people = [ua.ClientData(*pairs, name=f"site{k}") for k, pairs in enumerate(pairs_of(clients))]
    federation = SmallFederation(
        tmp_path / "sites", people, data=schema, model="one_layer", work=work
    )
    for parameter, value in federation.run().params.items():
        assert value.equal(run.params[parameter])

    x = clients.x[:5]
    opened = ua.open_run(tmp_path / "run")
    np.testing.assert_array_equal(run.predict(x.numpy()), opened.predict(x.numpy()))
    run.export(tmp_path / "model")
    exported = torch.export.load(tmp_path / "model" / "model.pt2").module()
    predicts = (
        task.predict if task.probabilities(torch.zeros(1, *outputs)) is None else task.probabilities
    )
    # a layer takes whole numbers as numbers, and so does its program
    torch.testing.assert_close(exported(x.float()), predicts(run.predictor()(x)))

    comparison = ua.compare(["fedavg", "fedprox"], clients, seeds=2, **options)
    page = comparison.report(tmp_path / "report.html").read_text()
    assert comparison.columns.metric.title in page


def pairs_of(clients):
    """The training and test samples of each client."""
    for train, test in zip(clients.train, clients.test):
        yield (clients.x[train], clients.y[train]), (clients.x[test], clients.y[test])


def unmet_needs(method, task):
    """The traits that a method or plan needs and the task lacks."""
    needed = {part.needs_of_task for part in method_of(method).parts} | {method.needs_of_task}
    return [trait for trait in needed if trait and not task.offers(trait)]


OTHER_NEEDS = {
    "conditional": ["conditional"],
    "cluster_oracle": ["needs the true clusters"],
    "combat": ["expected rows"],
    "newton": ["newton fits one label of each sample"],
    "newton_own_intercepts": ["newton fits one label of each sample", "baseline hazards"],
}
"""Method -> why it does not run on some of these tasks, beside the trait that it needs of them."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "classification"])
def test_every_method_runs_on_the_task_or_says_which_trait_it_needs(name):
    """Exactly those are refused for the task that declare a need which it lacks; others may need more of the setting."""
    task = fitted(name)
    clients = population_of(task)
    outputs = task.output_shape(class_count(task), clients.y.shape[1:])
    silent, refused_for_others = [], {}
    for spec, method in PLANS.items():
        unmet = unmet_needs(method, task)
        # exact fits have no layer below the head
        width = 0 if "newton" in spec else 8
        try:
            run = ua.run(
                method,
                clients,
                model=lambda width=width: OneLayer(4, outputs, width),
                rounds=1,
                work=ua.Work(batch_size=20, lr=0.01),
                proxy=(clients.x[:6], clients.y[:6]),
                progress=False,
            )
        except ua.UnalikeError as error:
            if not unmet:
                refused_for_others[spec] = str(error)
            continue
        if unmet:
            silent.append(spec)
        # without a shared model there is no loss of one
        last = run.history.last
        assert math.isfinite(last["loss"]) or math.isfinite(last["train_loss"]), spec
    assert not silent
    assert refused_for_others.keys() <= OTHER_NEEDS.keys(), refused_for_others
    for spec, why in refused_for_others.items():
        assert any(words in why for words in OTHER_NEEDS[spec]), why
