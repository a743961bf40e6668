"""Tasks with a class for each pixel or token, and reconstruction: losses and metrics by hand, and labels that they refuse."""

import math

import numpy as np
import pytest
import torch

import unalike as ua
from unalike._utils.errors import UnalikeError
from unalike.core.tasks.dense import NextToken, Segmentation, TokenClassification
from unalike.core.tasks.reconstruction import Reconstruction
from unalike.metrics.metrics import measure
from unalike.metrics.named_metrics import read
from unalike.metrics.scoring import score

LOG_3 = math.log(3)
"""A logit by which a class is three times as likely as one with the logit 0."""


def scores_of(task, logits, y):
    return score(task, lambda x: x, logits, y, np.zeros(len(y), np.int64))


def logits_of(masks, classes):
    """Logits [N, C, ...] that prefer these classes: log 3 for them, 0 for the others."""
    one_hot = torch.nn.functional.one_hot(masks, classes)
    return LOG_3 * one_hot.movedim(-1, 1).float()


def test_segmentation_scores_images_and_leaves_ignored_pixels_out():
    task = Segmentation(classes=2, ignored=255)
    # image 0: three pixels count, of which two are right; image 1: all four are of class 0, and right
    y = torch.tensor([[[0, 1], [1, 255]], [[0, 0], [0, 0]]])
    predicted = torch.tensor([[[0, 1], [0, 1]], [[0, 0], [0, 0]]])
    logits = logits_of(predicted, classes=2)

    # a preferred class has the probability 3/4, the other one 1/4
    losses = task.losses(logits, y)
    right, wrong = math.log(4 / 3), math.log(4)
    torch.testing.assert_close(losses, torch.tensor([(2 * right + wrong) / 3, right]))

    scores = scores_of(task, logits, y)
    chosen = {m.name: m for m in read(["class_iou(label=1)", "class_dice(label=1)"])}
    metrics = measure(task, scores, chosen)
    # image 0: class 0 is in 1 label and 2 predictions, 1 right; class 1 in 2 labels and 1 prediction, 1 right
    assert metrics["dice"] == pytest.approx(((2 / 3 + 2 / 3) / 2 + 1) / 2)
    assert metrics["iou"] == pytest.approx(((1 / 2 + 1 / 2) / 2 + 1) / 2)
    assert metrics["pixel_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    # image 1 has class 1 nowhere
    assert metrics["class_iou_1"] == pytest.approx(1 / 2)
    assert metrics["class_dice_1"] == pytest.approx(2 / 3)


def test_tokens_that_are_ignored_count_neither_in_perplexity_nor_in_accuracy():
    task = NextToken(classes=4)
    y = torch.tensor([[0, 1, -100], [2, -100, -100]])
    # the first token of text 0 is sure, and the others are drawn from all four
    logits = torch.zeros(2, 3, 4)
    logits[0, 0, 0] = LOG_3
    losses = task.losses(logits, y)
    sure = math.log((3 + 3) / 3)
    torch.testing.assert_close(losses, torch.tensor([(sure + math.log(4)) / 2, math.log(4)]))

    metrics = measure(task, scores_of(task, logits, y))
    mean_loss = ((sure + math.log(4)) / 2 + math.log(4)) / 2
    assert metrics["perplexity"] == pytest.approx(math.exp(mean_loss))
    # of equal logits the first class is predicted: right are one of two tokens, and none of one
    assert metrics["token_accuracy"] == pytest.approx((1 / 2 + 0) / 2)
    assert TokenClassification(classes=4).losses(logits, y).equal(losses)


def test_perplexity_of_texts_of_one_length_is_that_of_all_tokens():
    task = NextToken(classes=5, ignored=None)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 5, generator=generator)
    y = torch.randint(5, (3, 7), generator=generator)
    of_all_tokens = torch.nn.functional.cross_entropy(logits.reshape(21, 5), y.reshape(21)).exp()
    metrics = measure(task, scores_of(task, logits, y))
    assert metrics["perplexity"] == pytest.approx(of_all_tokens.item(), rel=1e-6)


def test_reconstruction_scores_the_inputs():
    task = Reconstruction()
    y = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    outputs = torch.tensor([[0.0, 0.0], [0.5, 0.3]])
    torch.testing.assert_close(task.losses(outputs, y), torch.tensor([0.5, 0.02]))
    [psnr] = read(["psnr(data_range=2)"])
    metrics = measure(task, scores_of(task, outputs, y), {"psnr": psnr})
    assert metrics["rmse"] == pytest.approx(math.sqrt(0.26))
    decibels = [10 * math.log10(4 / 0.5), 10 * math.log10(4 / 0.02)]
    assert metrics["psnr"] == pytest.approx(np.mean(decibels), rel=1e-5)


