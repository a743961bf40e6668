"""The transport over Flower: a site's node, and the coordinator's processes.

Imports `coordinator/` and what is below. Start reading at `flower_processes.py`. Needs the extra `flower`.
"""
