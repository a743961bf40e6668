"""`unalike federation renew`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "renew"


def command(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
    site: Annotated[
        list[str], typer.Option(help="A site that gets new keys and a new bundle, too; again for another one.")
    ] = [],  # noqa: B006  (Typer copies it)
    host: Annotated[
        list[str], typer.Option(help="A further name or address of this machine, which the certificate is to name.")
    ] = [],  # noqa: B006
) -> None:
    """Renew the server's certificate, and the keys of named sites.

    The authority stays the same.

    \b
    unalike federation renew hospitals                          # the certificate expires, or server.key was seen by others
    unalike federation renew hospitals --host new.example.org   # this machine has another name now
    unalike federation renew hospitals --site north             # north lost its bundle, or is to come back after `revoke`

    Sites need nothing for a new certificate: they trust the authority. A site that gets a new bundle joins with it and with its
    old folder, and continues with its memory; the old bundle is worth nothing from then on. The federation must not be up: stop it,
    renew, bring it up, and it goes on where it was.
    """
    from unalike.federation.operations.extras import require_extra

    require_extra()
    from unalike.federation.operations.federation_folder import FederationFolder

    found = FederationFolder(folder)
    with found.held():
        found.renew(host)
        print(f"the server's certificate is valid for {found.days_left:.0f} days")
        for name in site:
            print(f"hand over to {name} alone: {found.enrol_anew(name)}")
    print(f"then `unalike federation up {folder}`")
