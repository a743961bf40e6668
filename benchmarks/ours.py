"""Our engine through its public API: `python ours.py WORKLOAD ROUNDS EXECUTOR PRECISION`."""

from __future__ import annotations

import inspect
import sys

import torch
from clock import Clock
from networks import moved, network
from workloads import LR, MOMENTUM, WORKLOADS, arrays

import unalike as ua


def main(name: str, rounds: int, executor: str, precision: str) -> None:
    work, clock = WORKLOADS[name], Clock()
    options = {}
    if precision != "float32":
        if "precision" not in inspect.signature(ua.run).parameters:
            clock.report(skipped="this version of unalike has no option precision=")
            return
        options["precision"] = precision
    clients = [
        ua.ClientData(train=(torch.from_numpy(x), torch.from_numpy(y)))
        for x, y in zip(*arrays(name))
    ]
    try:
        run = ua.run(
            "fedavg",
            clients,
            model=network(name),
            rounds=rounds,
            work=ua.Work(batch_size=work.batch, lr=LR, momentum=MOMENTUM),
            executor=executor,
            evaluate_every=rounds,
            progress=lambda row, what="": clock.lap(),
            **options,
        )
    except ua.UnalikeError as error:
        clock.report(skipped=str(error))
        return
    clock.laps.pop()  # the last round is evaluated
    start = dict(network(name).named_parameters())
    clock.moved = moved(start.values(), (run.params[n] for n in start))
    clock.report(torch=torch.__version__, unalike=ua.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) + 1, sys.argv[3], sys.argv[4])
