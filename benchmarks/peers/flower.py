"""Flower: a ServerApp with FedAvg and a ClientApp in its simulation on Ray: `python flower.py WORKLOAD ROUNDS CORES`.

CORES is the number of cores per client, or "default" for Flower's default, two.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

import torch
from clock import Clock
from flower_client import client_app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from networks import moved, network
from workloads import WORKLOADS


def main(name: str, rounds: int, cores: str) -> None:
    work, clock, server = WORKLOADS[name], Clock(), ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients
        )

        def lap(number: int, arrays: ArrayRecord) -> None:
            if number:
                clock.lap()

        start = network(name).state_dict()
        found = strategy.start(
            grid, ArrayRecord(start), rounds, train_config=ConfigRecord(), evaluate_fn=lap
        )
        clock.moved = moved(start.values(), found.arrays.to_torch_state_dict().values())

    all_cores = len(os.sched_getaffinity(0))
    backend = {
        "init_args": {"num_cpus": all_cores, "include_dashboard": False, "log_to_driver": False}
    }
    if cores != "default":
        backend["client_resources"] = {"num_cpus": int(cores), "num_gpus": 0.0}
    run_simulation(server, client_app(name), work.clients, backend_config=backend)
    clock.report(version=version("flwr"), ray=version("ray"), torch=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
