"""What monitoring needs of a coordinator, in a process beside it. Standard library only.

`python deploy/monitor.py hospitals --listen 127.0.0.1:9464 --on-event 'notify-operator'`

`/health` answers 200 while the federation waits or runs, else 503, also when it is not up. `/metrics` has the numbers of
`unalike federation status --json` in the text format of Prometheus. The command of `--on-event` is run, without a shell, for each
new entry of the audit log, which it gets as one line of JSON at its standard input; one at a time, for a minute at most.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

SECONDS, POLL = 60, 1.0
FOUND = "from unalike.cli import main; main()"


def status(folder: Path) -> dict[str, Any]:
    """The status of the coordinator; its state is "down" if it is not up."""
    words = [sys.executable, "-c", FOUND, "federation", "status", str(folder), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    return json.loads(done.stdout) if done.returncode == 0 else {"state": "down", "sites": []}


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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = status(folder)
            pages = {"/metrics": (200, metrics(found)), "/health": (503, found["state"] + "\n")}
            code, text = pages.get(self.path, (404, "expected /health or /metrics\n"))
            if self.path == "/health" and found["state"] in ("waiting", "running"):
                code = 200
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
        time.sleep(POLL)


def run_at_events(folder: Path, command: str) -> None:
    """Run the command for each new entry of the audit log."""
    for line in new_lines(folder / "audit.jsonl"):
        try:
            subprocess.run(
                shlex.split(command),
                input=line,
                timeout=SECONDS,
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
