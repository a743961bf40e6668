"""Compression of the update before it is sent. The bytes that `unalike` reports are those of the encoded tensors."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unalike.core import tree
from unalike.core.types import Tree
from unalike.core.views import ClientView
from unalike.methods.part import part
from unalike.methods.roles import Upload


@part
class TopK(Upload):
    """Of each tensor, the k = ceil(fraction * size) entries of largest magnitude are sent, with their places (Stich et al. 2018).

    `error_feedback`: what was not sent, e <- (update + e) - sent, stays on the client and joins its next update; the client
    state then holds one model. fraction = 1 sends everything as it is. An entry costs its own bytes and 4 for its
    place, so fractions above 1/2 cost more than the whole in float32.
    """

    published: ClassVar[bool] = True
    name = "topk"
    fraction: float = Field(default=0.1, gt=0, le=1)
    error_feedback: bool = False
    rank: ClassVar[int] = Upload.SPARSIFY

    PLACES = ":places"

    def client_init(self, params: Tree) -> Tree:
        return tree.zeros(params) if self.error_feedback else {}

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        if self.error_feedback:
            update = {n: u + client.state[n] if n in client.state else u for n, u in update.items()}
        sent: Tree = {}
        rest: Tree = {}
        for name, u in update.items():
            k, flat = self._count(u), u.flatten()
            if k == u.numel():
                sent[name] = u
                rest |= {name: torch.zeros_like(u)} if name in client.state else {}
                continue
            places = flat.abs().topk(k).indices.sort().values
            sent[name], sent[name + self.PLACES] = flat[places], places.int()
            rest[name] = flat.index_fill(0, places, 0.0).reshape(u.shape)
        return sent, client.state | rest if self.error_feedback else client.state

    def decode(self, update: Tree, params: Tree) -> Tree:
        values = {n: u for n, u in update.items() if not n.endswith(self.PLACES)}
        return {n: self._spread(u, update.get(n + self.PLACES), params.get(n)) for n, u in values.items()}

    def _count(self, u: Tensor) -> int:
        return math.ceil(self.fraction * u.numel() - 1e-9)  # 0.1 * 30 is a little more than 3

    def _spread(self, values: Tensor, places: Tensor | None, like: Tensor | None) -> Tensor:
        if places is None or like is None:
            return values
        places = places.long().clamp(0, like.numel() - 1)  # whatever a client sends, the round goes on
        flat = values.new_zeros(len(values), like.numel()).scatter(1, places, values)
        return flat.reshape(-1, *like.shape)


@part
class Quantize(Upload):
    """Each tensor is sent as integers of `bits` bits and a scale: u ~ s q, s = max |u| / (2^(bits-1) - 1), q = round(u / s).

    `stochastic` rounds up with the probability of the remainder, q = floor(u / s + U[0, 1)), which is right on average (QSGD,
    Alistarh et al. 2017, and FedPAQ, Reisizadeh et al. 2020, with the largest entry in the place of their norm). bits = 32
    sends the numbers as they are.
    """

    published: ClassVar[bool] = True

    bits: Literal[8, 16, 32] = 8
    stochastic: bool = False
    rank: ClassVar[int] = Upload.QUANTIZE

    SCALE = ":scale"

    def encode(self, client: ClientView, update: Tree) -> tuple[Tree, Tree]:
        if self.bits == 32:
            return update, client.state
        sent: Tree = {}
        for name, u in update.items():
            if not u.is_floating_point() or not u.numel():
                sent[name] = u
                continue
            most = 2 ** (self.bits - 1) - 1
            scale = u.abs().amax() / most
            q = u / torch.where(scale > 0, scale, 1.0)
            # 32767 + 0.9999 is 32768 in float32, which 16 bits take for -32768
            q = (q + torch.rand_like(q)).floor().clamp(-most, most) if self.stochastic else q.round()
            sent[name], sent[name + self.SCALE] = q.to({8: torch.int8, 16: torch.int16}[self.bits]), scale
        return sent, client.state

    def decode(self, update: Tree, params: Tree) -> Tree:
        values = {n: t for n, t in update.items() if not n.endswith(self.SCALE)}
        return {n: self._scaled(t, update.get(n + self.SCALE)) for n, t in values.items()}

    def _scaled(self, q: Tensor, scale: Tensor | None) -> Tensor:
        return q if scale is None else q * scale.reshape(-1, *[1] * (q.dim() - 1))
