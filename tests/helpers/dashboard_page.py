"""The dashboard in a separate process, and its page in a browser."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request

from unalike._utils.system.ports import free_port

UNALIKE = [sys.executable, "-c", "from unalike.cli import main; main()"]


class Dashboard:
    """The server in a separate process."""

    def __init__(self, folder, *more, port=None):
        self.port = port or free_port()
        command = [*UNALIKE, "dashboard", str(folder), "--port", str(self.port), *more]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = self.process.stdout.readline()
        self.url = f"http://127.0.0.1:{self.port}/"
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(self.url, timeout=5)
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None
                time.sleep(0.1)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def get(url, **headers):
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=20
        ) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()
