"""L-DAWA: models weighted by their cosine similarity with the received model, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.roles import Aggregator


@part
class CosineMean(Aggregator):
    """w+_l = sum_k p_k min(cos(w_kl, w_l), 1) w_kl for each tensor l (L-DAWA, Rehman et al. 2023).

    The coefficients are not renormalised: where clients diverge the norm shrinks, and a client that turned round counts with a
    negative sign. The cosine is taken as 1 for scalars, for w_kl = 0 and for w_l = 0 (where the authors' code gives NaN). Clients
    that did not move leave w as it is. The mean is uniform in the paper (`ldawa` brings `uniform`). Float buffers are averaged
    with the same weights; the authors' code scales them too.
    """

    def combine(self, server: ServerView, cohort: Cohort, weights: Tensor) -> Tree:
        return tree.map(lambda u, w: self._tensor(w, u, weights.to(u.dtype)), cohort.update, server.params)

    def _tensor(self, w: Tensor, u: Tensor, weights: Tensor) -> Tensor:
        models = w + u
        rows = tree.matrix(models)
        lengths = rows.norm(dim=1) * w.norm()
        cosine = (rows @ w.flatten() / lengths).clamp_max(1.0)
        factor = torch.where((lengths > 0) & (w.dim() > 0), cosine, 1.0)
        coefficients = weights * factor
        # sum_k c_k w_k - w, so that clients that did not move give 0 but for the rounding of the cosines
        return torch.tensordot(coefficients, u, dims=1) + (coefficients.sum() - 1) * w
