"""Adapters alone cross the wire: a small transformer, pretrained on the digits 0 to 4, learns 5 to 9 at five clients by LoRA.

python examples/lora.py
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

import unalike as ua

LAYERS = ("qkv", "out", "expand", "contract")
"""Linear layers of a block of `vit` that get adapters."""


class LoRA(nn.Module):
    """W x + b + (scale / rank) B A x with frozen W and b (Hu et al. 2022). B is 0 at first, so that nothing changes."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float = 8.0):
        super().__init__()
        self.layer, self.factor = layer.requires_grad_(False), scale / rank
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.factor * (x @ self.a.T @ self.b.T)


def head_alone(module: nn.Module) -> nn.Module:
    """Freeze a module except for its head, in place."""
    module.requires_grad_(False)
    module.head.requires_grad_(True)
    return module


def with_adapters(module: nn.Module, rank: int = 4) -> nn.Module:
    """Freeze a transformer except for its head, and give its linear layers adapters, in place."""
    head_alone(module)
    torch.manual_seed(0)
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if name in LAYERS:
                setattr(parent, name, LoRA(layer, rank))
    return module


def digits(first: int) -> ua.Dataset:
    """Five of the ten digits, from `first` on, as classes 0 to 4."""
    x, y = ua.load("digits").merged()
    chosen = (y >= first) & (y < first + 5)
    return ua.Dataset(f"digits from {first}", train=(x[chosen], y[chosen] - first))


def pretrained(rounds: int = 20) -> nn.Module:
    """A vision transformer of 57,989 parameters, trained in one place on the digits 0 to 4."""
    pooled = ua.partition(digits(0), "iid", clients=1)
    work = ua.Work(lr=0.003, batch_size=32, optimizer="adam")
    spec = "vit(patch=2, width=48, depth=2, heads=4)"
    return ua.run("fedavg", pooled, model=spec, rounds=rounds, work=work, progress=False).module()


def kilobytes(method: str, module: nn.Module) -> float:
    """Sent by one client in a round, both directions."""
    return sum(item.bytes for item in ua.wire(method, module) if not item.once) / 1000


def compared(rounds: int = 20) -> list[tuple[str, str, float, float]]:
    """Method, what is trained, kB per client and round, mean accuracy of the clients; all from the same pretrained weights."""
    source = pretrained()
    models = {
        "all": source,
        "adapters and head": with_adapters(deepcopy(source)),
        "head": head_alone(deepcopy(source)),
    }
    clients = ua.partition(digits(5), "dirichlet(alpha=0.3)", clients=5, seed=0)
    work = ua.Work(lr=0.1, batch_size=16, epochs=2)
    rows = []
    for trained, module in models.items():
        for method in ("fedavg", "scaffold"):
            run = ua.run(method, clients, model=module, rounds=rounds, work=work, progress=False)
            rows.append((method, trained, kilobytes(method, module), run.history.last["accuracy"]))
    return rows


if __name__ == "__main__":
    for method, trained, sent, accuracy in compared():
        print(f"{method:10} {trained:20} {sent:8.1f} kB  accuracy {accuracy:.3f}")
