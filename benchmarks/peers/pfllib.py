"""PFLlib: the rounds of its FedAvg without evaluation, with the samples in memory instead of files.

The environment variable PFLLIB is the folder of a copy of its repository; it is in no package registry. Its optimizer has no
momentum, which is a little less work.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

import torch
from clock import Clock
from networks import moved, network
from workloads import LR, WORKLOADS, arrays

FOLDER = Path(os.environ.get("PFLLIB", "")) / "system"


class Settings(Namespace):
    """The arguments of its command line; what is not given is 0, which is off."""

    def __getattr__(self, name: str) -> int:
        return 0


def settings(name: str) -> Settings:
    work = WORKLOADS[name]
    return Settings(
        algorithm="FedAvg",
        dataset=name,
        device="cpu",
        num_classes=work.classes,
        num_clients=work.clients,
        join_ratio=1.0,
        local_epochs=1,
        batch_size=work.batch,
        local_learning_rate=LR,
        learning_rate_decay_gamma=1.0,
        time_threthold=float("inf"),
        model=network(name),
    )


def main(name: str, rounds: int) -> None:
    clock = Clock()
    if not FOLDER.is_dir():
        return clock.report(
            skipped="PFLlib is in no package registry, and PFLLIB names no copy of its repository"
        )
    sys.path.insert(0, str(FOLDER))
    from flcore.clients import clientbase
    from flcore.servers import serverbase
    from flcore.servers.serveravg import FedAvg

    x, y = (torch.from_numpy(a) for a in arrays(name))
    held = [[*zip(x[k], y[k], strict=True)] for k in range(len(x))]
    for module in (clientbase, serverbase):
        module.read_client_data = lambda dataset, client, **_: held[client]
    server = FedAvg(settings(name), 0)
    for _ in range(rounds):
        server.selected_clients = server.select_clients()
        server.send_models()
        for client in server.selected_clients:
            client.train()
        server.receive_models()
        server.aggregate_parameters()
        clock.lap()
    clock.moved = moved(network(name).parameters(), server.global_model.parameters())
    clock.report(torch=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
