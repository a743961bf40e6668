"""The client app of `peers/flower.py`, in a module that Ray's processes can import."""

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from networks import network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import LR, MOMENTUM, WORKLOADS, arrays


@cache
def loader(name: str, client: int) -> DataLoader:
    """Cached by the actor between rounds."""
    x, y = arrays(name)
    return DataLoader(
        TensorDataset(torch.from_numpy(x[client]), torch.from_numpy(y[client])),
        WORKLOADS[name].batch,
        True,
    )


def client_app(name: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        module = network(name)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
        for x, y in loader(name, int(context.node_config["partition-id"])):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": WORKLOADS[name].samples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app
