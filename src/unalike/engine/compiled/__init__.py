"""Compiled loops (numba): SGD for stacked clients with a chain of layers on a CPU, one call for all steps of all clients.

`compiled_training.obstacle` says why a method, a model or samples cannot be trained here; `train` and `finetune` beside it do it.
`layout` places the parameters in memory (with a drawing); for convolutions, `convolution_table` places images. The loops
themselves are in `unalike.loops`: `kernels` trains, `layer_loops` holds the loops over the samples of a batch, `gradient_steps`
those over weights whose gradient is known; `convolution_batch` and `convolution_loops` do the same for images. May import what
`engine` may. Start reading at `compiled_training.train`.

One chunk of K clients, each with a row of P parameters, is cut into pieces; every thread takes the next piece until none is left:

    start [1 or K, P]  ->  workspace of a thread                                    ->  trained [K, P], one row a client
                           weights | momenta | pull | activations | their gradients     or [S, P], one weighted sum a piece
                           (all steps of a client, then the next client)
"""
