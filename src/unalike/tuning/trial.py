"""A trial: one run with one choice of hyperparameters, and the file that keeps it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import explain_errors
from unalike.tuning.tunable import Values

End = Literal["finished", "pruned", "diverged"]
FINISHED: End = "finished"
PRUNED: End = "pruned"
DIVERGED: End = "diverged"


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    `number` is its place among the trials of its method; trial 0 has the values that the method was given with. `scores` are
    (round, validation score) of the evaluated rounds, `score` is that of the whole run, of a pruned trial that of its last
    evaluated round, None if it diverged. `end` says why it ended: "pruned" means that it was stopped early, since it was
    unlikely to win.
    """

    number: int
    values: Values
    scores: Sequence[tuple[int, float]]
    score: float | None
    end: End
    rounds: int
    seconds: float

    def save(self, folder: Path) -> None:
        """Write the trial into the folder of its method."""
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(
            folder / _file(self.number), (json.dumps(asdict(self), indent=1) + "\n").encode()
        )


def load_trial(folder: Path, number: int) -> Trial | None:
    """The trial with this number, if the folder of its method holds it. Raises `UnalikeError` for a damaged file."""
    from pydantic import TypeAdapter, ValidationError

    file = folder / _file(number)
    if not file.exists():
        return None
    try:
        return TypeAdapter(Trial).validate_json(file.read_bytes())
    except ValidationError as error:
        raise UnalikeError(
            f"cannot read {file}: {explain_errors(error)}; delete it, and the trial runs again"
        ) from None


def best_of(trials: Sequence[Trial], sign: int) -> Trial | None:
    """The finished trial with the best score, the first of equals; None if none has finished."""
    scored = [trial for trial in trials if trial.end == FINISHED and trial.score is not None]
    return max(scored, key=lambda trial: (sign * (trial.score or 0.0), -trial.number), default=None)


def _file(number: int) -> str:
    return f"{number:04d}.json"
