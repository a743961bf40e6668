"""Proxies of the environment (`HTTPS_PROXY`, `ALL_PROXY`, ...), which HTTP clients read by themselves."""

import os
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.request import getproxies, proxy_bypass

from unalike._utils.errors import UnalikeError


def connect_directly() -> None:
    """Take the proxies out of the environment of this process and its children, which connect within this machine alone."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]


def prepare_proxies_for(host: str) -> None:
    """Make the environment's proxies fit a process that connects to `host` alone.

    This machine, and hosts in `NO_PROXY`, are connected to directly. Raises `UnalikeError` for a SOCKS proxy without the package
    that it needs: the HTTP client would fail with an ImportError, also where it takes no proxy.
    """
    if _is_this_machine(host) or proxy_bypass(host):
        connect_directly()
        return
    for scheme, url in getproxies().items():
        if url.lower().startswith("socks") and find_spec("socksio") is None:
            raise UnalikeError(
                f"{scheme.upper()}_PROXY={url}: a SOCKS proxy needs the package socksio: pip install 'httpx[socks]'; "
                f"or name an HTTP proxy, or put {host} into NO_PROXY to connect directly"
            )


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
