"""The two kinds of local training: that of a round, and the fine-tuning before a client is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unalike._utils.errors import UnalikeError
from unalike.methods.method import Method


@dataclass(frozen=True)
class TrainingKind:
    """What clients train, and the random numbers that belong to it.

    Fine-tuning is training like any other, by a method of its own and with a fresh solver. `sends` is the difference: the update
    of a round is sent and the client's new state is kept; of fine-tuning the model is left, and the state stays as it was.

    `batches` (one for each phase), `dropout` (of one client) and `chunk_dropout` (of stacked ones) are purposes of `seeds`.
    """

    method: Method
    sends: bool
    batches: Sequence[str]
    dropout: str
    chunk_dropout: str

    @classmethod
    def round_of(cls, method: Method) -> TrainingKind:
        """The training of a round."""
        later = [f"batches of phase {number}" for number in range(1, len(method.phases))]
        return cls(
            method=method,
            sends=True,
            batches=["batches", *later],
            dropout="dropout",
            chunk_dropout="dropout of chunks",
        )

    @classmethod
    def finetuning_of(cls, method: Method) -> TrainingKind:
        """The fine-tuning before an evaluation. Raises `UnalikeError` for a method without one."""
        if method.finetuning_phase is None:
            raise UnalikeError(f"{method!r} has no fine-tuning; add local_finetune")
        return cls(
            method=method.finetuning_method,
            sends=False,
            batches=["tune"],
            dropout="dropout of tuning",
            chunk_dropout="dropout of tuned chunks",
        )
