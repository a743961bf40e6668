"""Conversion of text to tokens or to bags of words.

Token 0 is padding, token 1 is any word outside the vocabulary, and words start at token 2, the most frequent first.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from unalike._utils.errors import UnalikeError

PADDING = 0
UNKNOWN = 1
"""The tokens of padding and of any word outside the vocabulary."""
WORD_PATTERN = re.compile(r"\w+(?:'\w+)?")


def words(text: str) -> list[str]:
    """Split a text into lower-case runs of letters and digits; an apostrophe inside a word belongs to it.

    >>> words("It's 5 o'clock -- run!")
    ["it's", '5', "o'clock", 'run']
    """
    return WORD_PATTERN.findall(text.lower())


def vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """Map the `size` - 2 most frequent words to their tokens, equally frequent words in alphabetical order."""
    if size < 3:
        raise UnalikeError(
            f"found vocabulary={size}, expected at least 3: padding, the unknown word and one word"
        )
    counts = Counter(chain.from_iterable(words(text) for text in texts))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {word: token for token, word in enumerate(frequent, start=UNKNOWN + 1)}


def encode(texts: Sequence[str], known: Mapping[str, int], length: int) -> np.ndarray:
    """Convert texts to tokens int64 [N, length]: the first `length` words of each text, then padding.

    A text without a word becomes one unknown word, so that no sample consists of padding alone.
    """
    if length < 1:
        raise UnalikeError(f"found length={length}, expected at least one word")
    tokens = np.full((len(texts), length), PADDING, np.int64)
    for row, text in zip(tokens, texts):
        ids = [known.get(word, UNKNOWN) for word in words(text)[:length]] or [UNKNOWN]
        row[: len(ids)] = ids
    return tokens


def mask(x: Tensor) -> Tensor:
    """Mark the tokens that are words and not padding: bool of the shape of `x`."""
    return x != PADDING


def bag(x: Tensor, size: int) -> Tensor:
    """Count each word of the vocabulary: tokens [N, T] to float32 rows [N, size - 2].

    Padding and unknown words are left out, so column j counts token j + 2.
    """
    counts = torch.zeros(len(x), size)
    counts.scatter_add_(1, x, torch.ones_like(x, dtype=torch.float32))
    return counts[:, UNKNOWN + 1 :]
