"""Sites that connect after a run has begun: whether they can join it."""

from unalike.federation.protocol.federation_file import Federation
from unalike.methods.method import Method
from unalike.methods.plan import plan
from unalike.runtime.setup.client_networks import given_networks


def why_sites_are_fixed(federation: Federation) -> str:
    """The reason why no site can join a run that has begun; empty where one can."""
    if federation.secure_aggregation:
        return "a sum of secure aggregation is over sites that were agreed on before"
    of_run = plan(federation.method)
    if not isinstance(of_run, Method):
        return f"{federation.method} has asked or divided the sites that it began with"
    if of_run.releases_once:
        return "the accounting of privacy knows of the sites that it began with alone"
    if given_networks(federation.model) is not None:
        return "the networks were given to the sites that it began with"
    return ""
