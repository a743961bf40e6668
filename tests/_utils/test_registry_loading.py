"""The first look-up of a name: by several threads at once, and after a name that is ours was given away."""

from __future__ import annotations

import subprocess
import sys

IN_THREADS = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import unalike as ua
from unalike.methods.part import registry

start = Barrier(8)

def look_up(number):
    start.wait()
    return registry["fedavg"] is not None and ua.Method.parse("fedprox(mu=0.1)").parts[1].mu

with ThreadPoolExecutor(8) as pool:
    print(set(pool.map(look_up, range(8))))
"""

TAKEN_NAME = """
import unalike as ua
from unalike.methods.roles import Objective

try:
    @ua.part
    class Clip(Objective):
        pass
except Exception as error:
    print(type(error).__name__, error)
print(ua.Method.parse("fedavg + clip(norm=2)").parts[1])
"""


def output(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_threads_that_look_names_up_at_once_all_find_them():
    assert output(IN_THREADS) == "{0.1}\n"


def test_own_part_with_a_taken_name_is_refused_and_nothing_else_breaks():
    text = output(TAKEN_NAME)
    assert "the method or part name 'clip' is taken by" in text
    assert "norm=2" in text.splitlines()[-1]
