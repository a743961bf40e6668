"""`unalike federation keys`, `renew` and `revoke`: certificates and keys."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unalike.cli.federation.control import Folder

SiteKey = Annotated[
    list[Path],
    typer.Option(help="File north.keys, by the site (`unalike federation keys`); repeat."),
]


def keys(folder: Annotated[Path, typer.Argument(help="The site's folder, such as north.")]) -> None:
    """Make a site's keys at the site, so that its bundle holds no secret.

    \b
    unalike federation keys north                                                  # at the site; send north.keys
    unalike federation init hospitals --sites north,south --site-key north.keys    # at the coordinator

    Compare the fingerprint by telephone, so that nobody can replace north.keys on its way.
    """
    from unalike._utils.tensor_files import write_bytes
    from unalike.federation.security.certificates import write_private
    from unalike.federation.security.site_keys import fingerprint, new_keys

    private, public = new_keys()
    for name, content in private.items():
        write_private(folder / name, content)
    public_file = folder.with_suffix(".keys")
    write_bytes(public_file, json.dumps(public, indent=1).encode())
    print(
        f"made {folder.resolve()}; send {public_file} to the coordinator. "
        f"Its fingerprint: {fingerprint(public)}"
    )


def site_keys(files: Sequence[Path]) -> dict[str, dict[str, str]]:
    """Site -> the public keys in its file; their fingerprints are printed."""
    from unalike.federation.security.site_keys import fingerprint, read_public

    keys_of_site = {file.stem: read_public(file) for file in files}
    for name, public in keys_of_site.items():
        print(f"fingerprint of {name}: {fingerprint(public)}")
    return keys_of_site


def renew(
    folder: Folder,
    site: Annotated[
        list[str],
        typer.Option(help="Site that gets new keys and a new bundle; repeat the flag for several."),
    ] = [],  # noqa: B006  (Typer copies it)
    host: Annotated[
        list[str],
        typer.Option(
            help="Additional name or address of this machine for the certificate; repeat the flag for several."
        ),
    ] = [],  # noqa: B006
    site_key: SiteKey = [],  # noqa: B006
) -> None:
    """Renew the server's certificate, and the keys of named sites.

    The authority stays the same.

    \b
    unalike federation renew hospitals                          # the certificate expires
    unalike federation renew hospitals --host new.example.org   # this machine has a new name
    unalike federation renew hospitals --site north             # north lost its bundle, or is admitted again after `revoke`
    unalike federation renew hospitals --site-key north.keys    # north has made new keys

    A new certificate needs no change on sites, because they trust the authority. A site with a new bundle joins with it and its
    old folder, and continues with its state; the old bundle is no longer accepted. The federation must not be running: stop it,
    renew, start it again, and it continues where it stopped.
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder

    home = FederationFolder(folder)
    new_keys = site_keys(site_key)
    with home.held():
        home.renew(host)
        print(f"the server's certificate is valid for {home.days_left:.0f} days")
        # each site once, also one that is named and has sent keys
        for name in dict.fromkeys([*site, *new_keys]):
            bundle = home.enrol_anew(name, new_keys.get(name))
            print(f"hand over to {name} alone: {bundle}")
    print(f"then `unalike federation up {folder}`")


def revoke(
    folder: Folder, sites: Annotated[list[str], typer.Argument(help="Sites to exclude.")]
) -> None:
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
    remaining = [site.name for site in home.federation.sites if not site.revoked]
    print(f"left: {', '.join(remaining) or 'no site'}; then `unalike federation up {folder}`")
