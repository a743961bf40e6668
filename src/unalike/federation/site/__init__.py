"""A site: its data, its state, and its replies to the coordinator.

Imports `protocol/`, `security/`, `operations/` and `flower/`, never `coordinator/`. Start reading at `site_worker.py`.
"""
