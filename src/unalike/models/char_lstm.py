"""Character model of the Shakespeare experiments."""

from __future__ import annotations

from torch import Tensor, nn

from unalike.models import check
from unalike.models.registry import registry


@registry.register("char_lstm")
class CharLSTM(nn.Module):
    """The next character of a text: an embedding of 8 numbers, two LSTM layers of 256 units, the head on the last position.

    819,920 parameters for 80 characters in and out; the default vocabulary has padding and the unknown character besides
    (819,936). torch's LSTM has two biases a gate where others have one, 2,048 parameters more. The sample is a window of the
    text and the label the character that follows it, as in LEAF (McMahan et al. predict at every position).

    Source: McMahan et al. 2017, section 3; Caldas et al. 2018 (LEAF).

    Shapes:
        input: int64 [B, length].
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
    ):
        super().__init__()
        check.tokens("char_lstm", input_shape)
        check.widths("char_lstm", "vocabulary, embedding, hidden and layers", (vocabulary, embedding, hidden, layers))
        self.characters = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of tokens `x` [B, T]."""
        positions, _ = self.lstm(self.characters(x))
        return self.head(positions[:, -1])
