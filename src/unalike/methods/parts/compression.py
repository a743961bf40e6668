"""Compression of the update before it is sent. The bytes that `unalike` reports are those of the encoded tensors."""

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unalike._utils import seeds
from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import ClientView
from unalike.methods.compressor import Compressor, Sparsifier
from unalike.methods.part import part
from unalike.methods.roles import Upload


@part
class TopK(Sparsifier):
    """Of each tensor, the k = ceil(fraction * size) entries of largest magnitude are sent, with their places (Stich et al. 2018).

    `error_feedback`: what was not sent, e <- (update + e) - sent, stays on the client and joins its next update; the client
    state then holds one model. What is lost of a tensor u is at most (1 - fraction) ||u||^2. fraction = 1 sends everything as it
    is. An entry costs its own bytes and 4 for its place, so fractions above 1/2 cost more than the whole in float32.
    """

    name = "topk"
    fraction: float = Field(default=0.1, gt=0, le=1)
    error_feedback: bool = False

    PLACES = ":places"

    @property
    def shortens(self) -> bool:
        return not self.error_feedback

    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        sent: Tree = {}
        for name, u in update.items():
            k, flat = _count(self.fraction, u), u.flatten()
            if k == u.numel():
                sent[name] = u
                continue
            places = flat.abs().topk(k).indices.sort().values
            sent[name], sent[name + self.PLACES] = flat[places], places.int()
        return sent, state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        values = {n: u for n, u in update.items() if not n.endswith(self.PLACES)}
        places = {n: update[n + self.PLACES] for n in values if n + self.PLACES in update}
        return {
            n: _spread(u, places[n], params[n]) if n in places else u for n, u in values.items()
        }


@part
class RandomMask(Sparsifier):
    """Of each tensor, the k = ceil(fraction * size) entries at random places are sent, the same for all clients of a round.

    It is the random mask of Konecny et al. (2016). The places follow from the round and the tensor's name, so they cost no bytes.
    It is linear: the sum of what clients send decodes to the sum of their masked updates, so secure aggregation adds up k numbers
    in place of the whole. `error_feedback` is that of `topk`; without it, what was not sent is lost. fraction = 1 sends everything.
    """

    name = "random_mask"
    fraction: float = Field(default=0.1, gt=0, le=1)
    error_feedback: bool = True
    additive: ClassVar[bool] = True

    KEPT = ":kept"

    @property
    def shortens(self) -> bool:
        return not self.error_feedback

    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        sent = {
            n + self.KEPT: u.flatten()[self._places(n, u, client.round)]
            for n, u in update.items()
            if u.numel()
        }
        return sent | {n: u for n, u in update.items() if not u.numel()}, state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        kept = {n.removesuffix(self.KEPT): u for n, u in update.items() if n.endswith(self.KEPT)}
        spread = {
            n: _spread(u, self._places(n, params[n], round).expand(len(u), -1), params[n])
            for n, u in kept.items()
        }
        return {n: u for n, u in update.items() if not n.endswith(self.KEPT)} | spread

    def _places(self, name: str, like: Tensor, round: int) -> Tensor:
        rng, k = seeds.generator(0, f"{self.name} of {name}", round), _count(self.fraction, like)
        return torch.from_numpy(
            np.sort(rng.choice(like.numel(), k, replace=False, shuffle=False))
        ).to(like.device)


@part
class Quantize(Compressor):
    """Each tensor is sent as integers of `bits` bits and a scale: u ~ s q, s = ||u|| / (2^(bits-1) - 1), q = round(u / s).

    `norm` is that of the largest entry ("max") or the Euclidean one ("l2"); `stochastic` rounds up with the probability of the
    remainder, q = floor(u / s + U[0, 1)), which is right on average. quantize(stochastic=True, norm='l2') is QSGD of
    2^(bits-1) - 1 levels (Alistarh et al. 2017), without its variable-length code; with "max" as in the authors' experiments, and
    FedPAQ (Reisizadeh et al. 2020). bits = 32 sends the numbers as they are.
    """

    bits: Literal[8, 16, 32] = 8
    stochastic: bool = False
    norm: Literal["max", "l2"] = "max"
    error_feedback: bool = False
    rank: ClassVar[int] = Upload.QUANTIZE

    SCALE = ":scale"

    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        if self.bits == 32:
            return update, state
        sent: Tree = {}
        for name, u in update.items():
            if not u.is_floating_point() or not u.numel():
                sent[name] = u
                continue
            most = 2 ** (self.bits - 1) - 1
            scale = (u.abs().amax() if self.norm == "max" else torch.linalg.vector_norm(u)) / most
            q = u / torch.where(scale > 0, scale, 1.0)
            # 32767 + 0.9999 is 32768 in float32, which 16 bits take for -32768
            q = (
                (q + torch.rand_like(q)).floor().clamp(-most, most)
                if self.stochastic
                else q.round()
            )
            sent[name], sent[name + self.SCALE] = (
                q.to({8: torch.int8, 16: torch.int16}[self.bits]),
                scale,
            )
        return sent, state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        values = {n: t for n, t in update.items() if not n.endswith(self.SCALE)}
        scales = {n: update[n + self.SCALE] for n in values if n + self.SCALE in update}
        return {
            n: q * scales[n].reshape(-1, *[1] * (q.dim() - 1)) if n in scales else q
            for n, q in values.items()
        }


