"""`unalike federation up`: starts Flower's SuperLink and the gateway, and runs the rounds."""

from __future__ import annotations

from collections.abc import Callable

from unalike._utils.errors import UnalikeError
from unalike._utils.system.supervisor import Supervisor
from unalike.federation.coordinator.federation_folder import FederationFolder
from unalike.federation.coordinator.run_rounds import Log, is_over, last_page, run_rounds
from unalike.federation.flower.flower_processes import check_port, superlink
from unalike.runtime.run_recorder import Run

EXPIRY_WARNING = 60
"""Days before the server's certificate expires from which on `up` warns."""


def coordinate(
    folder: FederationFolder,
    log: Log,
    *,
    wait: bool = False,
    port: int | None = None,
    beside: Callable[[Supervisor], None] = lambda supervisor: None,
    again: str | None = None,
) -> Run | None:
    """Start the federation, run its rounds and end all processes. None if it was stopped before the end, or had nothing to do.

    `wait`: begin when the operator says `unalike federation run`. `beside` starts further child processes, such as sites on this
    machine. `again` is the command that continues the run, by default `unalike federation up` with the folder.
    """
    federation, network = folder.federation, folder.network
    host, port = network.listen, port or network.port
    if is_over(folder, federation):
        log(f"nothing to do: all rounds are in {folder.run}, report {last_page(folder, federation)}")
        return None
    with folder.held():
        check_port(host, port)
        _check_certificate(folder, log)
        with (
            Supervisor(folder.logs) as supervisor,
            superlink(folder.path, supervisor, host, port, folder.nodes, federation.message_bytes) as transport,
        ):
            log(
                f"{federation.name} is up at {host}:{port}; {len(folder.nodes)} sites are enrolled, logs in {folder.logs}"
            )
            beside(supervisor)
            return run_rounds(folder, transport, log, wait=wait, check=supervisor.check, again=again)


def _check_certificate(folder: FederationFolder, log: Log) -> None:
    left, renew = folder.days_left, f"`unalike federation renew {folder.path}` makes a new one, sites need nothing"
    if fault := folder.certificate_fault:
        raise UnalikeError(f"the server's certificate {fault}, no site would connect; {renew}")
    if left < EXPIRY_WARNING:
        log(f"the server's certificate expires in {left:.0f} days; {renew}")
