from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("network")


@pytest.fixture(scope="module")
def echo_network(tmp_path_factory):
    pytest.importorskip("flwr")
    from echo_network import EchoNetwork

    made = EchoNetwork(tmp_path_factory.mktemp("echo_network"))
    yield made
    made.close()
