"""`unalike federation status`, `run`, `pause`, `resume`, `stop`: commands to a coordinator; `rollback` and `audit` without one."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from unalike._utils.errors import UnalikeError
from unalike.cli.flags import AsJson
from unalike.core.options import MAX_SAMPLES

Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]
HELP = {
    "pause": """Finish the current round and start no other.

    `unalike federation resume` continues the run.""",
    "resume": """Continue after a pause.

    The pause was requested, or too few sites were connected.""",
}
STOP_SECONDS = 60.0
"""Maximum seconds that `stop` waits for the coordinator to end."""


def command_of(name: str) -> Callable[[Path], None]:
    """The command that sends `name` to the coordinator of a folder and prints the coordinator's state."""

    def command(folder: Folder) -> None:
        from unalike.federation.coordinator.operator_commands import command as send

        print(send(folder / "control", name)["state"])

    command.__doc__ = f"{HELP[name]}\n\n    \b\n    unalike federation {name} hospitals\n    "
    return command


def stop(folder: Folder) -> None:
    """Stop the coordinator, and wait until it has ended. Finished rounds are kept.

    `unalike federation up` continues from there.

    \b
    unalike federation stop hospitals
    """
    from unalike._utils.system.locks import is_locked
    from unalike.federation.coordinator.operator_commands import command as send

    send(folder / "control", "stop")
    deadline = time.monotonic() + STOP_SECONDS
    while is_locked(folder):
        if time.monotonic() > deadline:
            raise UnalikeError(
                f"the federation in {folder} was asked to stop, and has not ended within {STOP_SECONDS:.0f} s; it ends when its "
                f"work at hand is done: look at `unalike federation status {folder}`"
            )
        time.sleep(0.1)
    print("stopped")


def status(folder: Folder, as_json: AsJson = False) -> None:
    """Print a federation's state, round and sites.

    \b
    unalike federation status hospitals
    unalike federation status hospitals --json
    """
    from unalike.cli.terminal_tables import sentences, tables
    from unalike.federation.coordinator.federation_folder import FederationFolder
    from unalike.federation.coordinator.operator_commands import NotUp, Starting
    from unalike.federation.coordinator.operator_commands import command as send

    try:
        state = send(folder / "control", "status")
    except (NotUp, Starting) as error:
        if as_json:
            raise
        # of a coordinator that is not up, the folder says how far the run is
        if isinstance(error, Starting):
            return print(error)
        return print(FederationFolder(folder).progress)
    if as_json:
        return print(json.dumps(state, indent=1))
    why = f" ({state['why']})" if state["why"] else ""
    sentences([f"{state['state']}{why}, {state['round']} of {state['rounds']} rounds done"])
    columns = ("site", "connected", "in this run", "last answer", "late", "most samples")
    rows = [_row(site) for site in state["sites"]]
    tables(columns, rows, words=4)


def _row(site: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a site: it has departed if it takes part and is not connected."""
    if site["connected"]:
        connected = "yes"
    elif site["revoked"]:
        connected = "revoked"
    else:
        connected = "departed" if site["in_run"] else "no"
    last_answer = ""
    if site["last_answer"]:
        when = datetime.fromtimestamp(site["last_answer"]).astimezone()
        last_answer = f"{when:%Y-%m-%d %H:%M:%S%z}"
    # None while no run has begun
    in_run = {True: "yes", False: "no"}.get(site["in_run"], "")
    samples = "not set" if site["samples"] == MAX_SAMPLES else str(site["samples"])
    return (
        site["name"],
        connected,
        in_run,
        last_answer,
        str(site["late"]),
        samples,
    )


def run(
    folder: Folder,
    method: Annotated[
        list[str], typer.Option(help="Agreed method to run; repeat for several.")
    ] = [],  # noqa: B006
    seeds: Annotated[
        int, typer.Option(help="Number of seeds of each method, from the first on.", min=1)
    ] = 1,
    again: Annotated[
        bool, typer.Option("--again", help="Also where there is a run, for new samples.")
    ] = False,
) -> None:
    """Add runs to the queue of a federation; start the rounds of a waiting one.

    `unalike federation up` goes through the queue; comparison.html in the folder compares the finished runs.

    \b
    unalike federation run hospitals                                             # of `up --wait`: begin
    unalike federation run hospitals --method fedavg --method scaffold --seeds 3
    unalike federation run hospitals --again                                     # the first method once more
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder
    from unalike.federation.coordinator.operator_commands import NotUp
    from unalike.federation.coordinator.operator_commands import command as send
    from unalike.federation.coordinator.run_queue import add_runs

    home = FederationFolder(folder)
    # no run is added to a federation that is up and cannot answer
    with suppress(NotUp):
        send(home.socket, "status")
    new_runs: list[str] = []
    if method or again or seeds > 1:
        new_runs = add_runs(home.path, home.federation, method, seeds, again)
    for name in new_runs:
        print(f"added {name}")
    if home.socket.exists() or not new_runs:
        print(send(home.socket, "run")["state"])
    else:
        print(f"then `unalike federation up {folder}`")


def rollback(
    folder: Folder,
    to: Annotated[int, typer.Option(help="Round whose models the run goes on from.")],
) -> None:
    """Go back to the models of an earlier round.

    Every tenth round is kept unless federation.toml has another `keep_every`. Sites begin without the states that a method keeps
    at clients.

    \b
    unalike federation stop hospitals
    unalike federation rollback hospitals --to 40
    unalike federation up hospitals
    """
    from unalike.federation.coordinator.federation_folder import FederationFolder

    home = FederationFolder(folder)
    with home.held():
        home.roll_back(to)
    print(f"the run is at round {to}; then `unalike federation up {folder}`")


def audit(
    folder: Annotated[Path, typer.Argument(help="Folder of the federation, or of a site.")],
    as_json: AsJson = False,
) -> None:
    """Check and print what was asked, when, and what left.

    At the coordinator: starts with versions, commands with the user, refusals, keys. At a site: every request, and its answer.

    \b
    unalike federation audit hospitals
    unalike federation audit north --json

    Each entry holds the digest of the one before: an entry that was changed, removed or added later is an error.
    """
    from unalike._utils.journal import entries
    from unalike._utils.printable import one_word
    from unalike.federation.coordinator.federation_folder import AUDIT_FILE
    from unalike.federation.site.site_folder import JOURNAL, state_folder

    possible = (folder / AUDIT_FILE, state_folder(folder) / JOURNAL)
    files = [file for file in possible if file.exists()]
    if not files:
        raise UnalikeError(
            f"found no {AUDIT_FILE} or {JOURNAL} in {folder}; expected the folder of a federation or of a site"
        )
    for entry in entries(files[0]):
        if as_json:
            print(json.dumps(entry))
            continue
        when = datetime.fromtimestamp(entry.pop("time", 0)).isoformat(" ", "seconds")
        event = entry.pop("event")
        # the digest has been checked
        del entry["before"]
        # a text of another machine must neither act on the terminal nor look like an entry or a value of its own
        details = [f"{one_word(name)}={one_word(value)}" for name, value in entry.items()]
        print(when, one_word(event), *details)
