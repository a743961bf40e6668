"""`unalike federation renew`: renew certificates and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "renew"


def command(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
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
    from unalike.federation import require_federation

    require_federation()
    from unalike.federation.coordinator.federation_folder import FederationFolder

    found = FederationFolder(folder)
    with found.held():
        found.renew(host)
        print(f"the server's certificate is valid for {found.days_left:.0f} days")
        for name in site:
            print(f"hand over to {name} alone: {found.enrol_anew(name)}")
    print(f"then `unalike federation up {folder}`")
