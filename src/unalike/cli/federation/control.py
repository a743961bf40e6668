"""`unalike federation status`, `run`, `pause`, `resume`, `stop`: commands to a coordinator that is running."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from unalike.cli.flags import AsJson

Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]
HELP = {
    "run": """Start the rounds of a waiting federation.

    The federation was started with `unalike federation up --wait`.""",
    "pause": """Finish the current round and start no other.

    `unalike federation resume` continues the run.""",
    "resume": """Continue after a pause.

    The pause was requested, or too few sites were connected.""",
    "stop": """Stop the coordinator. Finished rounds are kept.

    `unalike federation up` continues from there.""",
}
"""Name of each command -> its help text."""


def command_of(name: str) -> Callable[[Path], None]:
    """The command that sends `name` to the coordinator of a folder and prints the coordinator's state."""

    def command(folder: Folder) -> None:
        from unalike.federation.coordinator.operator_commands import command as send

        print(send(folder / "control", name)["state"])

    command.__doc__ = f"{HELP[name]}\n\n    \b\n    unalike federation {name} hospitals\n    "
    return command


def status(folder: Folder, as_json: AsJson = False) -> None:
    """Print a federation's state, round and sites.

    \b
    unalike federation status hospitals
    unalike federation status hospitals --json
    """
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.federation.coordinator.operator_commands import command as send

    state = send(folder / "control", "status")
    if as_json:
        return print(json.dumps(state, indent=1))
    why = f" ({state['why']})" if state["why"] else ""
    sentences([f"{state['state']}{why}, {state['round']} of {state['rounds']} rounds done"])
    rows = [(site["name"], "yes" if site["connected"] else "no", str(site["samples"])) for site in state["sites"]]
    tables(("site", "connected", "most samples"), rows, words=3)
