"""Compiled loops (numba) of steps whose gradient is known: it lies in memory as the weights do, and becomes 0.

`kernels` calls them.
"""

from unalike.loops.convolution_batch import weight_of
from unalike.loops.convolution_loops import (
    CHANNELS,
    FILTER,
    FILTERS,
    LANED,
    LEARNS,
    OFFSET,
    OFFSET_LEARNS,
    SIDE,
    STRIP,
)
from unalike.loops.layer_loops import (
    BIAS,
    BIAS_MOVES,
    COLUMNS,
    EVEN,
    HALF,
    MOVES,
    OUT,
    WEIGHT,
    ZERO,
    inline,
    move,
    up,
)
from unalike.loops.simd import LANES, fill, load, matrix, store


@inline
def step_layers(layers, weights, momenta, pull, pulled, gradients, decays, solver):
    """One step of each linear layer that is trained."""
    for i in range(len(layers)):
        layer = layers[i]
        if layer[MOVES]:
            at, rows, columns = layer[WEIGHT], layer[EVEN], layer[COLUMNS]
            step_matrix(
                at, rows, columns, weights, momenta, pull, pulled, gradients, decays[i, 0], solver
            )
        if layer[BIAS_MOVES]:
            at, columns = layer[BIAS], up(layer[OUT], LANES)
            step_matrix(
                at, 1, columns, weights, momenta, pull, pulled, gradients, decays[i, 1], solver
            )


@inline
def step_convolutions(convolutions, weights, momenta, pull, pulled, gradients, decays, solver):
    """One step of each convolution that is trained."""
    clear_unused(convolutions, gradients)
    for i in range(len(convolutions)):
        layer = convolutions[i]
        if layer[LEARNS]:
            at, rows, columns = layer[FILTER], layer[FILTERS] * layer[SIDE], layer[STRIP]
            step_matrix(
                at, rows, columns, weights, momenta, pull, pulled, gradients, decays[i, 0], solver
            )
        if layer[OFFSET_LEARNS]:
            at, columns = layer[OFFSET], layer[LANED]
            step_matrix(
                at, 1, columns, weights, momenta, pull, pulled, gradients, decays[i, 1], solver
            )


@inline
def step_matrix(at, rows, columns, weights, momenta, pull, pulled, gradients, decay, solver):
    """One step of SGD, as in `kernels.Step`, of the matrix that begins at `at`."""
    lr, carry, momentum, nesterov = solver
    g, w = matrix(gradients, at, rows, columns), matrix(weights, at, rows, columns)
    m, p = matrix(momenta, at, rows, columns), matrix(pull, at, rows, columns)
    for row in range(rows):
        for i in range(0, columns, LANES):
            own = load(g, row, i) + load(p, row, i) if pulled else load(g, row, i)
            move(w, m, row, i, own, lr, carry, momentum, decay, nesterov)
            store(g, row, i, fill(ZERO))


@inline
def clear_unused(convolutions, gradients):
    """Set to 0 what `pass_back` added for weights that are not trained, or in the padding beside strips."""
    for i in range(len(convolutions)):
        layer = convolutions[i]
        g = weight_of(layer, gradients)
        for row in range(g.shape[0]):
            for c in range(layer[SIDE] * layer[CHANNELS] if layer[LEARNS] else 0, g.shape[1]):
                g[row, c] = ZERO
        if not layer[OFFSET_LEARNS]:
            gradients[layer[OFFSET] : layer[OFFSET] + layer[LANED]] = ZERO


@inline
def inner_step(convolutions, weights, gradients, anchor, rate, strength):
    """theta <- theta - rate (g + strength (theta - v)), from the weights v before the step."""
    clear_unused(convolutions, gradients)
    for i in range(len(anchor)):
        weights[i] -= rate * (gradients[i] + strength * (weights[i] - anchor[i]))
        gradients[i] = ZERO


@inline
def return_to(anchor, weights, gradients, strength):
    """theta <- v; g <- g + strength (v - theta). Returns strength / 2 ||v - theta||^2."""
    total = ZERO
    for i in range(len(anchor)):
        drift = anchor[i] - weights[i]
        total += drift * drift
        gradients[i] += strength * drift
        weights[i] = anchor[i]
    return HALF * strength * total
