"""A site's files: by run its replies, fixed tensors, client states and model; and the secret from which it draws noise.

<run>/replies/<key>/<stage>-<round>-<request>.reply  <run>/samples (at admission: their fingerprint, rules)
<run>/stage-<n>/fixed.safetensors  <run>/stage-<n>/group-<m>/ (client states)  <run>/model/  <run>/sums/ (secure aggregation)
noise.secret  journal.jsonl  privacy.jsonl  sums.jsonl (the sums of all runs)
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from unalike._utils.tensor_files import read_tensors, sweep, write_bytes, write_tensors
from unalike.core.types import Tree
from unalike.data.table_encoding import Encoding
from unalike.federation.protocol.messages import Declined
from unalike.runtime.records.run_directory import RunDirectory
from unalike.runtime.setup.run_config import RunConfig

if TYPE_CHECKING:  # `unalike evaluate` reads a site's folder without the extra for federations
    from unalike.federation.protocol.envelope import Envelope

KEPT_RUNS = 2
"""Runs whose files are kept: the current one and the one before."""
KEPT_ROUNDS = 3
"""Rounds of replies that are kept: a coordinator goes back by at most two, if its newest checkpoint is damaged."""
SECRET_BYTES = 32
STATE = "state"
"""The folder of a site's files, below the one of `unalike join`."""
MODEL = "model"
"""The folder of a run's model, in that of the run."""
JOURNAL = "journal.jsonl"
"""The journal of requests and answers."""
LEDGER = "privacy.jsonl"
"""The ledger of what private methods released."""
SUMS = "sums.jsonl"
"""The sites of the sums that were unmasked with this site's help, of all runs."""
DATA = "data"
"""The file with the path of the site's data, beside the folder of its files."""


def state_folder(folder: Path) -> Path:
    """The folder of a site's files, below the one of `unalike join`."""
    return folder / STATE


def kept_model(folder: Path) -> Path | None:
    """The folder of the model of a site's newest run, below the folder of `unalike join`; None if the site keeps none."""
    return _newest_model(state_folder(folder))


def _newest_model(state: Path) -> Path | None:
    return max((file.parent for file in state.glob(f"*/{MODEL}/model.safetensors")), default=None)


def joined_with(model: Path) -> str | None:
    """The path of the data of the site that keeps this model; None if the model lies elsewhere by now."""
    file = model.resolve().parents[2] / DATA
    return file.read_text() if file.exists() else None


class SiteFolder:
    """The files of one site."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        # whatever the folder above it allows
        path.chmod(0o700)
        sweep(path)

    def runs(self) -> list[str]:
        """The names of the runs that have files, the newest last."""
        return sorted(file.name for file in self.path.glob("*") if file.is_dir())

    def make_room(self, run: str) -> None:
        """Remove the files of the oldest runs if `run` is a new one."""
        runs = self.runs()
        if run not in runs:
            too_many = max(0, len(runs) - KEPT_RUNS + 1)
            for old in runs[:too_many]:
                shutil.rmtree(self.path / old, ignore_errors=True)

    def replies(self, run: str, key: str) -> ReplyCache:
        """The replies of a run that are signed with the private key of this public `key`; a new key signs other bytes."""
        return ReplyCache(self.path / run / "replies" / key[:16])

    def admitted(self, run: str) -> list[str]:
        """The fingerprint of the samples with which the site was admitted to a run, and its rules about them; [] if it was not."""
        file = self.path / run / "samples"
        return file.read_text().splitlines() if file.exists() else []

    def admit(self, run: str, samples: str, rules: str) -> None:
        """Write down the fingerprint of the samples with which the site is admitted to a run, and its rules about them."""
        write_bytes(self.path / run / "samples", f"{samples}\n{rules}".encode())

    def fixed_tensors(self, run: str, stage: int) -> Tree:
        """The tensors that were sent once for a whole stage."""
        tensors, _ = read_tensors(self._fixed_file(run, stage))
        return tensors

    def keep_fixed_tensors(self, run: str, stage: int, tensors: Tree) -> None:
        """Write the tensors that are sent once for a whole stage."""
        write_tensors(self._fixed_file(run, stage), tensors)

    def _fixed_file(self, run: str, stage: int) -> Path:
        return self.path / run / f"stage-{stage}" / "fixed.safetensors"

    def write_model(
        self, run: str, run_config: RunConfig, site: str, values: Tree, encoding: Encoding | None
    ) -> None:
        """Write the parameters and buffers `values` into a folder that `unalike predict` and `unalike evaluate` read."""
        directory = RunDirectory(self.path / run / MODEL)
        if directory.config is None:
            directory.write_config(run_config.description | {"site": site})
            if encoding is not None:
                encoding.save(directory.path / "encoding.json")
        write_tensors(directory.path / "model.safetensors", values)

    @property
    def has_model(self) -> bool:
        """Whether a model of the site is kept, for `kept_model`."""
        return _newest_model(self.path) is not None

    def secret(self, samples: str) -> bytes:
        """Random bytes that were drawn at this site and never leave it, for the samples with this fingerprint.

        The keys in a bundle would not do: the coordinator made them. Other samples get another secret, since answers with the same
        noise would show by their difference which samples are new.
        """
        file = self.path / "noise.secret"
        # written as a whole: half a secret could be guessed
        if not file.exists():
            write_bytes(file, secrets.token_bytes(SECRET_BYTES))
        return hashlib.sha256(file.read_bytes() + samples.encode()).digest()


class ReplyCache:
    """Replies to the requests of a run's newest rounds: a repeated request gets the same bytes, also after a restart.

    Those that the site has signed with an earlier key, beside `folder`, cannot be read any more; their rounds count all the same.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def find(self, request: Envelope) -> bytes | None:
        """The stored reply to this request, or None. Raises `Declined` if the request is of a round before those kept."""
        file = self._file(request)
        if file.exists():
            return file.read_bytes()
        # Of a round before these the reply is gone: a request that looks new may be a repeated one.
        newest = self._rounds()[-KEPT_ROUNDS:]
        if len(newest) == KEPT_ROUNDS and request.head.place < newest[0]:
            stage, round = request.head.place
            raise Declined(
                "over",
                f"round {round} of step {stage} is over; expected one that is not: a replay?",
            )
        return None

    def of_round(self, request: Envelope) -> list[Path]:
        """The files of the replies to other requests of the same round."""
        return [
            file for file in self.folder.glob("*.reply") if _round_of(file) == request.head.place
        ]

    def places_of_other_keys(self) -> set[tuple[int, int]]:
        """The steps and rounds of replies that the site has signed with an earlier key; nobody can read these any more."""
        return {_round_of(file) for file in self._of_all_keys() if file.parent != self.folder}

    def store(self, request: Envelope, reply: bytes) -> None:
        """Write the reply; remove those of older rounds."""
        write_bytes(self._file(request), reply)
        newest = set(self._rounds()[-KEPT_ROUNDS:])
        for file in self._of_all_keys():
            if _round_of(file) not in newest:
                file.unlink(missing_ok=True)

    def _file(self, request: Envelope) -> Path:
        stage, round = request.head.place
        return self.folder / f"{stage:010d}-{round:010d}-{request.digest}.reply"

    def _rounds(self) -> list[tuple[int, int]]:
        return sorted({_round_of(file) for file in self._of_all_keys()})

    def _of_all_keys(self) -> list[Path]:
        return [*self.folder.parent.glob("*/*.reply")]


def _round_of(file: Path) -> tuple[int, int]:
    stage, round, _ = file.stem.split("-")
    return int(stage), int(round)
