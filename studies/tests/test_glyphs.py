"""The stand-in for EMNIST."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

from unalike._utils.errors import UnalikeError
from unalike.data import load
from unalike_studies.glyphs import BLOCK_SAMPLES, FONTS, glyphs


@pytest.fixture(scope="module")
def drawn():
    return glyphs(train=6 * BLOCK_SAMPLES, test=BLOCK_SAMPLES)


def test_glyphs_shape_classes_and_ink_match_emnist(drawn):
    assert (
        drawn.input_shape == (1, 28, 28)
        and "".join(drawn.classes[9:12]) == "9AB"
        and len(drawn.classes) == 62
    )
    assert torch.bincount(drawn.train[1]).tolist() == [96] * 62
    x = drawn.merged()[0]
    assert x.min() == 0 and x.max() == 1 and 0.1 < x.mean() < 0.25
    assert set(drawn.groups["font"]) == set(FONTS)


def test_glyphs_same_seed_gives_same_samples_and_more_extend_fewer(drawn):
    fewer = glyphs(train=100, test=10)
    assert torch.equal(fewer.train[0], drawn.train[0][:100]) and torch.equal(
        fewer.test[1], drawn.test[1][:10]
    )
    assert (
        glyphs(train=100, test=10).fingerprint
        == fewer.fingerprint
        != glyphs(train=100, test=10, seed=1).fingerprint
    )
    assert len(torch.unique(drawn.merged()[0].flatten(1), dim=0)) == 7 * BLOCK_SAMPLES


def test_glyphs_trained_model_confuses_similar_letters(drawn):
    (x, y), (test_x, test_y) = drawn.train, drawn.test
    model = RidgeClassifier(alpha=30).fit(x.flatten(1).numpy(), y.numpy())
    wrong = model.predict(test_x.flatten(1).numpy())
    names = np.array(drawn.classes)
    found, true = names[wrong], names[test_y.numpy()]
    alike = [set("0Oo"), set("1Il"), set("2Zz"), *({c, c.upper()} for c in "cksuvwxpmy")]
    accuracy = (found == true).mean()
    mistakes = [any({a, b} <= group for group in alike) for a, b in zip(found, true) if a != b]
    # Chance would mix up look-alikes in 1 of 61 mistakes; a linear model is no good at the others either.
    assert 0.4 < accuracy < 0.9 and np.mean(mistakes) > 0.12


def test_glyphs_documentation_says_it_is_not_emnist():
    assert "not EMNIST" in glyphs.__doc__ and load("glyphs", train=3, test=0).test is None
    with pytest.raises(UnalikeError, match="found train=0"):
        load("glyphs(train=0)")


@pytest.mark.parametrize("option", ["train=0", "test=-1", "seed=-1", "train=1.5"])
def test_glyphs_invalid_counts_or_seed_raise(option):
    with pytest.raises(UnalikeError, match=f"found {option}, expected a whole number"):
        load(f"glyphs({option})")
