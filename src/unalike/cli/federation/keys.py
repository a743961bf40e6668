"""`unalike federation renew` and `revoke`: certificates and keys."""

from __future__ import annotations

from typing import Annotated

import typer

from unalike.cli.federation.control import Folder


def renew(
    folder: Folder,
    site: Annotated[
        list[str], typer.Option(help="Site that gets new keys and a new bundle; repeat the flag for several.")
    ] = [],  # noqa: B006  (Typer copies it)
    host: Annotated[
        list[str],
        typer.Option(
            help="Additional name or address of this machine for the certificate; repeat the flag for several."
        ),
    ] = [],  # noqa: B006
) -> None:
    """Renew the server's certificate, and the keys of named sites.

    The authority stays the same.

    \b
    unalike federation renew hospitals                          # the certificate expires, or server.key has leaked
    unalike federation renew hospitals --host new.example.org   # this machine has a new name
    unalike federation renew hospitals --site north             # north lost its bundle, or is admitted again after `revoke`

    A new certificate needs no change on sites, because they trust the authority. A site with a new bundle joins with it and its
    old folder, and continues with its state; the old bundle is no longer accepted. The federation must not be running: stop it,
    renew, start it again, and it continues where it stopped.
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder

    home = FederationFolder(folder)
    with home.held():
        home.renew(host)
        print(f"the server's certificate is valid for {home.days_left:.0f} days")
        for name in site:
            print(f"hand over to {name} alone: {home.enrol_anew(name)}")
    print(f"then `unalike federation up {folder}`")


def revoke(folder: Folder, sites: Annotated[list[str], typer.Argument(help="Sites to exclude.")]) -> None:
    """Revoke sites: their keys are no longer accepted.

    From the next `unalike federation up` on, they take no part in rounds.

    \b
    unalike federation stop hospitals
    unalike federation revoke hospitals north
    unalike federation up hospitals

    Earlier updates of the site stay in the model. `unalike federation renew hospitals --site north` admits it again, with new keys.
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder

    home = FederationFolder(folder)
    with home.held():
        for name in sites:
            home.revoke(name)
    left = [site.name for site in home.federation.sites if not site.revoked]
    print(f"left: {', '.join(left) or 'no site'}; then `unalike federation up {folder}`")
