"""The transport over Flower: a site's node, the coordinator's processes, and `coordinator_app:server_app` for Flower's runtime.

Imports `coordinator/` and what is below. Start reading at `flower_processes.py`. Needs the extra `flower`.
"""
