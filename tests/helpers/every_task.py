"""Every registered task with labels that it can have, and clients who have them."""

from __future__ import annotations

import math

import torch
from torch import nn

import unalike as ua
from unalike.core.tasks.registry import find_task, registry

NAMES = [*registry]
ROWS = 40


def class_names(task):
    if task.takes_class_names:
        return ["a", "b", "c"]
    return list(task.class_names) or None


def class_count(task):
    names = class_names(task)
    return None if names is None else len(names)


def labels_of(task, rows=ROWS):
    """Labels that the task can have: whole numbers, below the number of classes; where they must be, 0 or 1 but for the first."""
    generator = torch.Generator().manual_seed(0)
    shape = (rows, *task.shape_of_labels((4, 4), 4))
    y = torch.randint(class_count(task) or 5, shape, generator=generator).to(task.label_type)
    if task.label_fault(y, class_count(task)):
        y[:, 1:].clamp_(max=1)
    return y


def fitted(name):
    """The task, with what is left to its labels."""
    task = find_task(name)
    return task.fitted_to(labels_of(task))


class OneLayer(nn.Module):
    """One layer for outputs of any shape, with a hidden layer below it where it has a width."""

    def __init__(self, inputs, output_shape, width=0):
        super().__init__()
        self.body = nn.Linear(inputs, width) if width else nn.Identity()
        self.head = nn.Linear(width or inputs, math.prod(output_shape))
        self.output_shape = output_shape

    def forward(self, x):
        hidden = self.body(x.to(self.head.weight.dtype))
        return self.head(hidden).unflatten(1, self.output_shape)


def population_of(task):
    """Three clients with labels that the task can have; where the task makes labels of the inputs, these are labels that it has."""
    clients = []
    for number in range(3):
        x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(number))
        if task.name == "next_token":
            x = (x > 0).long()
        y = labels_of(task)
        train, test = (x[8:], y[8:]), (x[:8], y[:8])
        if task.labels_of_inputs(x) is not None:
            train, test = (x[8:], None), (x[:8], None)
        clients.append(ua.ClientData(train=train, test=test, name=f"client {number}"))
    return ua.Population.of(clients, classes=class_names(task), task=task)
