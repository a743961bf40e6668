"""Executors: where and how `training.client_update.train` runs for the clients of a round.

Imports `training` and below. Start reading at `base.py`, then `loop.py`.
"""
