"""A real federation: a coordinator and sites that keep their data, training with the same methods as a simulation.

`coordinator/` runs the rounds, `site/` answers its requests, `protocol/` defines the messages and the federation file, `security/`
keys and certificates, `flower/` the transport over Flower, `operations/` folders, processes and commands.
Imports `experiments` and everything below it. Start reading at `coordinator/coordinator.py` and `site/site_worker.py`.
"""
