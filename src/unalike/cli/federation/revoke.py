"""`unalike federation revoke`: revoke the keys of sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "revoke"


def command(
    folder: Annotated[Path, typer.Argument(help="The federation's folder.")],
    sites: Annotated[list[str], typer.Argument(help="Sites to exclude.")],
) -> None:
    """Revoke sites: their keys are no longer accepted.

    From the next `unalike federation up` on, they take no part in rounds.

    \b
    unalike federation stop hospitals
    unalike federation revoke hospitals north
    unalike federation up hospitals

    Earlier updates of the site stay in the model. `unalike federation renew hospitals --site north` admits it again, with new keys.
    """
    from unalike.federation import require_federation

    require_federation()
    from unalike.federation.coordinator.federation_folder import FederationFolder

    found = FederationFolder(folder)
    with found.held():
        for name in sites:
            found.revoke(name)
    left = [site.name for site in found.federation.sites if not site.revoked]
    print(f"left: {', '.join(left) or 'no site'}; then `unalike federation up {folder}`")
