"""Restrict token inputs to the words that occur in the clients' training samples.

`load` makes a vocabulary from the published training part, but a partition turns some of those samples into test samples.
Without this step a test sample could shape the vocabulary.
"""

from dataclasses import replace
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.data.population import Population
from unalike.data.table_encoding import Encoding
from unalike.data.text import PADDING, UNKNOWN


def restrict_vocabulary(population: Population) -> Population:
    """Return the population with every word that no client trains on replaced by the unknown word.

    The other words keep their tokens, so samples held out for the server use the same numbering.

    Raises `UnalikeError` for inputs that are not tokens.
    """
    if population.x.is_floating_point() or population.x.dim() != 2:
        raise UnalikeError(
            f"found inputs of shape {list(population.x.shape)} and "
            f"{population.x.dtype}, expected tokens [N, T], or numbers as float32"
        )
    trained = trained_words(population)
    encoding = _trained_encoding(population.encoding, trained)
    return replace(population, x=replace_untrained(population.x, trained), encoding=encoding)


def trained_words(population: Population) -> Tensor:
    """Mark the tokens that occur in the clients' training samples: bool [largest token + 1]; padding counts as one."""
    x = population.x
    rows = torch.from_numpy(np.unique(population.train.values)).to(x.device)
    trained = torch.zeros(int(x.max()) + 1, dtype=torch.bool, device=x.device)
    trained[x[rows].flatten()] = True
    trained[PADDING] = True
    return trained


def replace_untrained(x: Tensor, trained: Tensor) -> Tensor:
    """Replace every token of `x` that is not marked in `trained` by the unknown word."""
    last = len(trained) - 1
    # Larger tokens than any of the clients have no mark; the clamp only keeps the look-up within bounds.
    is_trained = (x <= last) & trained[x.clamp_max(last)]
    return x.where(is_trained, UNKNOWN)


def _trained_encoding(encoding: Encoding | None, trained: Tensor) -> Encoding | None:
    """The encoding with an empty word in the place of each word that is not marked."""
    if encoding is None or encoding.words is None:
        return encoding
    marks = trained[UNKNOWN + 1 :].tolist()
    words = [
        word if is_trained else "" for word, is_trained in zip_longest(encoding.words.words, marks)
    ]
    return replace(encoding, words=replace(encoding.words, words=tuple(words)))
