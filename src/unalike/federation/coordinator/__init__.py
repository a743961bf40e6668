"""The coordinator: its folder, its rounds by exchange of messages with the sites, and its control by an operator.

Imports `secure_aggregation/` and the floors below it. Start reading at `coordinator.py` and `network_backend.py`.
"""
