"""One server round with the models of two clients, in float64: three layers of five numbers in all."""

import numpy as np
from simulation import Server

START = {"body.weight": [[3.0, 0.0]], "body.bias": [4.0], "head.weight": [[0.0, 2.0]]}
A = {"body.weight": [[4.0, 0.0]], "body.bias": [4.0], "head.weight": [[0.0, 4.0]]}
B = {"body.weight": [[3.0, 2.0]], "body.bias": [7.0], "head.weight": [[0.0, 2.0]]}


def advanced(method, clients=(A, B), sizes=(1, 3), start=START, **more):
    return Server(method, start).advance(list(clients), sizes, **more)


def entries(params):
    return np.concatenate([np.ravel(t) for t in params.values()])


W = entries(START)
G = np.stack([entries(A), entries(B)]) - W  # the clients' updates
U = np.array([0.25, 0.75]) @ G  # FedAvg's update
LAYER = [[0, 1, 2], [3, 4]]  # up to and including a name that ends in bias, then the tail
TENSOR = [[0, 1], [2], [3, 4]]
MODEL = [[0, 1, 2, 3, 4]]
