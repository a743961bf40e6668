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
POLL = 0.5
"""Seconds between two checks of the files."""
KEEPALIVE = 15.0
"""Seconds without news after which the stream sends a comment to keep the connection open."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
TYPES = {"page.html": "text/html", "dashboard.css": "text/css", "dashboard.js": "text/javascript"}


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
        given = request.query_params.get("token")
        if token is not None and given is not None and _same(given, token):
            entered = RedirectResponse("/", 303, headers=HEADERS)
            entered.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return entered
        return _file("page.html") if allowed(request) else closed()

    async def asset(request: Request) -> Response:
        return _file(request.url.path.lstrip("/")) if allowed(request) else closed()

    async def state(request: Request) -> Response:
        if not allowed(request):
            return closed()
        return Response(
            await asyncio.to_thread(_text, followed), media_type="application/json", headers=HEADERS
        )

    async def stream(request: Request) -> Response:
        if not allowed(request):
            return closed()
        return StreamingResponse(
            _states(followed, request), media_type="text/event-stream", headers=HEADERS
        )

    routes = [Route("/", page), Route("/state", state), Route("/stream", stream)]
    routes += [Route(f"/{name}", asset) for name in TYPES if name != "page.html"]
    return Starlette(
        routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
    )


def serve(followed: Follows, host: str, port: int, token: str | None) -> None:
    """Serve until interrupted. An address that other machines can reach needs a token; one is made unless given.

    Raises `UnalikeError` where this process cannot listen at the address.
    """
    import uvicorn

    check_port(host, port, "choose another --port or --host")

    token = token or (None if host in LOOPBACK else secrets.token_urlsafe(24))
    hosts = (
        ["*"]
        if host in ("0.0.0.0", "::")
        else [*dict.fromkeys([host, *(LOOPBACK if host in LOOPBACK else ())])]
    )
    query = f"/?{urlencode({'token': token})}" if token else "/"
    print(f"dashboard: http://{f'[{host}]' if ':' in host else host}:{port}{query}", flush=True)
    uvicorn.run(
        app(followed, token, hosts),
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )


async def _states(followed: Follows, request: Request) -> AsyncIterator[str]:
    seen: Any = None
    silent = 0.0
    yield "retry: 1000\n\n"
    while not await request.is_disconnected():
        stamp = await asyncio.to_thread(lambda: followed.stamp)
        if stamp != seen:
            seen, silent = stamp, 0.0
            yield f"data: {await asyncio.to_thread(_text, followed)}\n\n"
        elif silent >= KEEPALIVE:
            silent = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(POLL)
        silent += POLL


def _same(given: str, token: str) -> bool:
    """Compare in constant time, as bytes, since `compare_digest` accepts only ASCII text."""
    return secrets.compare_digest(given.encode(), token.encode())


def _text(followed: Follows) -> str:
    return json.dumps(followed.state(), allow_nan=False, default=str)


def _file(name: str) -> Response:
    return Response(
        files("unalike.dashboard").joinpath(name).read_bytes(),
        media_type=TYPES[name],
        headers=HEADERS,
    )
