"""SCAFFOLD inside a training loop of one's own: twenty lines, state and messages carried by hand.

python examples/own_loop.py
"""

import torch
from torch import nn

import unalike as ua


def main(rounds: int = 20) -> float:
    clients = ua.partition(ua.load("digits"), "pathological(classes=2)", clients=5, seed=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    params, state, client_states = model.state_dict(), None, [None] * len(clients)
    for _ in range(rounds):
        sent, messages = [], []
        for k, client in enumerate(clients):
            x, y = client.train
            batches = [(x[rows], y[rows]) for rows in torch.randperm(len(y)).split(20)]
            broadcast = state.messages if state else None
            update = ua.local_update(
                "scaffold",
                model,
                params,
                batches,
                lr=0.1,
                client_state=client_states[k],
                messages=broadcast,
            )
            sent.append(update[0]), messages.append(update[1])
            client_states[k] = update[2]
        params, state = ua.aggregate("scaffold", params, sent, messages=messages, state=state)
    model.load_state_dict(params)
    hits = [(model(c.test[0]).argmax(1) == c.test[1]).float() for c in clients]
    return torch.cat(hits).mean().item()


if __name__ == "__main__":
    print(f"accuracy {main():.3f}")
