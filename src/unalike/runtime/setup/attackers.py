"""The malicious clients of a run under attack: what they train on, and that they are not scored."""

from dataclasses import replace

import numpy as np
import torch

from unalike._utils import seeds
from unalike.core.types import Batch
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.methods.method import Method
from unalike.methods.part import overrides


def malicious_clients(method: Method, sizes: np.ndarray, seed: int) -> frozenset[int]:
    """Numbers of the malicious clients: floor(share K + 1/2) of the K with training samples; none without an attack."""
    if method.attack is None:
        return frozenset()
    drawn = seeds.generator(seed, "malicious clients").permutation(np.flatnonzero(sizes > 0))
    return frozenset(drawn[: int(method.attack.share * len(drawn) + 0.5)].tolist())


def under_attack(population: Population, method: Method, seed: int) -> Population:
    """The clients as a run has them: the malicious ones with poisoned training samples, and without test and validation samples."""
    malicious, attack = malicious_clients(method, population.sizes, seed), method.attack
    if not malicious or attack is None:
        return population
    method.check_task(population.task)
    test, val = (
        Ragged.of(() if k in malicious else rows for k, rows in enumerate(part))
        for part in (population.test, population.val)
    )
    x, y, train, classes = (
        [population.x],
        [population.y],
        population.train,
        len(population.classes or ()),
    )
    if overrides(attack, "poison"):  # the poisoned samples stand behind all others
        rows, count = [*train], len(population.x)
        for k in sorted(malicious):
            made = attack.poison(
                Batch(*population[k].train), classes, seeds.generator(seed, attack.name, k)
            )
            x, y = [*x, made.x], [*y, made.y]
            rows[k] = np.arange(count, count := count + len(made.y))
        train = Ragged.of(rows)
    return replace(population, x=torch.cat(x), y=torch.cat(y), train=train, test=test, val=val)
