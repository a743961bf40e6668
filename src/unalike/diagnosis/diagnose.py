"""`ua.diagnose`: the kinds of heterogeneity that some clients have."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd

from unalike._utils.errors import UnalikeError
from unalike._utils.keywords import check_keywords, fields_of
from unalike._utils.option_types import check_whole
from unalike._utils.progress import UserProgress, progress_reporting
from unalike.core.work import Work
from unalike.data.partitioning.given_clients import Clients, ClientsRequest
from unalike.data.population import Population
from unalike.data.suspect_values import suspect_values
from unalike.diagnosis.clusters import label_clusters
from unalike.diagnosis.concepts import concept_shift
from unalike.diagnosis.diagnosis import Diagnosis
from unalike.diagnosis.features import feature_skew
from unalike.diagnosis.labels import label_skew, pairwise
from unalike.diagnosis.measure import Measure
from unalike.diagnosis.samples import (
    MAX_COMPARED_CLIENTS,
    MAX_COMPARED_SAMPLES,
    ClientCounts,
    ClientSamples,
    Features,
    notes_on_few,
)
from unalike.diagnosis.sizes import quantity_skew
from unalike.diagnosis.training import (
    TRAINED_DIVISIONS,
    TrainingRequest,
    TrainingSkew,
    training_skew,
)
from unalike.reporting import wording
from unalike.runtime.setup.given_model import ModelLike


def diagnose(
    clients: Clients | int | None = None,
    *,
    data: Any = None,
    data_dir: str | Path | None = None,
    partition: str | None = None,
    split: float | str | None = None,
    features: Features | None = None,
    rounds: int = 0,
    model: ModelLike = "mlp",
    work: Work | None = None,
    seed: int = 0,
    progress: UserProgress = None,
    **unknown: Any,
) -> Diagnosis:
    """Measure the kinds of heterogeneity of clients: labels, sizes, features, concepts, clusters; with rounds also training.

    Only training samples are looked at. Every number comes with an interval and with the same number for reference divisions of
    the same samples among as many clients.

    Args:
        clients: The result of `ua.partition`, or a list of `ua.ClientData`. With `data`: the number of clients (10, or as many
            as the data set defines, unless given).
        data: Data set by name, or a data set or object that `ua.load` reads, instead of clients.
        data_dir: Folder of data files.
        partition: Partition of the data; unless given, by the groups of the data, or where it has none, "dirichlet(alpha=0.1)",
            for a regression "iid".
        split: Share of each client's samples that train (0.75), or "later", as for `ua.run`; only with `data`.
        features: A function from inputs [n, ...] to features [n, D] in which samples are compared, such as a trained network
            without its head; the inputs themselves unless given.
        rounds: Rounds of FedAvg for the numbers about training; 0 trains nothing.
        model: Model to train in these rounds.
        work: The local training of these rounds; the default is `ua.Work()`.
        seed: Seed of all random numbers: of the partition, of resampling and of training.
        progress: Called with each row of the trained rounds; by default a bar on a terminal and in a notebook; False for none.
        unknown: No other keyword is taken; a misspelt one gets a suggestion.

    Returns:
        The diagnosis: `print(diagnosis)` is a summary, `diagnosis.table` has the numbers, `diagnosis.save(folder)` writes a page.

    Raises:
        UnalikeError: Fewer than two clients have samples, the data cannot be read, or the rounds cannot be trained as requested.

    Examples:
        >>> diagnosis = ua.diagnose(clients, rounds=5)  # doctest: +SKIP
        >>> print(diagnosis)  # doctest: +SKIP
        >>> diagnosis.measures["label_tv"].value  # doctest: +SKIP
    """
    known = [name for name in signature(diagnose).parameters if name != "unknown"]
    check_keywords("ua.diagnose", unknown, known, fields_of(Work))
    _check(rounds, seed, features)
    given = ClientsRequest(clients, data, data_dir, partition, split).read(needs_test=False)
    population = given.of(seed)
    with progress_reporting(progress, rounds * TRAINED_DIVISIONS, "training") as callback:
        training = None
        if rounds:
            training = TrainingRequest(rounds, model, work or Work(), callback)
        return diagnose_population(
            population, given.title(population), seed=seed, features=features, training=training
        )


def diagnose_population(
    population: Population,
    name: str,
    *,
    seed: int,
    features: Features | None = None,
    training: TrainingRequest | None = None,
    command: str = "",
) -> Diagnosis:
    """Diagnose clients that are in memory; see `diagnose`.

    `name` is the data and its partition, for the title; without `training` nothing is trained; `command` repeats the diagnosis.
    """
    samples = ClientSamples.of(population, seed)
    concept = concept_shift(samples, features, seed)
    others = feature_skew(samples, features, seed)
    if concept is not None:
        others.append(concept.measure)
    trained = None
    if training is not None:
        trained = training_skew(population, samples, training, seed)
    return diagnosis_of(
        samples.client_counts,
        others,
        trained,
        seed,
        name=name,
        regression=samples.regression,
        concept=concept,
        notes=_notes(population, samples),
        command=command,
    )


def diagnosis_of(
    counts: ClientCounts,
    others: Sequence[Measure],
    training: TrainingSkew | None,
    seed: int,
    **fields: Any,
) -> Diagnosis:
    """The diagnosis of clients by their counts, the `others` of their measures, and their training; `fields` are further ones."""
    clusters = []
    by_labels = label_clusters(counts, seed)
    if by_labels is not None:
        clusters.append(by_labels)
    if training is not None and training.clusters is not None:
        clusters.append(training.clusters)

    # In the order of the table and the page.
    measures = [*label_skew(counts, seed), *quantity_skew(counts, seed), *others]
    if training is not None:
        measures += training.measures
    for one in clusters:
        measures += one.measures
    return Diagnosis(
        measures={measure.name: measure for measure in measures},
        counts=pd.DataFrame(counts.counts, index=counts.names, columns=counts.classes),
        label_distances=pairwise(counts.counts),
        clusters=clusters,
        training=training,
        **fields,
    )


def _check(rounds: int, seed: int, features: Features | None) -> None:
    check_whole(0, rounds=rounds, seed=seed)
    if features is not None and not callable(features):
        raise UnalikeError(
            f"found features={features!r}, expected a function of inputs that returns "
            "one row per sample"
        )


def _notes(population: Population, samples: ClientSamples) -> list[str]:
    """Notes on what the samples are, and on clients and samples that the diagnosis leaves out."""
    with_samples = int((population.sizes > 0).sum())
    notes = [] if population.plan is None else [*population.plan.notes]
    of_samples = [*suspect_values(population), *population.leak_notes]
    notes += [f"{wording.capital(note)}." for note in of_samples]
    if with_samples < len(population):
        notes.append(
            f"{len(population) - with_samples} of {len(population)} clients have no training "
            "sample and are left out."
        )
    if samples.clients < with_samples:
        notes.append(
            f"{samples.clients} of {with_samples} clients were drawn by chance and looked at."
        )
    if samples.clients > MAX_COMPARED_CLIENTS or len(samples.labels) > MAX_COMPARED_SAMPLES:
        notes.append(
            f"Features and concepts are compared over at most {MAX_COMPARED_CLIENTS} clients "
            f"and {MAX_COMPARED_SAMPLES} samples, drawn by chance."
        )
    if samples.regression:
        notes.append(
            "The labels are numbers: they are counted in ranges with about as many samples each."
        )
    return notes + notes_on_few(samples.clients)
