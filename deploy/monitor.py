"""What monitoring needs of a coordinator, in a process beside it. Standard library only.

`python deploy/monitor.py hospitals --listen 127.0.0.1:9464 --on-event 'notify-operator'`

`/health` answers 200 while the federation waits or runs, else 503, also when it is not up. `/metrics` has the numbers of
`unalike federation status --json` in the text format of Prometheus. The command of `--on-event` is run, without a shell, for each
new entry of the audit log, which it gets as one line of JSON at its standard input; one at a time, for a minute at most.
"""

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

COMMAND_SECONDS = 60
"""Most seconds of a command."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the audit log."""
STATUS_SECONDS = 1.0
"""Seconds for which a status is used again, so that many requests start one process a second at most."""
PROGRAM = "from unalike.cli import main; main()"


def status(folder: Path) -> dict[str, Any]:
    """The status of the coordinator; its state is "down" if it is not up."""
    words = [sys.executable, "-c", PROGRAM, "federation", "status", str(folder), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if done.returncode != 0:
        return {"state": "down", "sites": []}
    return json.loads(done.stdout)


class RecentStatus:
    """The status of a folder, which is not asked for again within `STATUS_SECONDS`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._found: dict[str, Any] = {}
        self._until = -math.inf

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._found = status(self._folder)
                self._until = time.monotonic() + STATUS_SECONDS
            return self._found


def metrics(found: dict[str, Any]) -> str:
    """The numbers of a status, by site where they are a site's."""
    rows = [("", {**found, "up": found["state"] != "down", "paused": found["state"] == "paused"})]
    rows += [
        (f'{{site="{site["name"]}"}}', {f"site_{k}": v for k, v in site.items()})
        for site in found["sites"]
    ]
    numbers = [
        (f"unalike_{k}{of}", v)
        for of, values in rows
        for k, v in values.items()
        if isinstance(v, int | float)
    ]
    return "".join(sorted(f"{name} {value:.15g}\n" for name, value in numbers))


def server(folder: Path, listen: str) -> ThreadingHTTPServer:
    """A server of `/health` and `/metrics` at host:port."""
    recent_status = RecentStatus(folder)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0
        """Seconds for which a connection may be silent."""

        def do_GET(self) -> None:
            match self.path:
                case "/health":
                    state = recent_status()["state"]
                    is_well = state in ("waiting", "running")
                    self._answer(200 if is_well else 503, state + "\n")
                case "/metrics":
                    self._answer(200, metrics(recent_status()))
                case _:
                    self._answer(404, "expected /health or /metrics\n")

        def _answer(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *words: object) -> None:
            """Write no line for each request."""

    host, _, port = listen.rpartition(":")
    return ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)


def new_lines(file: Path) -> Iterator[bytes]:
    """Complete lines that are added to a file from now on, without end."""
    at = file.stat().st_size if file.exists() else 0
    while True:
        if file.exists():
            with open(file, "rb") as log:
                log.seek(at)
                lines = [line for line in log if line.endswith(b"\n")]
            yield from lines
            at += sum(map(len, lines))
        time.sleep(POLL_SECONDS)


def run_at_events(folder: Path, command: str) -> None:
    """Run the command for each new entry of the audit log."""
    for line in new_lines(folder / "audit.jsonl"):
        try:
            subprocess.run(
                shlex.split(command),
                input=line,
                timeout=COMMAND_SECONDS,
                check=True,
                stdout=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError) as error:
            print(f"--on-event: {error}", file=sys.stderr, flush=True)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="The federation's folder.")
    parser.add_argument(
        "--listen", default="127.0.0.1:9464", help="host:port of /health and /metrics."
    )
    parser.add_argument("--on-event", help="Command for each new entry of the audit log.")
    given = parser.parse_args()
    if given.on_event:
        Thread(target=run_at_events, args=(given.folder, given.on_event), daemon=True).start()
    server(given.folder, given.listen).serve_forever()


if __name__ == "__main__":
    main()
