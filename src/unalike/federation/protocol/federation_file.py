"""The federation file: what all sites agreed to, who they are, and how the coordinator runs the rounds."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from unalike._utils.errors import UnalikeError
from unalike._utils.tensor_files import write_bytes
from unalike._utils.validated import validated
from unalike.core.work import Work
from unalike.data.table_encoding import Encoding
from unalike.federation.protocol.envelope import NAME, digest
from unalike.federation.security.keys import public_key
from unalike.runtime.run_directory import plain

Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Part = Annotated[float, Field(strict=True, ge=0, lt=1)]
Count = Annotated[int, Field(strict=True, ge=1)]


def _named(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError("expected 1 to 64 letters, digits, '.', '_' or '-'")
    return text


def _readable(text: str) -> str:
    public_key(text)
    return text


Name = Annotated[str, pydantic.AfterValidator(_named)]
Key = Annotated[str, pydantic.AfterValidator(_readable)]


@validated
class Enrolled:
    """A site: its name, its public `key`, the most training `samples` it may count with. A `revoked` one takes no part."""

    name: Name
    key: Key
    samples: PositiveInt
    revoked: bool = False


@validated
class Schema:
    """What every site's data look like: the `shape` of a sample, the `classes` (names, or how many), the `task`.

    Without classes there is one output. `tokens`: samples are whole numbers, as of text. `encoding`: how everybody's tables
    become samples, so that a column is the same input at every site.
    """

    shape: tuple[PositiveInt, ...]
    classes: PositiveInt | tuple[str, ...] | None = None
    task: Literal["classification", "binary", "regression"] = "classification"
    tokens: bool = False
    encoding: Encoding | None = None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Schema:
        if self.task == "classification" and not self.classes:
            raise ValueError("expected classes for the task classification: how many, or their names")
        if self.task != "classification" and self.classes is not None:
            raise ValueError(f"classes mean nothing for the task {self.task}: leave them out")
        if len(set(self.names or ())) < len(self.names or ()):
            raise ValueError("two classes have one name")
        if self.encoding is not None and self.shape != (self.encoding.width,):
            raise ValueError(f"the encoding makes samples of shape {[self.encoding.width]}")
        return self

    @property
    def names(self) -> list[str] | None:
        """The names of the classes; None for regression."""
        if self.task == "regression":
            return None
        if self.task == "binary":
            return ["False", "True"]
        return [str(c) for c in (range(self.classes) if isinstance(self.classes, int) else self.classes or ())]


@validated
class Federation:
    """What is run, by whom and how.

    `participation` and `quorum` are shares (0.5) or numbers (3) of sites: of those that have data, and of those asked. A round
    closes when everybody asked has answered, or after `deadline` seconds if the quorum has; without it the deadline is extended
    and other sites are asked in addition, and after `patience` such attempts the run pauses. Requests without an answer are
    repeated every `repeat` seconds. `message_bytes` bounds every message. `guard`: an update whose norm is more than so many
    times the running median is refused (letters and buffers: ten times as many); None: norms are not looked at. `stop` and
    `budget` end the run early, as in `ua.run`; `select` says which round's model it gives: the last, or the best by validation
    samples, a share `val` of each site's training samples.
    """

    name: Name
    method: str
    model: str
    rounds: NonNegativeInt
    coordinator: Key
    data: Schema
    sites: tuple[Enrolled, ...] = Field(min_length=1)
    work: Work = Work()
    seed: NonNegativeInt = 0
    protocol: tuple[str, ...] = ("clients",)
    val: Part = 0.0
    buffers: Literal["average", "local", "first"] = "average"
    transform: str | None = None
    evaluate_every: PositiveInt = 1
    participation: Share | Count = 1.0
    quorum: Share | Count = 1.0
    deadline: PositiveFloat = 600.0
    repeat: PositiveFloat = 30.0
    patience: PositiveInt = 3
    message_bytes: PositiveInt = 2**30
    guard: PositiveFloat | None = None
    stop: str | None = None
    budget: str | None = None
    select: Literal["last", "best"] = "last"

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Federation:
        for what in ("name", "key"):
            found = [getattr(site, what) for site in self.sites]
            if len(set(found)) < len(found):
                raise ValueError(f"two sites have one {what}")
        if self.coordinator in {site.key for site in self.sites}:
            raise ValueError("a site has the coordinator's key")
        return self

    @classmethod
    def of(cls, values: dict[str, Any]) -> Federation:
        """From plain values, such as a TOML file holds; `batch_size = 0` is the full batch. Raises `UnalikeError`."""
        work = values.get("work")
        if isinstance(work, dict) and work.get("batch_size") == 0:
            values = values | {"work": work | {"batch_size": None}}
        return cls(**values)

    @classmethod
    def load(cls, path: Path | str) -> Federation:
        """Read a federation file. Raises `UnalikeError`."""
        try:
            return cls.of(tomllib.loads(Path(path).read_text()))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UnalikeError(f"cannot read {path}: {error}; expected a federation file") from error
        except TypeError as error:
            raise UnalikeError(f"cannot use {path}: {error}") from error

    def text(self) -> str:
        """The federation as TOML; `load` reads it back."""
        values = plain(asdict(self))
        values["work"].setdefault("batch_size", 0)  # TOML has no None, which is the full batch
        values["sites"] = [plain(site) for site in values["sites"]]
        return tomli_w.dumps(values)

    def save(self, path: Path | str) -> None:
        """Write the federation file, atomically."""
        write_bytes(Path(path), self.text().encode())

    def site(self, name: str) -> Enrolled | None:
        """The enrolled site of this name."""
        return next((site for site in self.sites if site.name == name), None)

    def number(self, name: str) -> int:
        """The site's number among the clients. Raises `UnalikeError` for a stranger."""
        for number, site in enumerate(self.sites):
            if site.name == name:
                return number
        raise UnalikeError(f"{name!r} is not enrolled; expected one of {', '.join(s.name for s in self.sites)}")

    @property
    def terms(self) -> str:
        """The digest of what a site agrees to: whatever decides what it computes and what leaves it.

        Rounds, quorum and deadline are the coordinator's affair, and a site that was revoked does not change it for the others.
        """
        agreed = (
            "name",
            "method",
            "model",
            "work",
            "seed",
            "protocol",
            "buffers",
            "transform",
            "coordinator",
            "data",
            "val",
        )
        values = asdict(self)
        if self.data.encoding is None:
            del values["data"]["encoding"]  # the digest of federations that were made before there was one
        sites = [site.name for site in self.sites]
        text = json.dumps({k: values[k] for k in agreed} | {"sites": sites}, sort_keys=True)
        return digest(text.encode())

    def asked(self, eligible: int) -> int:
        """Sites in a cohort, at least one."""
        return _count(self.participation, eligible, lambda share: math.floor(share + 0.5))

    def enough(self, asked: int) -> int:
        """Sound reports that make a round, at least one."""
        return _count(self.quorum, asked, lambda share: math.ceil(share - 1e-9))


def _count(wanted: float | int, of: int, rounded: Callable[[float], int]) -> int:
    return min(of, max(1, wanted if isinstance(wanted, int) else rounded(wanted * of)))
