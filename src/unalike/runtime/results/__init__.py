"""Finished runs: their models, the round that counts, predictions, and the exported model. Start at `finished_run.py`."""
