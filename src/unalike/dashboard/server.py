"""The dashboard's web server: one page, its style and script, and a stream of states. All requests are GET."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from unalike._utils.system.ports import check_port
from unalike.dashboard.state import Followed, FollowedComparison

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
COOKIE = "unalike-dashboard"
POLL_SECONDS = 0.5
"""Seconds between two checks of the files."""
KEEPALIVE_SECONDS = 15.0
"""Seconds without news after which the stream sends a comment to keep the connection open."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
MEDIA_TYPES = {
    "page.html": "text/html",
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
}
"""The files of the page, with their types."""


Follows = Followed | FollowedComparison
"""A folder that the page follows."""


def followed_folder(path: Path) -> Follows:
    """The run, federation or comparison in a folder. Raises `UnalikeError` if there is none."""
    return FollowedComparison(path) if (path / "cells").is_dir() else Followed(path)


def app(followed: Follows, token: str | None, hosts: list[str]) -> Starlette:
    """The web application. With a token, every request needs the token or the cookie that it sets."""

    def allowed(request: Request) -> bool:
        return token is None or _same(request.cookies.get(COOKIE, ""), token)

    def closed() -> Response:
        return PlainTextResponse(
            "Open the address with its token, as `unalike dashboard` printed it.",
            401,
            headers=HEADERS,
        )

    async def page(request: Request) -> Response:
        candidate = request.query_params.get("token")
        # the token moves from the address into a cookie, so that it is in no history
        if token is not None and candidate is not None and _same(candidate, token):
            redirect = RedirectResponse("/", 303, headers=HEADERS)
            redirect.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return redirect
        return _file("page.html") if allowed(request) else closed()

    async def asset(request: Request) -> Response:
        return _file(request.url.path.lstrip("/")) if allowed(request) else closed()

    async def state(request: Request) -> Response:
        if not allowed(request):
            return closed()
        text = await asyncio.to_thread(_text, followed)
        return Response(text, media_type="application/json", headers=HEADERS)

    async def stream(request: Request) -> Response:
        if not allowed(request):
            return closed()
        return StreamingResponse(
            _states(followed, request), media_type="text/event-stream", headers=HEADERS
        )

    routes = [Route("/", page), Route("/state", state), Route("/stream", stream)]
    routes += [Route(f"/{name}", asset) for name in MEDIA_TYPES if name != "page.html"]
    # requests under other names of this machine may come from a foreign page
    trusted_hosts = Middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return Starlette(routes=routes, middleware=[trusted_hosts])


def serve(followed: Follows, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted. An address that other machines can reach needs a token; one is made unless given.

    Raises `UnalikeError` where this process cannot listen at the address.
    """
    import uvicorn

    check_port(host, port, "choose another --port or --host")

    is_local = host in LOOPBACK
    if not token and not is_local:
        token = secrets.token_urlsafe(24)
    hosts = list(dict.fromkeys([host, *LOOPBACK])) if is_local else [host]
    # a server at all addresses has names that nobody here knows
    if host in ("0.0.0.0", "::"):
        hosts = ["*"]
    # the brackets of an IPv6 address tell it from the port
    name = f"[{host}]" if ":" in host else host
    query = f"/?{urlencode({'token': token})}" if token else "/"
    print(f"dashboard: http://{name}:{port}{query}", flush=True)
    uvicorn.run(
        app(followed, token, hosts),
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )


async def _states(followed: Follows, request: Request) -> AsyncIterator[str]:
    """The events of the stream: the state whenever it changes, and a comment when it has not for long."""
    seen: Any = None
    silent_seconds = 0.0
    yield "retry: 1000\n\n"
    while not await request.is_disconnected():
        stamp = await asyncio.to_thread(lambda: followed.stamp)
        if stamp != seen:
            seen = stamp
            silent_seconds = 0.0
            state = await asyncio.to_thread(_text, followed)
            yield f"data: {state}\n\n"
        elif silent_seconds >= KEEPALIVE_SECONDS:
            silent_seconds = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)
        silent_seconds += POLL_SECONDS


def _same(candidate: str, token: str) -> bool:
    """Compare in constant time, as bytes, since `compare_digest` accepts only ASCII text."""
    return secrets.compare_digest(candidate.encode(), token.encode())


def _text(followed: Follows) -> str:
    return json.dumps(followed.state(), allow_nan=False, default=str)


def _file(name: str) -> Response:
    content = files("unalike.dashboard").joinpath(name).read_bytes()
    return Response(content, media_type=MEDIA_TYPES[name], headers=HEADERS)
