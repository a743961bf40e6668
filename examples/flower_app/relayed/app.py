"""Both apps as they come; add Flower's mods or a lifespan of your own here."""

from unalike.federation.flower import client_app as client
from unalike.federation.flower import server_app as server

__all__ = ["client", "server"]
