"""Executors: how the clients of a round are trained in this process or in several.

`loop` trains one client after another, `batched` stacked clients (by `torch.vmap`, or for chains of layers in the loops of
`compiled/`), `multiprocess/` shares clients out among processes; `auto` chooses. Each calls `client_update.train`, or
computes the same. May import `training` and the folders below it. Start reading at `base.py`, then `loop.py`.
"""
