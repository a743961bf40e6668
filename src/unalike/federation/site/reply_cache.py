"""What a site answered, on disk: a repeated request has the same answer, to the byte, whatever happened in between."""

from __future__ import annotations

from pathlib import Path

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike.federation.protocol.envelope import Envelope

KEPT = 3
"""Rounds whose answers are kept: a coordinator goes back by two at most, when its newest checkpoint is damaged."""


class ReplyCache:
    """The answers to the requests of a run's newest rounds, a file each."""

    def __init__(self, folder: Path):
        self.folder = folder

    def find(self, request: Envelope) -> bytes | None:
        """The answer to this very request, if it was answered. Raises `UnalikeError` for a round that is long over."""
        file = self._file(request)
        if file.exists():
            return file.read_bytes()
        oldest = self._places()[-KEPT:]
        if len(oldest) == KEPT and request.head.place < oldest[0]:
            stage, round = request.head.place
            raise UnalikeError(f"round {round} of step {stage} is over; expected one that is not: a replay?")
        return None

    def keep(self, request: Envelope, reply: bytes) -> None:
        """Write the answer; forget those of rounds that are long over."""
        write_bytes(self._file(request), reply)
        kept = set(self._places()[-KEPT:])
        for file in self.folder.glob("*.reply"):
            if _place(file) not in kept:
                file.unlink(missing_ok=True)

    def _file(self, request: Envelope) -> Path:
        stage, round = request.head.place
        return self.folder / f"{stage:010d}-{round:010d}-{request.digest}.reply"

    def _places(self) -> list[tuple[int, int]]:
        return sorted({_place(file) for file in self.folder.glob("*.reply")})


def _place(file: Path) -> tuple[int, int]:
    stage, round, _ = file.stem.split("-")
    return int(stage), int(round)
