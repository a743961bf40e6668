"""A site's replies on disk: a repeated request gets the same reply, byte for byte, also after a restart."""

from __future__ import annotations

from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.federation.protocol.envelope import Envelope

KEPT_ROUNDS = 3
"""Rounds of replies that are kept: a coordinator goes back by at most two, if its newest checkpoint is damaged."""


class ReplyCache:
    """Replies to the requests of a run's newest rounds, one file each."""

    def __init__(self, folder: Path):
        self.folder = folder

    def find(self, request: Envelope) -> bytes | None:
        """The stored reply to this request, or None. Raises `UnalikeError` if the request is of a round before those kept."""
        file = self._file(request)
        if file.exists():
            return file.read_bytes()
        oldest = self._rounds()[-KEPT_ROUNDS:]
        if len(oldest) == KEPT_ROUNDS and request.head.place < oldest[0]:
            stage, round = request.head.place
            raise UnalikeError(f"round {round} of step {stage} is over; expected one that is not: a replay?")
        return None

    def store(self, request: Envelope, reply: bytes) -> None:
        """Write the reply; remove those of older rounds."""
        write_bytes(self._file(request), reply)
        kept = set(self._rounds()[-KEPT_ROUNDS:])
        for file in self.folder.glob("*.reply"):
            if _round_of(file) not in kept:
                file.unlink(missing_ok=True)

    def _file(self, request: Envelope) -> Path:
        stage, round = request.head.place
        return self.folder / f"{stage:010d}-{round:010d}-{request.digest}.reply"

    def _rounds(self) -> list[tuple[int, int]]:
        return sorted({_round_of(file) for file in self.folder.glob("*.reply")})


def _round_of(file: Path) -> tuple[int, int]:
    stage, round, _ = file.stem.split("-")
    return int(stage), int(round)
