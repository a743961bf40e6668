"""What is used of Flower beside its published modules is in one file, and is there: the first tests for a new release of Flower."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import unalike
from unalike.federation.flower import internals

PUBLISHED = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
FILE = Path(internals.__file__)


def imported(file):
    """(module, name) of all imports from Flower."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            yield from ((node.module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (
                (alias.name, "") for alias in node.names if alias.name.split(".")[0] == "flwr"
            )


def test_unpublished_modules_are_imported_in_one_file():
    package = Path(unalike.__file__).parent
    others = {file: set(imported(file)) for file in package.rglob("*.py") if file != FILE}
    assert {module for found in others.values() for module, _ in found} <= PUBLISHED


@pytest.mark.parametrize(
    ("module", "name"), sorted(i for i in imported(FILE) if i[0] not in PUBLISHED)
)
def test_name_is_there(module, name):
    assert hasattr(import_module(module), name)


def test_program_of_superlink_is_there():
    state, program = [
        node
        for node in ast.walk(ast.parse(internals.SUPERLINK))
        if isinstance(node, ast.ImportFrom)
    ]
    [name] = program.names
    assert callable(getattr(import_module(program.module), name.name))
    # what it says of late heartbeats is read there
    [name] = state.names
    assert isinstance(import_module(f"{state.module}.{name.name}").HEARTBEAT_PATIENCE, int)


USED = {
    "FleetHttpClient": "ActivateNode DeactivateNode SendNodeHeartbeat PullMessages PushMessages PullObject PushObject "
    "ConfirmMessageReceived from_server_address close",
    "RuntimeHttpClient": "AcquireTask PullTaskInput PushTaskOutput PullMessages PushMessages PullObject PushObject "
    "ConfirmMessageReceived",
    "ControlHttpClient": "RegisterNode StartRun StopRun from_server_address",
    "HttpGrid": "get_nodes run set_run close _runtime_client",
    "HeartbeatSender": "start stop",
    "TaskIdentity": "task_id run_id node_id",
    "TaskType": "SERVER_APP",
    "SubStatus": "COMPLETED",
}


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner in USED for name in USED[owner].split()]
)
def test_attribute_is_there(owner, name):
    found = getattr(
        import_module(next(module for module, name in imported(FILE) if name == owner)), owner
    )
    assert (
        name in dir(found)
        or name in dir(type(found))
        or name in getattr(found, "__annotations__", {})
    )


FIELDS = {
    "ActivateNodeRequest": "public_key heartbeat_interval",
    "DeactivateNodeRequest": "node_id",
    "SendNodeHeartbeatRequest": "node heartbeat_interval",
    "PullMessagesRequest": "node",
    "PushMessagesRequest": "node messages_list message_object_trees",
    "PullObjectRequest": "node run_id object_id",
    "PushObjectRequest": "node run_id session_id object_id object_content",
    "ConfirmMessageReceivedRequest": "node run_id message_object_id",
    "PullAppMessagesRequest": "message_ids",
    "PushAppMessagesRequest": "messages_list message_object_trees",
    "AcquireTaskRequest": "supported_task_types",
    "PushTaskOutputRequest": "sub_status details",
    "RegisterNodeRequest": "public_key name",
    "StartRunRequest": "fab",
    "StopRunRequest": "run_id",
    "ObjectTree": "object_id children",
    "Node": "node_id",
    "NodeInfo": "node_id public_key status last_activated_at",
    "Fab": "hash_str content",
}


@pytest.mark.parametrize(
    ("message", "field"), [(m, field) for m in FIELDS for field in FIELDS[m].split()]
)
def test_field_is_there(message, field):
    assert field in getattr(internals, message).DESCRIPTOR.fields_by_name


def test_every_request_is_listed():
    assert {name for _, name in imported(FILE) if name.endswith("Request")} <= {
        *FIELDS,
        "PullTaskInputRequest",
    }
    assert set(re.findall(r"_client\.([A-Z]\w+)\(", FILE.read_text())) <= set(
        " ".join(USED.values()).split()
    )
