"""Kill federations by SIGKILL and compare the result with an undisturbed run. Every run is a fork of this process.

python kill_runs.py moments SEED KILLS METHOD...      at random moments
python kill_runs.py writes METHOD                     before and after every write of a file
python kill_runs.py sites SEED KILLS METHOD           only the sites, at random moments

"secure METHOD" is a method with secure aggregation.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from unalike.metrics.columns import REPLY_SECONDS, TIMES

torch.set_num_threads(1)
warnings.simplefilter("ignore")

from small_federation import SmallFederation, make_clients  # noqa: E402

import unalike as ua  # noqa: E402
from unalike._utils.tensor_files import read_tensors  # noqa: E402

SAMPLE_SIZES = ((20, 8), (12, 6), (6, 3))


def fed(folder: Path, method: str, rounds: int = 4) -> SmallFederation:
    plain = method.removeprefix("secure ")
    if plain == method:
        more = {"protocol": ("clients", "local"), "participation": 0.7}
    else:
        # sites with client states are all in each sum, and make the same number of steps
        more = {"protocol": ("clients",), "secure_aggregation": True, "threshold": 3}
        more["work"] = ua.Work(steps=3, batch_size=5, lr=0.1)
    made = SmallFederation(folder, make_clients(SAMPLE_SIZES), plain, rounds=rounds, **more)
    for name in made.workers:
        # the noise below rounding in masked summands, which each folder draws anew, is the same in all
        (folder / name / "noise.secret").write_bytes(bytes(32))
    return made


def contents(fed: SmallFederation) -> dict[str, Any]:
    """Contents of a finished run: tables without seconds, models, last checkpoint, and the sites' client states.

    Of secure aggregation also without bytes: after a kill, keys are exchanged anew.
    """
    left_out = [*TIMES, REPLY_SECONDS] + (
        ["bytes_down", "bytes_up"] if fed.federation.secure_aggregation else []
    )
    tables = {
        name: pd.read_parquet(fed.out / f"{name}.parquet")
        .drop(columns=left_out, errors="ignore")
        .to_json()
        for name in ("rounds", "clients")
    }
    newest = max((fed.out / "checkpoints").glob("round-*.safetensors"))
    files = [newest, *fed.out.glob("model*.safetensors")]
    _, facts = read_tensors(newest)
    for i, groups in enumerate(facts["stages"]):
        for j, group in enumerate(groups):
            for client, round in group.get("accepted", []):
                name = fed.clients[client].name
                place = (
                    Path(f"stage-{i + 1}")
                    / f"group-{j:04d}"
                    / f"{client:08d}"
                    / f"round-{round:06d}.safetensors"
                )
                [run] = [f for f in (fed.folder / name).iterdir() if f.is_dir()]
                files += [run / place] if (run / place).exists() else []
    return {"tables": tables} | {_name(fed, f): _bits(f) for f in files}


def _name(fed: SmallFederation, file: Path) -> str:
    """The file's path without the run's name."""
    return "/".join(part for part in file.relative_to(fed.folder).parts if not part[:20].isdigit())


def _bits(file: Path) -> dict[str, bytes]:
    return {n: t.numpy().tobytes() for n, t in read_tensors(file)[0].items()}


def fork(work: Any, kill_after: float | None = None) -> bool:
    """Run `work` in a forked process, killed after `kill_after` seconds. Returns whether it finished."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    ended, status = 0, 0
    if kill_after is not None:
        deadline = time.monotonic() + kill_after
        while not ended and time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.005)
        if not ended:
            os.kill(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        raise SystemExit("a child failed")
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def moments(seed: int, kills: int, methods: list[str]) -> None:
    rng, done, number = np.random.default_rng(seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, seconds = {}, {}
        for i, method in enumerate(methods):
            calm = Path(folder) / f"calm-{i}"
            started = time.monotonic()
            assert fork(lambda calm=calm, method=method: fed(calm, method).run())
            seconds[method] = time.monotonic() - started
            undisturbed[method] = contents(fed(calm, method))
        while done < kills:
            method, place = methods[number % len(methods)], Path(folder) / f"run-{number}"
            started = time.monotonic()
            while not fork(
                lambda place=place, method=method: fed(place, method).run(),
                rng.uniform(0, 1.1 * seconds[method]),
            ):
                done += 1
                started = time.monotonic()
            # a first run that took longer than the others would put most kills after their end
            seconds[method] = min(seconds[method], time.monotonic() - started)
            assert contents(fed(place, method)) == undisturbed[method], (method, done)
            number += 1
    print(f"{done} kills in {number} runs of {', '.join(methods)}: all as undisturbed")


def writes(method: str) -> None:
    """Files are written under another name and renamed; kill the process right before and right after each rename."""
    with tempfile.TemporaryDirectory() as folder:
        calm = Path(folder) / "calm"
        assert fork(lambda: fed(calm, method, 2).run())
        undisturbed, renamed, number = contents(fed(calm, method, 2)), os.replace, 0

        def dying(place: Path, at: int, after: bool) -> None:
            count = 0

            def replace(a: Any, b: Any) -> None:
                nonlocal count
                count += 1
                if count == at and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                renamed(a, b)
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            os.replace = replace
            fed(place, method, 2).run()

        ended = False
        while not ended:
            number += 1
            for after in (False, True):
                place = Path(folder) / f"run-{number}-{after}"
                ended = fork(
                    lambda place=place, after=after, number=number: dying(place, number, after)
                )
                if not ended:
                    assert fork(lambda place=place: fed(place, method, 2).run())
                assert contents(fed(place, method, 2)) == undisturbed, (number, after)
    print(f"killed before and after each of {number - 1} writes: all as undisturbed")


class KilledSite:
    """A site whose process is killed at random while it works, and then started again with its folder."""

    kills = 0

    def __init__(self, make: Any, rng: np.random.Generator, wanted: int):
        self.make, self.rng, self.wanted = make, rng, wanted

    def handle(self, message: bytes) -> bytes:
        while True:
            reader, writer = os.pipe()
            child = os.fork()
            if not child:
                reply = self.make().handle(message)
                with os.fdopen(writer, "wb") as file:
                    file.write(reply)
                os._exit(0)
            os.close(writer)
            if KilledSite.kills < self.wanted:
                time.sleep(self.rng.uniform(0, 0.03))
                os.kill(child, signal.SIGKILL)
            with os.fdopen(reader, "rb") as file:
                reply = file.read()
            _, status = os.waitpid(child, 0)
            if not status:
                return reply
            KilledSite.kills += 1


def sites(seed: int, kills: int, method: str) -> None:
    from unalike.federation.site.site_worker import SiteWorker

    with tempfile.TemporaryDirectory() as folder:
        calm = fed(Path(folder) / "calm", method)
        assert fork(lambda: calm.run())
        other, rng = fed(Path(folder) / "other", method), np.random.default_rng(seed)
        for name, worker in list(other.workers.items()):
            args = (
                worker.federation,
                name,
                worker.key,
                next(c for c in other.clients if c.name == name),
            )

            def make(args: Any = args, name: str = name) -> SiteWorker:
                return SiteWorker(*args, other.folder / name)

            other.workers[name] = KilledSite(make, rng, kills)
        other.run()
        assert contents(other) == contents(calm)
        print(f"{KilledSite.kills} kills of sites: as undisturbed")


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "moments":
        moments(int(rest[0]), int(rest[1]), rest[2:])
    elif kind == "writes":
        writes(rest[0])
    else:
        sites(int(rest[0]), int(rest[1]), rest[2])
