"""Models for text: the convolutional network of Kim 2014, and the character model of the Shakespeare experiments."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unalike._utils.errors import UnalikeError
from unalike.models import check
from unalike.models.registry import registry


@registry.register("char_lstm")
class CharLSTM(nn.Module):
    """The next character of a text: an embedding of 8 numbers, two LSTM layers of 256 units, the head on the last position.

    819,920 parameters for 80 characters in and out; the default vocabulary has padding and the unknown character besides
    (819,936). torch's LSTM has two biases a gate where others have one, 2,048 parameters more. The sample is a window of the
    text and the label the character that follows it, as in LEAF. With `every` the head is on every position, as McMahan et al.
    predict: outputs [B, length, C] for the task `next_token`.

    Source: McMahan et al. 2017, section 3; Caldas et al. 2018 (LEAF).
    Input: int64 [B, length].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        vocabulary: int = 82,
        embedding: int = 8,
        hidden: int = 256,
        layers: int = 2,
        every: bool = False,
    ):
        super().__init__()
        check.tokens("char_lstm", input_shape)
        self.every = every
        sizes = (vocabulary, embedding, hidden, layers)
        check.widths("char_lstm", "vocabulary, embedding, hidden and layers", sizes)
        self.characters = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        positions, _ = self.lstm(self.characters(x))
        return self.head(positions if self.every else positions[:, -1])


@registry.register("textcnn")
class TextCNN(nn.Module):
    """Kim's CNN: word vectors, `filters` filters for each window width in `widths`, ReLU, maximum over the text, dropout, head.

    6,363,310 parameters for 20,000 words and 10 classes; the defaults are the published sizes. Tokens are 0..vocabulary-1;
    0 is padding. Windows that begin on padding are ignored, so that padding does not change the logits. An empty text has
    features 0.

    Source: Kim 2014.
    Input: int64 [B, length].
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int | None,
        *,
        vocabulary: int = 20_000,
        embedding: int = 300,
        filters: int = 100,
        widths: int | tuple[int, ...] = (3, 4, 5),
        dropout: float = 0.5,
    ):
        super().__init__()
        check.tokens("textcnn", input_shape)
        sizes = (vocabulary, embedding, filters)
        check.widths("textcnn", "vocabulary, embedding and filters", sizes)
        if not 0 <= dropout < 1:
            raise UnalikeError(
                f"textcnn: found dropout={dropout!r}, expected a share of 0 or more and below 1"
            )
        windows = check.widths("textcnn", "widths", widths, least=1)
        self.words = nn.Embedding(vocabulary, embedding)
        nn.init.uniform_(self.words.weight, -0.25, 0.25)
        self.windows = nn.ModuleList()
        for width in windows:
            # Padded at the end, so that a window can begin on every word.
            padding = nn.ConstantPad1d((0, width - 1), 0.0)
            filter_bank = nn.Conv1d(embedding, filters, width)
            self.windows.append(nn.Sequential(padding, filter_bank))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(filters * len(windows), classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        real = (x != 0).to(self.words.weight.dtype).unsqueeze(-2)
        words = self.words(x).transpose(-2, -1) * real
        features = [_strongest(window, words, real) for window in self.windows]
        return self.head(self.dropout(torch.cat(features, -1)))


def _strongest(window: nn.Module, words: Tensor, real: Tensor) -> Tensor:
    """Return each filter's maximum over the windows that begin on a word, [B, filters]. After ReLU, 0 is the minimum."""
    return (F.relu(window(words)) * real).amax(-1)
