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
            f"found inputs of shape {list(population.x.shape)} and {population.x.dtype}, expected tokens [N, T], or numbers "
            "as float32"
        )
    trained = trained_words(population)
    encoding = _trained_encoding(population.encoding, trained)
    return replace(population, x=replace_untrained(population.x, trained), encoding=encoding)


def trained_words(population: Population) -> Tensor:
    """Mark the tokens that occur in the clients' training samples: bool [largest token + 1]; padding counts as one."""
    rows = torch.from_numpy(np.unique(population.train.values)).to(population.x.device)
    trained = torch.zeros(int(population.x.max()) + 1, dtype=torch.bool, device=population.x.device)
    trained[population.x[rows].flatten()] = True
    trained[PADDING] = True
    return trained


def replace_untrained(x: Tensor, trained: Tensor) -> Tensor:
    """Replace every token of `x` that is not marked in `trained` by the unknown word."""
    return x.where((x < len(trained)) & trained[x.clamp_max(len(trained) - 1)], UNKNOWN)


def _trained_encoding(encoding: Encoding | None, trained: Tensor) -> Encoding | None:
    if encoding is None or encoding.words is None:
        return encoding
    words = (
        word if known else ""
        for word, known in zip_longest(encoding.words.words, trained[UNKNOWN + 1 :].tolist())
    )
    return replace(encoding, words=replace(encoding.words, words=tuple(words)))
