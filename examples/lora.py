"""Adapters alone cross the wire: a small transformer, pretrained on the digits 0 to 4, learns 5 to 9 at five clients by LoRA.

python examples/lora.py
"""

from copy import deepcopy

from torch import nn

import unalike as ua

LAYERS = "blocks.*"
"""Linear layers of the blocks of `vit`, which get adapters."""


def head_alone(module: nn.Module) -> nn.Module:
    """Freeze a module except for its head, in place."""
    module.requires_grad_(False)
    module.head.requires_grad_(True)
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
    spec = "vit(patch=4, width=48, depth=2, heads=4)"
    return ua.run("fedavg", pooled, model=spec, rounds=rounds, work=work, progress=False).module()


def kilobytes(method: str, module: nn.Module) -> float:
    """Sent by one client in a round, both directions."""
    return sum(item.bytes for item in ua.wire(method, module) if not item.once) / 1000


def compared(rounds: int = 20) -> list[tuple[str, str, float, float]]:
    """Method, what is trained, kB per client and round, mean accuracy of the clients; all from the same pretrained weights."""
    source = pretrained()
    models = {
        "all": source,
        "adapters and head": ua.low_rank(deepcopy(source), layers=LAYERS),
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
