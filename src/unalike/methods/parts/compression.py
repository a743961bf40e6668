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
        encoded: Tree = {}
        for name, u in update.items():
            k = _count(self.fraction, u)
            if k == u.numel():
                encoded[name] = u
                continue
            flat = u.flatten()
            places = flat.abs().topk(k).indices.sort().values
            encoded[name] = flat[places]
            encoded[name + self.PLACES] = places.int()
        return encoded, state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        decoded: Tree = {}
        for name, u in update.items():
            if name.endswith(self.PLACES):
                continue
            places = update.get(name + self.PLACES)
            decoded[name] = u if places is None else _spread(u, places, like=params[name])
        return decoded


@part
class RandomMask(Sparsifier):
    """Of each tensor, the k = ceil(fraction * size) entries at random places are sent, the same for all clients of a round.

    It is the random mask of Konecny et al. (2016). The places follow from the round and the tensor's name, so they cost no bytes,
    and secure aggregation adds up k numbers in place of the whole. `error_feedback` is that of `topk`. fraction = 1 sends
    everything.
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
        encoded: Tree = {}
        withheld: Tree = {}
        for name, u in update.items():
            if u.numel():
                encoded[name + self.KEPT] = u.flatten()[self._places(name, u, client.round)]
            else:
                withheld[name] = u
        return encoded | withheld, state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        withheld: Tree = {}
        decoded: Tree = {}
        for key, u in update.items():
            if not key.endswith(self.KEPT):
                withheld[key] = u
                continue
            name = key.removesuffix(self.KEPT)
            places = self._places(name, params[name], round).expand(len(u), -1)
            decoded[name] = _spread(u, places, like=params[name])
        return withheld | decoded

    def _places(self, name: str, like: Tensor, round: int) -> Tensor:
        """The places [k] in a flat tensor, in ascending order; the same for whoever knows its name and the round."""
        rng = seeds.generator(0, f"{self.name} of {name}", round)
        k = _count(self.fraction, like)
        places = np.sort(rng.choice(like.numel(), k, replace=False, shuffle=False))
        return torch.from_numpy(places).to(like.device)


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
    DTYPES: ClassVar[dict[int, torch.dtype]] = {8: torch.int8, 16: torch.int16}

    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        if self.bits == 32:
            return update, state
        encoded: Tree = {}
        for name, u in update.items():
            if not u.is_floating_point() or not u.numel():
                encoded[name] = u
                continue
            q, scale = self._quantize(u)
            encoded[name] = q.to(self.DTYPES[self.bits])
            encoded[name + self.SCALE] = scale
        return encoded, state

    def _quantize(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """q, of the shape of u and not yet of its data type, and the scale s, []."""
        most = 2 ** (self.bits - 1) - 1
        norm = u.abs().amax() if self.norm == "max" else torch.linalg.vector_norm(u)
        scale = norm / most
        q = u / torch.where(scale > 0, scale, 1.0)
        if not self.stochastic:
            return q.round(), scale
        # 32767 + 0.9999 is 32768 in float32, which 16 bits take for -32768
        return (q + torch.rand_like(q)).floor().clamp(-most, most), scale

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        decoded: Tree = {}
        for name, q in update.items():
            if name.endswith(self.SCALE):
                continue
            scale = update.get(name + self.SCALE)
            if scale is None:
                decoded[name] = q
            else:
                one_per_client = scale.reshape(-1, *[1] * (q.dim() - 1))
                decoded[name] = q * one_per_client
        return decoded


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
        half: torch.dtype = getattr(torch, self.format)
        most = torch.finfo(half).max

        def in_half(u: Tensor) -> Tensor:
            return u.clamp(-most, most).to(half) if u.is_floating_point() else u

        return tree.map(in_half, update), state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        whole = tree.dtype(params)
        return tree.map(lambda u: u.to(whole) if u.is_floating_point() else u, update)


@part
class PowerSGD(Sparsifier):
    """Each matrix M [n, m] is sent as P [n, r] and Q [m, r] with M ~ P Q^T, r = `components` (PowerSGD, Vogels et al. 2019).

    One power iteration a round, from the Q of the round before: P = orthogonalized M Q, Q = M^T P. Convolutions are matrices of
    their output channels; vectors, and matrices that would not become smaller, are sent whole. The paper adds up P and Q over
    the clients, in two exchanges; here each client makes its own, in one, so the rank of their mean may be K r. Columns within
    rounding of those before them are 0, and start anew.
    """

    name = "powersgd"
    components: PositiveInt = 2
    error_feedback: bool = True

    LEFT = ":left"
    RIGHT = ":right"
    START = ":start"

    def client_init(self, params: Tree) -> Tree:
        generator = torch.Generator().manual_seed(0)
        starts: Tree = {}
        for name, w in params.items():
            if self._becomes_smaller(w):
                columns = w[0].numel()
                starts[name + self.START] = torch.randn(
                    columns, self.components, generator=generator, dtype=w.dtype
                )
        return super().client_init(params) | starts

    def _becomes_smaller(self, w: Tensor) -> bool:
        if w.dim() < 2:
            return False
        return self.components * (len(w) + w[0].numel()) < w.numel()

    def compress(self, client: ClientView, update: Tree, state: Tree) -> tuple[Tree, Tree]:
        encoded: Tree = {}
        for name, u in update.items():
            if name + self.START not in state:
                encoded[name] = u
                continue
            matrix = u.flatten(1)
            start = state[name + self.START]
            left = _orthogonal(matrix @ start)
            right = matrix.T @ left
            encoded[name + self.LEFT] = left
            encoded[name + self.RIGHT] = right

            # columns within rounding of 0 would stay 0 for ever: they go on from the old start
            lengths = torch.linalg.vector_norm(right, dim=0)
            next_start = torch.where(lengths > ROUNDING * lengths.amax(), right, start)
            state = state | {name + self.START: next_start}
        return encoded, state

    def decode(self, update: Tree, params: Tree, round: int) -> Tree:
        decoded: Tree = {}
        for key, t in update.items():
            if key.endswith(self.LEFT):
                name = key.removesuffix(self.LEFT)
                right = update[name + self.RIGHT]
                decoded[name] = (t @ right.mT).reshape(len(t), *params[name].shape)
            elif not key.endswith(self.RIGHT):
                decoded[key] = t
        return decoded


ROUNDING = 1e-5
"""Columns shorter than this share of a length are rounding noise of numbers of that size."""


def _count(fraction: float, u: Tensor) -> int:
    """The number k of entries to send."""
    return math.ceil(fraction * u.numel() - 1e-9)  # 0.1 * 30 is a little more than 3


def _spread(values: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Tensors like `like` with the values [K, k] at these places [K, k], and 0 elsewhere."""
    # whatever places a client sends, the round goes on
    places = places.long().clamp(0, like.numel() - 1)
    zeros = values.new_zeros(len(values), like.numel())
    return zeros.scatter(1, places, values).reshape(-1, *like.shape)


def _orthogonal(matrix: Tensor) -> Tensor:
    """The columns of a matrix [n, r] made orthonormal one after the other; 0 for one within rounding of those before it."""
    columns: list[Tensor] = []
    for column in matrix.unbind(1):
        rest = column
        for before in columns:
            rest = rest - (before @ rest) * before
        length = torch.linalg.vector_norm(rest)
        is_new = length > ROUNDING * torch.linalg.vector_norm(column)
        columns.append(torch.where(is_new, rest / length.clamp_min(1e-30), 0.0))
    return torch.stack(columns, 1)
