"""The features of a task: numbers about the clients' data and about training that forecasts are made from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from unalike.core.options import cohort_size
from unalike.core.work import Work
from unalike.data.population import Population
from unalike.diagnosis.clusters import NO_GROUPS
from unalike.diagnosis.diagnosis import Diagnosis
from unalike.diagnosis.measure import NO_SKEW, Measure
from unalike.runtime.setup.given_model import ModelLike, make_model

TITLES: Mapping[str, str] = {
    "label_skew": "label skew (total variation beyond chance)",
    "quantity_skew": "quantity skew (Gini coefficient of the sizes)",
    "feature_skew": "feature skew within classes (standard deviations beyond chance)",
    "concept_shift": "concept shift (errors added by another's model)",
    "clusters": "silhouette of the clusters beyond chance",
    "clients": "clients",
    "cohort": "clients in a round",
    "samples": "training samples of a client (mean)",
    "classes": "classes",
    "majority": "share of the most frequent class",
    "steps": "local steps in a round (mean client)",
    "layers": "layers of the model with weights",
}
"""Feature -> its meaning."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of training. `participation` is the share of clients in a round."""

    participation: float
    work: Work
    model: ModelLike


def features(
    population: Population, diagnosis: Diagnosis, conditions: Conditions
) -> dict[str, float]:
    """The features of clients that train under these conditions; see `TITLES`. A measure that is not available counts as 0."""
    # What the diagnosis measured.
    measures = diagnosis.measures
    concept_gap = measures.get("concept_gap")
    silhouettes = [
        _beyond_chance(measure, NO_GROUPS)
        for name, measure in measures.items()
        if name.startswith("silhouette")
    ]

    # The sizes of the data and of the training. A full batch makes one step an epoch.
    clients = len(diagnosis.counts)
    all_samples = diagnosis.counts.to_numpy().sum()
    samples = float(all_samples) / clients
    work = conditions.work
    batches = math.ceil(samples / (work.batch_size or math.inf)) or 1
    model, _ = make_model(conditions.model, population, 0)
    return {
        "label_skew": _beyond_chance(measures.get("label_tv")),
        "quantity_skew": _known(measures["size_gini"].value),
        "feature_skew": _beyond_chance(measures.get("feature_distance_within")),
        "concept_shift": 0.0 if concept_gap is None else _known(concept_gap.value),
        "clusters": max(silhouettes, default=0.0),
        "clients": float(clients),
        "cohort": float(cohort_size(conditions.participation, clients)),
        "samples": samples,
        "classes": float(len(population.classes or "1")),
        "majority": float(diagnosis.counts.sum().max() / all_samples),
        "steps": float(work.steps or work.epochs * batches),
        "layers": float(sum(value.dim() > 1 for value in model.params.values())),
    }


def _beyond_chance(measure: Measure | None, chance: str = NO_SKEW) -> float:
    """The value less that of a division by chance."""
    if measure is None:
        return 0.0
    return _known(measure.value - measure.scale.get(chance, 0.0))


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0
