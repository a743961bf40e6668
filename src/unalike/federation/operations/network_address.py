"""The network address of a federation (network.json)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import Field

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated

Host = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]


@validated
class Network:
    """The `host` and `port` that sites connect to, and the local address to listen at."""

    host: Host
    port: Port
    listen: Host = "0.0.0.0"

    @property
    def address(self) -> str:
        """host:port; IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def load(cls, path: Path) -> Network:
        """Read it. Raises `UnalikeError` for an invalid file."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UnalikeError(
                f'cannot read {path}: {error}; expected {{"host": "fed.example.org", "port": 8443, "listen": "0.0.0.0"}}'
            ) from None

    def save(self, path: Path) -> None:
        """Write it, atomically."""
        write_bytes(path, json.dumps(asdict(self)).encode())
