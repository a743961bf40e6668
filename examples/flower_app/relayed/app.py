"""The ServerApp and ClientApp of unalike, unchanged; add Flower mods or a lifespan here."""

from unalike.federation.flower import client_app as client
from unalike.federation.flower import server_app as server

__all__ = ["client", "server"]
