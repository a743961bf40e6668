"""A site: its data, its state, and its replies to the coordinator.

Imports `protocol/` and `security/`. Start reading at `site_worker.py`.
"""
