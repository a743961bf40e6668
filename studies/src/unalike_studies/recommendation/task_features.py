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
    measures, clients = diagnosis.measures, len(diagnosis.counts)
    samples = float(diagnosis.counts.to_numpy().sum()) / clients
    silhouettes = [m for name, m in measures.items() if name.startswith("silhouette")]
    work, (model, _) = conditions.work, make_model(conditions.model, population, 0)
    batches = math.ceil(samples / (work.batch_size or math.inf)) or 1
    return {
        "label_skew": _beyond_chance(measures.get("label_tv")),
        "quantity_skew": _known(measures["size_gini"].value),
        "feature_skew": _beyond_chance(measures.get("feature_distance_within")),
        "concept_shift": _known(measures["concept_gap"].value)
        if "concept_gap" in measures
        else 0.0,
        "clusters": max((_beyond_chance(m, NO_GROUPS) for m in silhouettes), default=0.0),
        "clients": float(clients),
        "cohort": float(cohort_size(conditions.participation, clients)),
        "samples": samples,
        "classes": float(len(population.classes or "1")),
        "majority": float(diagnosis.counts.sum().max() / diagnosis.counts.to_numpy().sum()),
        "steps": float(work.steps or work.epochs * batches),
        "layers": float(sum(value.dim() > 1 for value in model.params.values())),
    }


def _beyond_chance(measure: Measure | None, chance: str = NO_SKEW) -> float:
    """The value less that of a division by chance."""
    return 0.0 if measure is None else _known(measure.value - measure.scale.get(chance, 0.0))


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0