def test_one_place_a_sample_is_classification():
    y = torch.tensor([2, 0, 1])
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    of_pixel = Segmentation(classes=3).losses(logits[:, :, None, None], y[:, None, None])
    of_token = TokenClassification(classes=3).losses(logits[:, None], y[:, None])
    torch.testing.assert_close(of_pixel, expected)
    torch.testing.assert_close(of_token, expected)


def test_sample_of_padding_without_a_place_that_counts_has_the_loss_0():
    task = Segmentation(classes=2, ignored=255)
    assert task.losses(torch.randn(1, 2, 2, 2), torch.full((1, 2, 2), 255)).tolist() == [0]


def test_constant_predictions_reach_what_they_say():
    masks = torch.tensor([[[0, 0], [0, 1]], [[0, 0], [0, 0]]])
    text = Segmentation(classes=2).constant_prediction(masks, masks, None)
    # image 0: Dice of class 0 is 2 * 3 / (3 + 4), and of class 1 it is 0; image 1 has class 0 alone
    assert f"mean Dice of {(6 / 7 / 2 + 1) / 2:.4f} and a pixel accuracy of 0.8750" in text
    tokens = torch.tensor([[0, 0, 0, 1]])
    # shares with 1 more of each token: 4/6 and 2/6
    perplexity = math.exp(-(3 * math.log(4 / 6) + math.log(2 / 6)) / 4)
    assert f"perplexity of {perplexity:.4g}" in NextToken(classes=2).constant_prediction(
        tokens, tokens, None
    )


def clients_of(y, task, x=None):
    x = torch.zeros(len(y), 1, 2, 2) if x is None else x
    return ua.Population.of([ua.ClientData(train=(x, y), name="north")], task=task)


def test_number_of_classes_follows_from_labels_unless_it_is_given():
    masks = torch.tensor([[[0, 2], [1, 255]]])
    assert clients_of(masks, "segmentation(ignored=255)").outputs == 3
    assert clients_of(masks, "segmentation(classes=5, ignored=255)").outputs == 5
    # masks of other types, and with a channel
    whole = masks.clamp(max=1).to(torch.uint8)[:, None]
    assert clients_of(whole, "segmentation").y.shape == (1, 2, 2)
    assert clients_of(whole.bool(), "segmentation").task == Segmentation(classes=2)


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        ([0, 1], "segmentation", r"'north', train: y has shape \[2\], expected masks \[N, H, W\]"),
        ([[[0, 3]]], "segmentation(classes=3)", r"labels lie in 0\.\.3, expected 0\.\.2"),
        ([[[0, -100]]], "segmentation", r"ignored=-100"),
        (
            [[[0, 1]]],
            "segmentation(classes=2, ignored=1)",
            r"ignored=1, which is one of the classes",
        ),
        (
            [[[0, 255]]],
            "segmentation(ignored=0)",
            r"ignored=0, which is one of the classes 0\.\.255",
        ),
        ([[[0, 1]], [[9, 9]]], "segmentation(ignored=9)", r"sample 1 has no pixel that counts"),
        (
            [[[0.5, 1]]],
            "segmentation",
            r"labels are float32 in 0\.5\.\.1\.0, which task segmentation",
        ),
        ([[[0, 1]]], None, r"name their task, task= one of segmentation"),
        (
            None,
            "segmentation",
            r"found no labels, expected \(x, y\).*next_token and reconstruction",
        ),
        (None, "next_token", r"float32 inputs of shape \[2, 1, 2, 2\].*expected whole numbers"),
        ([0.5, 1], "reconstruction", r"expected no labels, \(x, None\)"),
    ],
)
def test_labels_that_a_task_cannot_have_say_what_to_do(y, task, message):
    y = None if y is None else torch.tensor(y)
    x = torch.zeros(2 if y is None else len(y), 1, 2, 2)
    with pytest.raises(UnalikeError, match=message):
        ua.Population.of([ua.ClientData(train=(x, y), name="north")], task=task)


def test_labels_of_texts_and_of_reconstructions_are_their_inputs():
    tokens = torch.tensor([[5, 3, 1], [2, 2, 0]])
    texts = clients_of(tokens, "next_token", x=tokens)
    shifted = ua.Population.of([ua.ClientData(train=(tokens, None))], task="next_token")
    assert texts.y.equal(tokens)
    assert shifted.y.tolist() == [[3, 1, -100], [2, 0, -100]]
    images = torch.rand(2, 1, 2, 2)
    dataset = ua.Dataset("images", (images, None), task="reconstruction")
    assert dataset.train[1].equal(images) and dataset.task == Reconstruction()
