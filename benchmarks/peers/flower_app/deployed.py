"""FedAvg in Flower's own deployment, as its guides write it: `benchmarks/federation.py flower` starts the processes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

server = ServerApp()
client = ClientApp()


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Train for some rounds, without evaluation at the sites; the end of each round goes to the file `laps`."""
    settings = context.run_config
    sites, laps = int(settings["sites"]), Path(str(settings["laps"]))

    def lap(number: int, arrays: ArrayRecord) -> None:
        with laps.open("a") as file:
            file.write(f"{time.time()}\n")

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
    strategy.start(
        grid, ArrayRecord(network().state_dict()), int(settings["rounds"]), evaluate_fn=lap
    )


@client.train()
def train(message: Message, context: Context) -> Message:
    """One epoch in batches of 32 by SGD."""
    module, file = network(), np.load(str(context.node_config["data"]))
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = (torch.from_numpy(file[name]) for name in ("train_x", "train_y"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for rows in torch.randperm(len(y)).split(32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    found = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(found), reply_to=message)
