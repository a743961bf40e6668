"""The malicious clients of a run under attack: what they train on, and that they are not scored."""

from dataclasses import replace

import numpy as np
import torch

from unalike._utils import seeds
from unalike.core.inputs import join_rows
from unalike.core.types import Batch
from unalike.core.views import StageSettings
from unalike.data.population import Population
from unalike.data.ragged import Ragged
from unalike.data.sanity import listed
from unalike.methods.attack import Attack
from unalike.methods.method import Method
from unalike.methods.part import overrides
from unalike.metrics.columns import TEST, Column, Columns
from unalike.metrics.named_metrics import ATTACK_SUCCESS


def malicious_clients(method: Method, sizes: np.ndarray, seed: int) -> frozenset[int]:
    """Numbers of the malicious clients: floor(share K + 1/2) of the K with training samples; none without an attack."""
    if method.attack is None:
        return frozenset()
    order = seeds.generator(seed, "malicious clients").permutation(np.flatnonzero(sizes > 0))
    count = int(method.attack.share * len(order) + 0.5)
    return frozenset(order[:count].tolist())


def under_attack(population: Population, method: Method, seed: int) -> Population:
    """The clients as a run has them: the malicious ones with poisoned training samples, and without test and validation samples."""
    attack = method.attack
    malicious = malicious_clients(method, population.sizes, seed)
    if not malicious or attack is None:
        return population
    method.check_task(population.task)
    honest = replace(
        population,
        test=_without(malicious, population.test),
        val=_without(malicious, population.val),
    )
    return _poisoned(honest, attack, malicious, seed) if overrides(attack, "poison") else honest


def columns_of_attack(method: Method, columns: Columns) -> Columns:
    """The columns of scores that an attack adds: the success of its backdoor, under each protocol that scores client models."""
    attack = method.attack
    if attack is None or attack.goal is None:
        return Columns(())
    successes = []
    for protocol in columns.protocols:
        if protocol != "server":
            is_first = protocol == columns.unprefixed_protocol
            successes.append(Column(protocol, TEST, ATTACK_SUCCESS, unprefixed=is_first))
    return Columns(tuple(successes))


def note_on_malicious(malicious: frozenset[int], population: Population) -> list[str]:
    """The note that names the malicious clients of a run; none where all are honest."""
    if not malicious:
        return []
    names = [population.names[k] for k in sorted(malicious)]
    clients = f"{listed(names)} of {len(population)} clients"
    return [f"{clients} are malicious, and the scores are those of the others"]


def trained_status(client: int, settings: StageSettings) -> str:
    """The status of a client that trained in a round, for the table of clients."""
    return "malicious" if client in settings.malicious else "trained"


def _without(clients: frozenset[int], rows: Ragged) -> Ragged:
    """Rows of samples by client; these clients have none."""
    return Ragged.of(() if k in clients else own for k, own in enumerate(rows))


def _poisoned(
    population: Population, attack: Attack, malicious: frozenset[int], seed: int
) -> Population:
    """The population with poisoned training samples of the malicious clients, behind all other samples."""
    classes = len(population.classes or ())
    x = [population.x]
    y = [population.y]
    train = [*population.train]
    count = len(population.y)
    for k in sorted(malicious):
        rng = seeds.generator(seed, attack.name, k)
        own_x, own_y = population[k].train
        poisoned = attack.poison(Batch(own_x, own_y), classes, rng)
        x.append(poisoned.x)
        y.append(poisoned.y)
        train[k] = np.arange(count, count + len(poisoned.y))
        count += len(poisoned.y)
    return replace(population, x=join_rows(x), y=torch.cat(y), train=Ragged.of(train))
