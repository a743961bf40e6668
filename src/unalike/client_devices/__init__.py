"""Simulated devices of the clients: how fast they compute and send, when they are there, and the clock that follows from it.

It imports `metrics` and what is below it. Start with `device_model.py`; `traits.py` has the properties that users combine, and
`simulated_clock.py` says whose updates of a round arrive, and when.
"""
