"""`unalike federation audit`: read the audit log of a coordinator, or the journal of a site."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli.flags import AsJson


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of the federation, or of a site.")], as_json: AsJson = False
) -> None:
    """Check and print what was asked, when, and what left.

    At the coordinator: starts with versions, commands with the user, refusals, keys. At a site: every request, and its answer.

    \b
    unalike federation audit hospitals
    unalike federation audit north --json

    Each entry holds the digest of the one before: an entry that was changed, removed or added later is an error.
    """
    from unalike._utils.journal import entries
    from unalike.federation.coordinator.federation_folder import AUDIT
    from unalike.federation.site.site_folder import JOURNAL, state_folder

    files = [file for file in (folder / AUDIT, state_folder(folder) / JOURNAL) if file.exists()]
    if not files:
        raise UnalikeError(
            f"found no {AUDIT} or {JOURNAL} in {folder}; expected the folder of a federation or of a site"
        )
    for entry in entries(files[0]):
        if as_json:
            print(json.dumps(entry))
            continue
        when = datetime.fromtimestamp(entry.pop("time", 0)).isoformat(" ", "seconds")
        event, _ = entry.pop("event"), entry.pop("before")
        print(when, event, *(f"{name}={value}" for name, value in entry.items()))
