"""The ServerApp of unalike, unchanged; add Flower mods or a lifespan here. Sites are not ClientApps: they run `unalike join`."""

from flwr.clientapp import ClientApp

from unalike.federation.flower.coordinator_app import server_app as server

__all__ = ["client", "server"]

client = ClientApp()
"""Does nothing. Flower requires one."""
