"""FedPAC: every client starts from its own combination of all heads."""

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unalike.core import tree
from unalike.core.model import Model
from unalike.core.tasks.task import CLASS_LOGITS
from unalike.core.types import Tree
from unalike.core.views import ClientView, Cohort, ServerView
from unalike.methods.part import part
from unalike.methods.parts.class_means import class_features
from unalike.methods.parts.personalizers import OwnParameters
from unalike.methods.roles import ServerStep

SPREAD = "features.spread"
PROFILE = "features.profile"
HEAD = "head of "
"""Names in a client's message: V_k, h_k, and the prefix of the head's parameters."""


@part
class CombinedHeads(OwnParameters, ServerStep):
    """Client i starts from the head sum_j alpha_ij theta_j (FedPAC, Xu et al. 2023), with weights on the simplex that minimize

        sum_j alpha_ij^2 V_j + ||sum_j alpha_ij (h_i - h_j)||^2,

    a bound on its test loss: h_kc = p_kc mu_kc [C, D], p_kc the share of class c in the client's samples and mu_kc the mean of
    its features, V_k = (1 / n_k) sum_c (p_kc E_c||z||^2 - p_kc^2 ||mu_kc||^2), both at the body received. Clients send their heads
    with h_k and V_k; heads are not averaged. theta_j is the head of client j of the cohort after its training. The server stores
    each client's combined head until that client participates again. A client is evaluated with the head that it trained last or,
    with `scored` "combined", with the combined head that the server has for it, under the present body (before its first
    participation the initial head): the better one where clients have few classes. Where V = 0 all keep their own heads (FedPer).

    The problem is solved exactly, by nonnegative least squares. The authors' code cuts eigenvalues below 0.01 where rounding
    made the form indefinite, and sets weights below 0.001 to 0 before it normalizes them; neither is done here.
    """

    needs = "updates"

    scored: Literal["own", "combined"] = "own"

    needs_of_task: ClassVar[str] = CLASS_LOGITS
    rank: ClassVar[int] = ServerStep.DYNAMIC
    needs_data = True
    special_group = "head"

    @property
    def predicts_as_received(self) -> bool:
        return self.scored == "combined"

    def keeps(self, name: str, model: Model) -> bool:
        return model.in_head(name)

    def shared(self, name: str, model: Model) -> bool:
        return not model.in_head(name)

    def address(self, server: ServerView, client: int) -> Tree:
        model = server.settings.model
        message: Tree = {}
        for n, initial in model.params.items():
            if model.in_head(n) and model.trainable(n):
                message[n] = server.state.get(f"{client}/{n}", initial)
        return message

    def begin(self, client: ClientView) -> tuple[Tree, Tree]:
        return client.params | client.state | client.message, client.state

    def finish(self, client: ClientView) -> tuple[Tree, Tree]:
        head = {n: client.params[n] for n in client.state}
        counts, means, squares = class_features(
            client, client.params | client.received_params, client.initial_buffers
        )
        n_k = counts.sum().clamp_min(1)
        p = counts / n_k
        spread = (p * squares - p.square() * means.square().sum(1)).sum() / n_k
        message = {SPREAD: spread.clamp_min(0), PROFILE: p[:, None] * means}
        return head, message | tree.prefixed(HEAD, head)

    def why_impossible(self, message: Tree, samples: int) -> str:
        return "a spread below 0" if message[SPREAD] < 0 else ""

    def step(self, server: ServerView, update: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
        message = cohort.message
        heads = tree.under(message, HEAD)
        alpha = combinations(message[PROFILE], message[SPREAD])
        combined: Tree = {}
        for client, alpha_i in zip(cohort.ids, alpha):
            head = tree.weighted_sum(heads, alpha_i)
            combined |= {f"{client}/{n}": w for n, w in head.items()}
        return update, server.state | combined


def combinations(profiles: Tensor, spreads: Tensor) -> Tensor:
    """alpha [K, K], a row for each client, from h [K, C, D] and V [K].

    On the simplex a^T P a has its minimum where ||A x||^2 + (1^T x - 1)^2, P = A^T A, has it over all x >= 0, but for the
    length of x: with x = s a and the best s the latter is q / (1 + q), q = a^T P a.
    """
    h = profiles.flatten(1).cpu().double().numpy()
    v = spreads.cpu().double().numpy()
    rows = [_weights(h[i] - h, v) for i in range(len(h))]
    return torch.from_numpy(np.stack(rows)).to(profiles)


def _weights(gaps: np.ndarray, v: np.ndarray) -> np.ndarray:
    """alpha_i [K] of one client, from h_i - h [K, C D] and V [K]."""
    from scipy.optimize import nnls  # 31 MB that a site does not need

    form = gaps @ gaps.T + np.diag(v)
    values, vectors = np.linalg.eigh(form / max(np.trace(form), 1e-300))
    root = np.sqrt(values.clip(0))[:, None] * vectors.T  # A with P = A^T A
    rows = np.vstack([root, np.ones(len(v))])
    targets = np.append(np.zeros(len(v)), 1.0)
    x, _ = nnls(rows, targets)
    return x / x.sum()
