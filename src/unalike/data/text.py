"""Text as tokens: words, a vocabulary, padding and its mask, and bags of words.

Token 0 is padding, token 1 a word outside the vocabulary; words count from 2, the most frequent first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError
from unalike.data.population import Population

if TYPE_CHECKING:
    from unalike.data.table_encoding import Encoding

PADDING, UNKNOWN = 0, 1
WORD = re.compile(r"\w+(?:'\w+)?")


def words(text: str) -> list[str]:
    """Lower-case runs of letters and digits, with what follows an apostrophe.

    >>> words("It's 5 o'clock -- run!")
    ["it's", '5', "o'clock", 'run']
    """
    return WORD.findall(text.lower())


def vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """The `size` - 2 most frequent words with their tokens, equally frequent ones in alphabetical order."""
    if size < 3:
        raise UnalikeError(f"found vocabulary={size}, expected at least 3: padding, the unknown word and one word")
    counts = Counter(chain.from_iterable(map(words, texts)))
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: size - 2]
    return {word: token for token, (word, _) in enumerate(frequent, start=UNKNOWN + 1)}


def encode(texts: Sequence[str], known: Mapping[str, int], length: int) -> np.ndarray:
    """Tokens int64 [N, length]: the first `length` words of each text, then padding.

    A text without a word is one unknown word, so that no sample is padding alone.
    """
    if length < 1:
        raise UnalikeError(f"found length={length}, expected at least one word")
    tokens = np.full((len(texts), length), PADDING, np.int64)
    for row, text in zip(tokens, texts):
        ids = [known.get(word, UNKNOWN) for word in words(text)[:length]] or [UNKNOWN]
        row[: len(ids)] = ids
    return tokens


def mask(x: Tensor) -> Tensor:
    """Which tokens are words, bool of the shape of `x`; the others are padding and must not count."""
    return x != PADDING


def bag(x: Tensor, size: int) -> Tensor:
    """How often each word of the vocabulary occurs: tokens [N, T] to float32 rows [N, size - 2].

    Padding and unknown words are left out, so column j counts token j + 2.
    """
    counts = torch.zeros(len(x), size)
    counts.scatter_add_(1, x, torch.ones_like(x, dtype=torch.float32))
    return counts[:, UNKNOWN + 1 :]


def from_training_clients(clients: Population) -> Population:
    """The same clients, whose vocabulary are the words of their training samples: every other word becomes unknown.

    Words keep their numbers, so that samples set apart for the server mean the same by them. What `load` numbered comes from
    the training part of the published data, of which a partition makes some clients' test samples; every partition of tokens
    calls this.

    Raises `UnalikeError` for inputs that are not tokens.
    """
    if clients.x.is_floating_point() or clients.x.dim() != 2:
        raise UnalikeError(
            f"found inputs of shape {list(clients.x.shape)} and {clients.x.dtype}, expected tokens [N, T], or numbers as float32"
        )
    trained = trained_words(clients)
    return replace(clients, x=only(trained, clients.x), encoding=_kept(clients.encoding, trained))


def trained_words(clients: Population) -> Tensor:
    """Which tokens occur in the clients' training samples, bool [largest token + 1]; padding counts as one."""
    rows = torch.from_numpy(np.unique(clients.train.values)).to(clients.x.device)
    trained = torch.zeros(int(clients.x.max()) + 1, dtype=torch.bool, device=clients.x.device)
    trained[clients.x[rows].flatten()] = True
    trained[PADDING] = True
    return trained


def only(trained: Tensor, x: Tensor) -> Tensor:
    """The tokens `x`, those that are not `trained` being unknown."""
    return x.where((x < len(trained)) & trained[x.clamp_max(len(trained) - 1)], UNKNOWN)


def _kept(encoding: Encoding | None, trained: Tensor) -> Encoding | None:
    """The encoding of a text without the words that nobody trains on."""
    if encoding is None or encoding.words is None:
        return encoding
    words = (
        word if known else "" for word, known in zip_longest(encoding.words.words, trained[UNKNOWN + 1 :].tolist())
    )
    return replace(encoding, words=replace(encoding.words, words=tuple(words)))
