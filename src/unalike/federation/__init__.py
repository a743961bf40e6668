"""The same method as a real federation: a coordinator, and sites that keep their data.

Imports `experiments`, `runtime` and below. Start reading at `coordinator/coordinator.py` and `site/site_worker.py`.
"""
