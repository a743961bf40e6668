"""Federated averaging in a plain PyTorch loop: `python bare.py WORKLOAD ROUNDS THREADS [loader]`."""

from __future__ import annotations

import sys

import torch
from clock import Clock
from networks import moved, network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from workloads import LR, MOMENTUM, WORKLOADS, arrays


def main(name: str, rounds: int, threads: int, loader: bool) -> None:
    torch.set_num_threads(threads)
    work, module, clock = WORKLOADS[name], network(name), Clock()
    x, y = (torch.from_numpy(a) for a in arrays(name))
    state = {n: t.clone() for n, t in module.state_dict().items()}
    loaders = (
        [DataLoader(TensorDataset(*pair), work.batch, shuffle=True) for pair in zip(x, y)]
        if loader
        else None
    )
    for _ in range(rounds):
        total = {n: torch.zeros_like(t) for n, t in state.items()}
        for k in range(work.clients):
            module.load_state_dict(state)
            optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
            batches = (
                loaders[k]
                if loaders
                else ((x[k][i], y[k][i]) for i in torch.randperm(work.samples).split(work.batch))
            )
            for inputs, labels in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(inputs), labels).backward()
                optimizer.step()
            for n, t in module.state_dict().items():
                total[n] += t if not t.is_floating_point() else t / work.clients
        state = total
        clock.lap()
    clock.moved = moved(network(name).state_dict().values(), state.values())
    clock.report(torch=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "loader" in sys.argv[4:])
