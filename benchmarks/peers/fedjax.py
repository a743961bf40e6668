"""FedJAX: its own federated averaging, with its default (jit) backend for the clients."""

from __future__ import annotations

import sys
from importlib.metadata import version

import fedjax
import haiku as hk
import jax
from clock import Clock
from fedjax.algorithms import fed_avg
from workloads import LR, MOMENTUM, WORKLOADS, arrays


def two_nn(x: jax.Array) -> jax.Array:
    return hk.nets.MLP((200, 200, 10))(x)


def logistic(x: jax.Array) -> jax.Array:
    return hk.Linear(10)(x)


def cnn(x: jax.Array) -> jax.Array:
    """FedLWS's SimpleCNN, channels last as haiku has them."""
    for i, width in enumerate((32, 64, 64)):
        x = hk.max_pool(x, 2, 2, "VALID") if i else x
        x = jax.nn.relu(hk.Conv2D(width, 3, padding="VALID")(x))
    return hk.Linear(10)(jax.nn.relu(hk.Linear(64)(hk.Flatten()(x))))


NETWORKS = {"2nn": two_nn, "logistic": logistic, "cnn": cnn}


def main(name: str, rounds: int) -> None:
    work, clock = WORKLOADS[name], Clock()
    x, y = arrays(name)
    x = x.transpose(0, 1, 3, 4, 2) if len(work.shape) == 3 else x
    clients = [
        (b"%d" % k, fedjax.ClientDataset({"x": x[k], "y": y[k]})) for k in range(work.clients)
    ]
    net = hk.transform(lambda batch: NETWORKS[name](batch["x"]))
    model = fedjax.create_model_from_haiku(
        net,
        {"x": x[0, :1], "y": y[0, :1]},
        lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(LR, MOMENTUM),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1),
    )
    key = jax.random.PRNGKey(0)
    start = model.init(key)
    state = algorithm.init(start)
    for _ in range(rounds):
        key, *keys = jax.random.split(key, work.clients + 1)
        state, _ = algorithm.apply(state, [(*client, k) for client, k in zip(clients, keys)])
        jax.block_until_ready(state.params)
        clock.lap()
    clock.moved = float(
        fedjax.tree_util.tree_l2_norm(jax.tree_map(lambda a, b: b - a, start, state.params))
    )
    clock.report(version=version("fedjax"), jax=jax.__version__)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
