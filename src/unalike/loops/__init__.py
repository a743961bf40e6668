"""Compiled loops (numba), and nothing else: a reader who wants to know what a round does may stay out of this folder.

`crew.py` loads a module of loops, or says once why numba cannot be used, and runs loops on all threads of a run. `simd.py` has
the vector instructions that the others share. `column_loops.py` adds up stacked updates, `shuffle_loops.py` draws batches;
`kernels.py`, `layer_loops.py`, `convolution_batch.py`, `convolution_loops.py` and `gradient_steps.py` train chains of layers for
`engine/compiled`. Imports `_utils`. Start reading at `kernels.py`.
"""
