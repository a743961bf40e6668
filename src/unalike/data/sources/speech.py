"""Lines of plays by speaker, for the prediction of the next character."""

import json
from pathlib import Path

import numpy as np

from unalike._utils.errors import UnalikeError, reading
from unalike.data.dataset import Dataset
from unalike.data.sources.registry import content, first_file, registry, searched
from unalike.data.text import UNKNOWN

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters; others are left out."""
FILES = ("shakespeare.csv", "shakespeare.csv.gz")
ROLES = ("shakespeare_roles.json.gz", "natural/shakespeare_roles.json.gz")
"""Files with a list of roles, each with its `play`, its `role` and its `text`; they are read where there is no table."""


@registry.register("shakespeare")
def shakespeare(
    data_dir: Path | None,
    *,
    length: int = 80,
    step: int | None = None,
    speaker: str = "speaker",
    line: str = "line",
    every: bool = False,
) -> Dataset:
    """Lines by speaker from your file `shakespeare.csv`: windows of `length` characters and the character that follows each.

    The file has a column with the speaker and one with the line. A speaker's lines are joined by line breaks, and a window
    begins every `step` characters; None is length + 1, so that no two samples share a character. The last fifth of a speaker's
    windows tests. Without that table the roles of `shakespeare_roles.json.gz` are the speakers. Speakers with less text than a
    window are left out. The group "speaker" gives one client a speaker: `natural(column='speaker')`. Tokens are 2 to 81, and
    classes are the 80 characters of LEAF (Caldas et al. 2018). With `every` the label of a window is the character that follows
    each of its characters, for the task `next_token` and a model such as `char_lstm(every=True)`.
    """
    step = length + 1 if step is None else step
    if min(length, step) < 1:
        raise UnalikeError(
            f"shakespeare: found length={length} and step={step}, expected 1 or more characters"
        )
    file = None if data_dir is None else first_file(data_dir, *FILES, *ROLES)
    if file is None:
        raise UnalikeError(
            f"shakespeare: found no {FILES[0]} {searched(data_dir)}; put a table there "
            f"with a column {speaker!r} and a column {line!r}, one row for each line "
            "of a play"
        )
    # The windows of each speaker who has any: the first four fifths train, the last one tests.
    training: dict[str, np.ndarray] = {}
    tests: dict[str, np.ndarray] = {}
    for name, text in _texts(file, speaker, line).items():
        windows = _windows(text, length, step)
        if len(windows):
            cut = len(windows) - len(windows) // 5
            training[name] = windows[:cut]
            tests[name] = windows[cut:]
    if not training:
        raise UnalikeError(
            f"{file}: no speaker has {length + 1} characters; expected longer texts, "
            "or a smaller length"
        )
    parts = [*training.values(), *tests.values()]
    speakers = np.repeat([*training, *tests], [len(windows) for windows in parts])
    codes = np.concatenate(parts)
    return Dataset.divided(
        name="shakespeare",
        x=codes[:, :length] + UNKNOWN + 1,
        y=codes[:, 1:] if every else codes[:, length],
        train=sum(len(windows) for windows in training.values()),
        classes=None if every else list(CHARACTERS),
        task=f"next_token(classes={len(CHARACTERS)})" if every else None,
        groups={"speaker": speakers},
    )


def _texts(file: Path, speaker: str, line: str) -> dict[str, str]:
    """Speaker -> all lines in order, joined by line breaks; of a list of roles, role -> its text."""
    if file.name.endswith(".json.gz"):
        with reading(file, "a list of roles"):
            roles = json.loads(content(file))
            return {f"{role['play']}: {role['role']}": role["text"] for role in roles}
    with reading(file, "a table of speakers and lines"):
        import pandas as pd

        frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    missing = [name for name in (speaker, line) if name not in frame]
    if missing:
        raise UnalikeError(
            f"{file} has the columns {', '.join(map(str, frame))}; expected "
            f"{speaker!r} and {line!r}: name yours, as in "
            "shakespeare(speaker='Player', line='PlayerLine')"
        )
    return {str(name): "\n".join(rows) for name, rows in frame.groupby(speaker, sort=False)[line]}


def _windows(text: str, length: int, step: int) -> np.ndarray:
    """Character indices [windows, length + 1] of a text."""
    known = [CHARACTERS.index(character) for character in text if character in CHARACTERS]
    codes = np.array(known, np.int64)
    starts = np.arange(0, len(codes) - length, step)
    return codes[starts[:, None] + np.arange(length + 1)]
