"""A site's connection to a hostile server: no redirects, no compressed or endless answers, no malformed messages that end it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, ObjectTree

from unalike.federation.flower.internals import (
    FAILURES,
    MAX_ANSWER_BYTES,
    FleetConnection,
    check_answer,
)
from unalike.federation.security import certificates


@pytest.fixture
def connection():
    _, authority = certificates.authority("test")
    key = certificates.openssh(certificates.node_key())
    with FleetConnection("127.0.0.1:1", certificates.pem(authority), key) as opened:
        yield opened


def answering(connection, respond):
    """The connection, whose server answers by `respond`; the addresses that it was asked for."""
    asked = []

    def handle(request):
        asked.append(str(request.url))
        return respond(request)

    http = connection._client._client
    connection._client._client = httpx.Client(
        transport=httpx.MockTransport(handle),
        event_hooks=http.event_hooks,
        follow_redirects=http.follow_redirects,
        base_url=http.base_url,
    )
    return asked


def test_redirect_opens_no_connection_to_another_machine(connection):
    target = {"Location": "http://10.0.0.5/admin?reboot=yes", "content-length": "0"}
    asked = answering(connection, lambda request: httpx.Response(303, headers=target))
    with pytest.raises(FAILURES):
        connection.receive()
    assert len(asked) == 1 and "10.0.0.5" not in asked[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-length": "100", "content-encoding": "gzip"},
        {"content-length": str(MAX_ANSWER_BYTES + 1)},
        {},
        {"content-length": "-1"},
    ],
)
def test_answer_that_is_compressed_or_of_unknown_length_is_refused_before_it_is_read(headers):
    with pytest.raises(httpx.RemoteProtocolError, match="expected at most"):
        check_answer(httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"")))
    check_answer(httpx.Response(200, headers={"content-length": "100"}))


def test_message_that_cannot_be_decoded_is_a_failure_of_the_call(connection):
    body = PullMessagesResponse(
        messages_list=[Message()], message_object_trees=[ObjectTree()]
    ).SerializeToString()
    answering(connection, lambda request: httpx.Response(200, content=body))
    with pytest.raises(FAILURES):
        connection.receive()
