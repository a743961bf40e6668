"""Losses in the place of the task's: torch's numbers, class weights, padding, and what is refused."""

import pytest
import torch
import torch.nn.functional as F

from unalike._utils.errors import UnalikeError
from unalike.core.losses import COUNTS, GivenLoss, class_counts, loss
from unalike.core.tasks.registry import find_task
from unalike.core.types import Batch

GEN = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(12, 4, generator=GEN, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 0, 0, 1, 2, 0, 0, 0, 1, 2])
"""6, 3, 3 and no samples of the four classes."""
BATCH = Batch(torch.zeros(12, 1), LABELS)
FACTS = {COUNTS: class_counts(LABELS, 4)}


def value(text, logits=LOGITS, batch=BATCH):
    return loss(text).mean(logits, batch, FACTS)


def test_cross_entropy_equals_torch():
    torch.testing.assert_close(value("cross_entropy"), F.cross_entropy(LOGITS, LABELS))
    smooth = F.cross_entropy(LOGITS, LABELS, label_smoothing=0.2)
    torch.testing.assert_close(value("cross_entropy(label_smoothing=0.2)"), smooth)


def test_class_weights_equal_torch_without_division_by_mean_weight_of_batch():
    w = torch.tensor([1.0, 5.0, 0.5, 0.0], dtype=torch.float64)
    for s in (0.0, 0.3):
        per_sample = F.cross_entropy(LOGITS, LABELS, w, reduction="none", label_smoothing=s)
        found = value(f"cross_entropy(class_weights=(1, 5, 0.5, 0), label_smoothing={s})")
        torch.testing.assert_close(found, per_sample.mean())
    as_torch = F.cross_entropy(LOGITS, LABELS, w) * w[LABELS].mean()
    torch.testing.assert_close(value("cross_entropy(class_weights=(1, 5, 0.5, 0))"), as_torch)


def test_balanced_weights_let_the_classes_of_a_client_count_the_same():
    """12 samples in 3 classes of 6, 3 and 3: weights 2/3, 4/3 and 4/3; absent classes have none."""
    means = torch.stack(
        [F.cross_entropy(LOGITS[c == LABELS], LABELS[c == LABELS]) for c in range(3)]
    )
    torch.testing.assert_close(value("cross_entropy(class_weights='balanced')"), means.mean())
    same = value(f"focal(gamma=0, class_weights=({2 / 3}, {4 / 3}, {4 / 3}, 0))")
    torch.testing.assert_close(value("focal(gamma=0, class_weights='balanced')"), same)


def test_focal_equals_its_formula_and_cross_entropy_at_gamma_zero():
    p = LOGITS.softmax(1)[torch.arange(12), LABELS]
    torch.testing.assert_close(value("focal(gamma=1.5)"), (-((1 - p) ** 1.5) * p.log()).mean())
    torch.testing.assert_close(value("focal(gamma=0)"), F.cross_entropy(LOGITS, LABELS))


@pytest.mark.parametrize("gamma", [0, 0.5, 1, 2])
def test_focal_has_finite_gradient_where_the_model_is_sure(gamma):
    z = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    value(f"focal(gamma={gamma})", z, Batch(torch.zeros(2, 1), torch.tensor([0, 0]))).backward()
    assert z.grad.isfinite().all() and z.grad[1].abs().sum() == pytest.approx(1)


def test_one_logit_stands_for_false_and_true():
    z, y = LOGITS[:, :1], LABELS > 0
    binary = Batch(torch.zeros(12, 1), y)
    torch.testing.assert_close(
        value("cross_entropy", z, binary), F.binary_cross_entropy_with_logits(z[:, 0], y.double())
    )
    per_sample = F.binary_cross_entropy_with_logits(z[:, 0], y.double(), reduction="none")
    weighted = (per_sample * torch.where(y, 7.0, 2.0)).mean()
    torch.testing.assert_close(value("cross_entropy(class_weights=(2, 7))", z, binary), weighted)


def test_huber_equals_torch():
    z, y = LOGITS[:, :1], LOGITS[:, 1]
    batch = Batch(torch.zeros(12, 1), y)
    torch.testing.assert_close(
        value("huber(delta=0.7)", z, batch), F.huber_loss(z[:, 0], y, delta=0.7)
    )


@pytest.mark.parametrize(
    "text", ["cross_entropy(label_smoothing=0.1)", "focal(class_weights='balanced')"]
)
def test_padding_is_left_out(text):
    weight = torch.tensor([1.0] * 5 + [0.0] * 7, dtype=torch.float64)
    alone = loss(text).mean(LOGITS[:5], Batch(BATCH.x[:5], LABELS[:5]), FACTS)
    torch.testing.assert_close(value(text, LOGITS, BATCH._replace(weight=weight)), alone)


def test_function_gives_a_scalar_or_a_loss_for_each_sample():
    weight = torch.tensor([1.0] * 5 + [0.0] * 7, dtype=torch.float64)
    per_sample = GivenLoss(lambda z, y: F.cross_entropy(z, y, reduction="none"))
    found = per_sample.mean(LOGITS, BATCH._replace(weight=weight), {})
    torch.testing.assert_close(found, F.cross_entropy(LOGITS[:5], LABELS[:5]))
    torch.testing.assert_close(
        loss(F.cross_entropy).mean(LOGITS, BATCH, {}), F.cross_entropy(LOGITS, LABELS)
    )


def test_function_is_given_outputs_and_labels_of_one_shape_where_the_model_has_one_output():
    y = LABELS > 0
    found = loss(F.binary_cross_entropy_with_logits).mean(LOGITS[:, :1], Batch(BATCH.x, y), {})
    torch.testing.assert_close(found, F.binary_cross_entropy_with_logits(LOGITS[:, 0], y.double()))
    found = loss(F.mse_loss).mean(LOGITS[:, :1], Batch(BATCH.x, LOGITS[:, 1]), {})
    torch.testing.assert_close(found, F.mse_loss(LOGITS[:, 0], LOGITS[:, 1]))


@pytest.mark.parametrize(
    "wrong, says",
    [
        (
            lambda z, y: z,
            r"gives a tensor of shape \[12, 4\]; expected a scalar, or a loss for each of the 12 samples",
        ),
        (lambda z, y: 3.0, "gives float; expected a scalar"),
        (lambda z, y: None, "gives NoneType; expected a scalar"),
    ],
)
def test_function_with_another_result_is_refused(wrong, says):
    with pytest.raises(UnalikeError, match=says):
        loss(wrong).mean(LOGITS, BATCH, {})


@pytest.mark.parametrize(
    "text, task, says",
    [
        (
            "focal(class_weights=(1, 2))",
            "classification",
            "found 2 class weights; expected 4, one for each class",
        ),
        ("focal", "regression", "found a task of regression; expected classification or binary"),
        ("huber", "classification", "found a task of classification; expected regression"),
    ],
)
def test_loss_that_does_not_fit_the_task_is_refused(text, task, says):
    with pytest.raises(UnalikeError, match=says):
        loss(text).check(find_task(task), 4)


@pytest.mark.parametrize(
    "wrong", ["focla", "focal(gamma=-1)", "focal(gama=1)", "cross_entropy(label_smoothing=2)"]
)
def test_unknown_name_or_option_is_refused(wrong):
    with pytest.raises(UnalikeError, match=r"did you mean|greater|less"):
        loss(wrong)


def test_class_is_refused_and_told_how_objectives_are_added():
    with pytest.raises(
        UnalikeError,
        match=r"objective of your own is added to methods, as in 'fedprox \+ my_objective'",
    ):
        loss(torch.nn.CrossEntropyLoss)
