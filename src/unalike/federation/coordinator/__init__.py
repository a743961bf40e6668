"""The coordinator: its folder, its rounds by exchange of messages with the sites, and its control by an operator.

Imports `protocol/` and `security/`. Start reading at `coordinator.py` and `network_backend.py`.
"""
