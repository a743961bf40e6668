"""A journal: JSON lines, each with the digest of the line before, so that a line that is changed, removed or added is found.

Lines that are missing at the end are not found by this: keep the last digest elsewhere, such as in a backup.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import writing


class Journal:
    """A file that entries are added to, readable for its owner alone. A line that a power cut tore stays, as a line of its own.

    `newest` is the entry that was added last here, without time and digest.
    """

    def __init__(self, path: Path):
        self.path = path
        text = path.read_bytes() if path.exists() else b""
        self._last_line = text.splitlines()[-1] if text else b""
        # a power cut may have torn the last line: the next entry then begins with a line break
        self._is_torn = bool(text) and not text.endswith(b"\n")
        self._lock = Lock()
        self.newest: dict[str, Any] = {}

    def add(self, event: str, **facts: Any) -> None:
        """Add an entry with the time. Raises `UnalikeError` if it cannot be written."""
        with self._lock, writing(self.path):
            entry = {
                "time": round(time.time(), 3),
                "event": event,
                **facts,
                "before": _digest(self._last_line),
            }
            line = json.dumps(entry).encode()
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                start = b"\n" if self._is_torn else b""
                os.write(file, start + line + b"\n")
            finally:
                os.close(file)
            self._last_line = line
            self._is_torn = False
            self.newest = {"event": event, **facts}


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a journal, oldest first; none without a file. Raises `UnalikeError` where the chain of digests is broken."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    before = b""
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            # a torn line is part of the chain: the next entry has its digest
            entry = {"event": "damaged line", "before": _digest(before)}
        if entry.get("before") != _digest(before):
            raise UnalikeError(
                f"{path}, line {number}: lines before it were changed, removed or added since it was written"
            )
        yield entry
        before = line


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
