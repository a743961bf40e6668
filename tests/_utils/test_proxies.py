"""Proxies of the environment: taken, left aside, or refused with what is missing."""

from __future__ import annotations

import os

import pytest

from unalike._utils.errors import UnalikeError
from unalike._utils.system import proxies
from unalike._utils.system.proxies import connect_directly, prepare_proxies_for

SOCKS = "socks5://127.0.0.1:1080"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ALL_PROXY", SOCKS)
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example.org")


def proxies_left():
    return {name for name in os.environ if name.lower().endswith("_proxy")}


def test_process_that_connects_within_this_machine_has_no_proxy():
    connect_directly()
    assert proxies_left() == set()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "::1", "127.0.0.2", "inside.example.org"]
)
def test_this_machine_and_hosts_without_proxy_are_connected_to_directly(host):
    prepare_proxies_for(host)
    assert proxies_left() == set()


def test_socks_proxy_without_its_package_is_refused_with_the_mend(monkeypatch):
    monkeypatch.setattr(proxies, "find_spec", lambda name: None)
    with pytest.raises(
        UnalikeError, match=r"ALL_PROXY=socks5://.*pip install 'httpx\[socks\]'.*NO_PROXY"
    ):
        prepare_proxies_for("fed.example.org")


def test_other_proxies_stay(monkeypatch):
    monkeypatch.delenv("ALL_PROXY")
    prepare_proxies_for("fed.example.org")
    assert proxies_left() == {"https_proxy", "NO_PROXY"}
    assert os.environ["https_proxy"] == "http://proxy.example.org:3128"
