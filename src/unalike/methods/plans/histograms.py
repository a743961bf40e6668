"""Client queries that count: classes, and features along random directions. Whole numbers of samples are all that leaves.

A feature along a direction is the inner product of a sample with a random vector of length 1, which every client draws from the
same seed. Values are counted in ranges: first by order of magnitude, which needs no agreement, then in ranges that the server chose
from the counts of all clients.
"""

import hashlib
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from unalike._utils.seeds import generator
from unalike.core.inputs import one_tensor
from unalike.core.types import Batch, Tree
from unalike.methods.client_query import ClientQuery, QueryInputs, client_query

DIRECTIONS = 16
"""Number of random directions."""
BINS = 64
"""Number of ranges of one direction."""
MAGNITUDES = 512
"""Number of ranges by order of magnitude: each is 15 % wider than the one before."""
UNIT = 1e-6
"""Values below this count as 0."""
LARGEST = 1e9
"""Values above this count as this one."""
TOLERATED_DEVIATIONS = 10
"""How many standard deviations of their noise counts may differ from what they must be."""
WORDS = 4096
"""Number of random coordinates that the words of a text are counted in."""

Of = Literal["features", "labels"]


class Ranges(nn.Module):
    """The ranges in which clients count. They are sent as the buffers of a model, so no code is.

    Between `low` and `high` [R] of each direction; values beyond the ends count in the outermost ranges. Labels of a regression
    are cut into classes at `edges` [C - 1]; empty for classes.
    """

    low: Tensor
    high: Tensor
    edges: Tensor

    def __init__(self, low: Tensor, high: Tensor, edges: Tensor):
        super().__init__()
        self.register_buffer("low", low.double())
        self.register_buffer("high", high.double())
        self.register_buffer("edges", edges.double())

    def forward(self, x: Tensor) -> Tensor:
        """The values themselves."""
        return x


@client_query
class Magnitudes(ClientQuery):
    """`histograms` [R, 512]: samples by sign and order of magnitude of each feature, or of the label (R = 1)."""

    name: ClassVar[str] = "magnitudes"
    needs_model: ClassVar[bool] = False

    of: Of = "features"
    seed: NonNegativeInt = 0
    noise: NonNegativeFloat = 0.0

    def answer(self, inputs: QueryInputs) -> Tree:
        edges = magnitude_edges()[1:-1]
        counts = Tally(directions_of(self.of), classes=1, bins=MAGNITUDES)
        for b in batches_of_outcomes(inputs):
            places = torch.bucketize(values(b, self.of, self.seed), edges)
            counts.add(places, _one_class(b))
        return {"histograms": noisy(counts.total.squeeze(1), self.noise, inputs, repr(self))}

    def why_impossible(self, answer: Tree, samples: int) -> str:
        return why_no_counts(answer["histograms"], samples, self.noise)


@client_query
class Histograms(ClientQuery):
    """`histograms` [R, C, 64]: samples of each class by the ranges of each feature, or of the label (R = C = 1)."""

    name: ClassVar[str] = "histograms"

    of: Of = "features"
    classes: PositiveInt = 1
    seed: NonNegativeInt = 0
    noise: NonNegativeFloat = 0.0

    def answer(self, inputs: QueryInputs) -> Tree:
        low = inputs.buffers["low"].cpu()
        high = inputs.buffers["high"].cpu()
        edges = inputs.buffers["edges"].cpu()
        width = ((high - low) / BINS).clamp_min(torch.finfo(torch.float64).tiny)
        counts = Tally(directions_of(self.of), classes=self.classes, bins=BINS)
        for b in batches_of_outcomes(inputs):
            steps = (values(b, self.of, self.seed) - low) / width
            places = steps.floor().clamp(0, BINS - 1).long()
            classes = _one_class(b) if self.classes == 1 else classes_of(b.y, edges)
            counts.add(places, classes)
        return {"histograms": noisy(counts.total, self.noise, inputs, repr(self))}

    def why_impossible(self, answer: Tree, samples: int) -> str:
        return why_no_counts(answer["histograms"], samples, self.noise)


@client_query
class ClassCounts(ClientQuery):
    """`counts` [C], with noise `noisy_counts`: training samples of each class; labels of a regression are cut into classes."""

    name: ClassVar[str] = "class_counts"

    classes: PositiveInt = 2
    noise: NonNegativeFloat = 0.0

    def answer(self, inputs: QueryInputs) -> Tree:
        edges = inputs.buffers["edges"].cpu()
        counts = torch.zeros(self.classes, dtype=torch.int64)
        for b in batches_of_outcomes(inputs):
            counts = counts + torch.bincount(classes_of(b.y, edges), minlength=self.classes)
        # exact counts are checked to sum to the number of samples
        name = "noisy_counts" if self.noise else "counts"
        return {name: noisy(counts, self.noise, inputs, repr(self))}

    def why_impossible(self, answer: Tree, samples: int) -> str:
        [counts] = answer.values()
        return why_no_counts(counts[None], samples, self.noise)


