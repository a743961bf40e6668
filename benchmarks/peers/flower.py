"""Flower: a ServerApp with FedAvg and a ClientApp in its simulation on Ray, one core per client actor."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib.metadata import version

import torch
from clock import Clock
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from networks import network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import LR, MOMENTUM, WORKLOADS, arrays


@lru_cache(maxsize=None)
def loader(name: str, client: int) -> DataLoader:
    """Kept by the actor from round to round."""
    x, y = arrays(name)
    return DataLoader(TensorDataset(torch.from_numpy(x[client]), torch.from_numpy(y[client])), WORKLOADS[name].batch, True)


def client_app(name: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # an actor has one core
        module = network(name)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
        for x, y in loader(name, int(context.node_config["partition-id"])):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimiser.step()
        content = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": WORKLOADS[name].samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def main(name: str, rounds: int) -> None:
    work, clock, server = WORKLOADS[name], Clock(), ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients)

        def lap(number: int, arrays: ArrayRecord) -> None:
            if number:
                clock.lap()

        strategy.start(grid, ArrayRecord(network(name).state_dict()), rounds, train_config=ConfigRecord(), evaluate_fn=lap)

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server,
        client_app(name),
        work.clients,
        backend_config={
            "init_args": {"num_cpus": cores, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    clock.report(version=version("flwr"), ray=version("ray"), torch=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
