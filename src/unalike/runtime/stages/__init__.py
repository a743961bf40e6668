"""The stages of a run in progress: their state, the groups of clients that share a model, evaluation, and the backends.

A backend (`backend.py`) exchanges broadcasts and updates with clients; `local_backend.py` is that of one process. Start reading at
`stage_state.py`.
"""