def why_no_counts(counts: Tensor, samples: int, noise: float) -> str:
    """The reason why these [R, ...] are not the samples of a client, counted R times with this noise; empty if they may be."""
    # the sum of whole numbers may wrap around
    by_direction = counts.double().flatten(1)
    slack = TOLERATED_DEVIATIONS * noise
    smallest = float(by_direction.min())
    if smallest < -slack:
        return f"a count of {smallest:.4g}"
    slack_of_sum = slack * by_direction.shape[1] ** 0.5
    totals = by_direction.sum(1)
    farthest = (totals - samples).abs().argmax()
    if abs(float(totals[farthest]) - samples) > slack_of_sum:
        return f"counts that add up to {float(totals[farthest]):.6g}; expected {samples}"
    return ""


def batches_of_outcomes(inputs: QueryInputs) -> Iterator[Batch]:
    """The client's batches with one number for each label, [n] (`Task.outcome`)."""
    for batch in inputs.batches:
        yield batch._replace(y=inputs.task.outcome(batch.y))


class Tally:
    """Samples counted by direction, class and range: `total` [R, C, B]."""

    def __init__(self, directions: int, classes: int, bins: int):
        self.total = torch.zeros(directions, classes, bins, dtype=torch.int64)

    def add(self, places: Tensor, classes: Tensor) -> None:
        """Count the samples of a batch, in the ranges `places` [n, R] and of `classes` [n]."""
        directions, class_count, bins = self.total.shape
        first = torch.arange(directions) * class_count * bins
        cells = first + classes[:, None] * bins + places
        counts = torch.bincount(cells.flatten(), minlength=self.total.numel())
        self.total += counts.reshape(self.total.shape)


def magnitude_edges() -> Tensor:
    """The ends of the ranges by order of magnitude, [M + 1]: x = UNIT sinh(t) for t in equal steps."""
    most = float(np.arcsinh(LARGEST / UNIT))
    return UNIT * torch.linspace(-most, most, MAGNITUDES + 1, dtype=torch.float64).sinh()


def directions_of(of: Of) -> int:
    """The number of directions: labels have one."""
    return 1 if of == "labels" else DIRECTIONS


def values(batch: Batch, of: Of, seed: int) -> Tensor:
    """The labels [n, 1], or the features along the random directions [n, R], on the CPU in float64."""
    if of == "labels":
        return batch.y.double().reshape(-1, 1).cpu()
    x = one_tensor(batch.x, "a histogram of features").flatten(1).cpu()
    if x.is_floating_point():
        return x.double() @ _directions(x.shape[1], seed)
    # of a text: the mean over its words
    is_word = (x > 0).double()
    rows = _directions(WORDS, seed) * WORDS**0.5
    total = (rows[x % WORDS] * is_word[..., None]).sum(1)
    return total / is_word.sum(1, keepdim=True).clamp_min(1)


def classes_of(y: Tensor, edges: Tensor) -> Tensor:
    """The classes [n] of labels, on the CPU; labels that are numbers are cut at the edges."""
    if y.is_floating_point():
        return torch.bucketize(y.double().cpu(), edges, right=True)
    return y.long().cpu()


def noisy(counts: Tensor, scale: float, inputs: QueryInputs, question: str) -> Tensor:
    """Whole numbers of samples with rounded normal noise of standard deviation `scale`.

    The noise is a function of the client's secret and of the question (with its ranges), so that nobody else can compute it, and
    asking again gives the same numbers instead of further ones that could be averaged.
    """
    if not scale:
        return counts
    ranges = [inputs.buffers[n].cpu().numpy().tobytes() for n in sorted(inputs.buffers)]
    key = b"\0".join([inputs.secret, question.encode(), *ranges])
    stream = hashlib.shake_256(key).digest(8 * counts.numel())
    # 53 bits of each 8 bytes, as a number between 0 and 1 that is neither
    uniform = (np.frombuffer(stream, "<u8") >> 11).astype(np.float64) + 0.5
    normal = torch.special.ndtri(torch.from_numpy(uniform * 2.0**-53)).reshape(counts.shape)
    return counts + (scale * normal).round().long()


def _directions(width: int, seed: int) -> Tensor:
    """Random vectors of length 1 as columns, [width, R]."""
    normal = generator(seed, "diagnosed directions").standard_normal((width, DIRECTIONS))
    return torch.from_numpy(normal / np.linalg.norm(normal, axis=0))


def _one_class(batch: Batch) -> Tensor:
    return torch.zeros(len(batch.y), dtype=torch.int64)
