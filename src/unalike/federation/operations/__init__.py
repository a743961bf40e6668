"""Operation of a federation: the commands `up` and `join`, which start processes, and a federation on one machine.

Imports everything in `federation/`. Start reading at `run_coordinator.py`.
"""
