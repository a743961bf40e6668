"""A site: its data, its state, and its replies to the coordinator.

Imports `secure_aggregation/` and the floors below it. Start reading at `site_worker.py`.
"""