@part
class HalfPrecision(Compressor):
    """Each number is sent in 2 bytes: "bfloat16" keeps 8 bits of precision, "float16" 11 bits of numbers up to 65504.

    Larger ones are sent as 65504. A sum of such updates decodes to the sum of the updates.
    """

    format: Literal["bfloat16", "float16"] = "bfloat16"
    error_feedback: bool = False
    rank: ClassVar[int] = Upload.QUANTIZE
    additive: ClassVar[bool] = True

    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        kind: torch.dtype = getattr(torch, self.format)
        most = torch.finfo(kind).max
        return tree.map(
            lambda u: u.clamp(-most, most).to(kind) if u.is_floating_point() else u, update
        ), state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        kind = tree.dtype(params)
        return tree.map(lambda u: u.to(kind) if u.is_floating_point() else u, update)


@part
class PowerSGD(Sparsifier):
    """Each matrix M [n, m] is sent as P [n, r] and Q [m, r] with M ~ P Q^T, r = `components` (PowerSGD, Vogels et al. 2019).

    One power iteration a round, from the Q of the round before: P = orthogonalized M Q, Q = M^T P. Convolutions are matrices of
    their output channels; vectors, and matrices that would not become smaller, are sent whole. The paper adds up P and Q over
    the clients before it goes on, in two exchanges; here each client makes its own, in one, so the rank of their mean may be
    K r. Columns within rounding of those before them are 0, and start anew.
    """

    name = "powersgd"
    components: PositiveInt = 2
    error_feedback: bool = True

    LEFT, RIGHT, START = ":left", ":right", ":start"

    def client_init(self, params: Tree) -> Tree:
        generator = torch.Generator().manual_seed(0)
        starts = {
            n + self.START: torch.randn(
                w[0].numel(), self.components, generator=generator, dtype=w.dtype
            )
            for n, w in params.items()
            if w.dim() > 1 and self.components * (len(w) + w[0].numel()) < w.numel()
        }
        return super().client_init(params) | starts

    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        sent: Tree = {}
        for name, u in update.items():
            if name + self.START not in state:
                sent[name] = u
                continue
            matrix, start = u.flatten(1), state[name + self.START]
            left = _orthogonal(matrix @ start)
            right = matrix.T @ left
            lengths = torch.linalg.vector_norm(right, dim=0)
            sent[name + self.LEFT], sent[name + self.RIGHT] = left, right
            state = state | {
                name + self.START: torch.where(lengths > 1e-5 * lengths.amax(), right, start)
            }
        return sent, state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        found: Tree = {}
        for name, t in update.items():
            if name.endswith(self.LEFT):
                own = name.removesuffix(self.LEFT)
                found[own] = (t @ update[own + self.RIGHT].mT).reshape(len(t), *params[own].shape)
            elif not name.endswith(self.RIGHT):
                found[name] = t
        return found


def _count(fraction: float, u: Tensor) -> int:
    return math.ceil(fraction * u.numel() - 1e-9)  # 0.1 * 30 is a little more than 3


def _spread(values: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Tensors like `like` with the values [K, k] at these places [K, k], and 0 elsewhere."""
    places = places.long().clamp(0, like.numel() - 1)  # whatever a client sends, the round goes on
    flat = values.new_zeros(len(values), like.numel()).scatter(1, places, values)
    return flat.reshape(-1, *like.shape)


def _orthogonal(matrix: Tensor) -> Tensor:
    """The columns of a matrix [n, r] made orthonormal one after the other; 0 for one within rounding of those before it."""
    columns: list[Tensor] = []
    for own in matrix.unbind(1):
        left = own
        for before in columns:
            left = left - (before @ left) * before
        length = torch.linalg.vector_norm(left)
        columns.append(
            torch.where(
                length > 1e-5 * torch.linalg.vector_norm(own), left / length.clamp_min(1e-30), 0.0
            )
        )
    return torch.stack(columns, 1)
