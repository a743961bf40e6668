"""Cross-entropy balanced by the client's class counts."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from unalike.core.types import Batch, PartTrees
from unalike.core.views import ClientView, StageSettings
from unalike.methods.part import part
from unalike.methods.parts.weights import label_counts
from unalike.methods.roles import TaskObjective
from unalike.methods.search_space import LinearRange


@part
class BalancedSoftmax(TaskObjective):
    """-log [n_y^gamma e^(u_y) / sum_c n_c^gamma e^(u_c)] in the place of cross-entropy (Ren et al. 2020; FedETF).

    u are the logits and n_c the client's training samples of class c, which stay there. Rare classes are learned as if they
    were not rare, and logits of classes that a client does not have get no gradient. gamma = 0 is cross-entropy, and FedAvg.
    """

    published: ClassVar[bool] = True

    gamma: Annotated[NonNegativeFloat, LinearRange(0, 2)] = 1.0
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    ABSENT: ClassVar[float] = -1e9
    """Used for log 0: rows of padding may have a class that the client does not have."""

    def facts(self, data: Batch, settings: StageSettings) -> PartTrees:
        return {"label_histogram": {"counts": label_counts(data, settings)}}

    def loss(self, client: ClientView, batch: Batch) -> Tensor:
        logits = client.out(batch).logits
        counts = client.context["label_histogram"]["counts"].to(logits.dtype)
        log_n = torch.where(counts > 0, counts.clamp_min(1).log(), self.ABSENT)
        return batch.mean(F.cross_entropy(logits + self.gamma * log_n, batch.y, reduction="none"))
