"""What stands before every page: a strange host is refused, changes need the token, and nothing foreign is loaded."""

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tacit.core.settings import reason
from tacit.errors import UserError

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)  # Plot writes styles into its drawings
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
TOKEN = "x-tacit-token"
MOST = 1_000_000  # bytes of a body
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """Checks every request before an application sees it."""

    def __init__(self, app: App, hosts: tuple[str, ...], token: str = "", private: tuple[str, ...] = ()) -> None:
        """`hosts` without a port; empty: any. With a token, what changes something or is private needs it."""
        self.app, self.hosts, self.token, self.private = app, hosts, token, private or ("\n",)

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        """Refuse with a sentence, or hand on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if not any(name == b"cache-control" for name, _ in message["headers"]):
                    more.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        if refused := self._refused(scope):
            status, sentence = refused
            body = json.dumps({"error": sentence}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await sent({"type": "http.response.start", "status": status, "headers": headers})
            await sent({"type": "http.response.body", "body": body})
            return
        await self.app(scope, receive, sent)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        heads = {name.lower(): value for name, value in scope["headers"]}
        host = heads.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self.hosts and name not in self.hosts:
            return 421, f"this server is not '{name[:80]}'; ask it by the address it was started with"
        length = heads.get(b"content-length", b"0")
        if b"transfer-encoding" in heads or not length.isdigit() or int(length) > MOST:
            return 413, f"a body has its length in its head and at most {MOST:,} bytes; send less at a time"
        changes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if self.token and (changes or scope["path"].startswith(self.private)):
            given = heads.get(TOKEN.encode(), b"")
            if not secrets.compare_digest(given, self.token.encode()):
                return 403, "this needs the token of the address that tacit studio printed; open that one"
        return None


def answer_errors(app: FastAPI) -> None:
    """One sentence for everything that goes wrong, with the status it deserves."""

    @app.exception_handler(UserError)
    async def _user(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": plain(str(error))}, status_of(error))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        if first["type"] == "json_invalid":
            wrong = str(first.get("ctx", {}).get("error", "it cannot be read"))
            return JSONResponse({"error": plain(f"the body is not JSON: {wrong[:1].lower() + wrong[1:]}")}, 400)
        if not where:
            said = "the body is invalid: it must be JSON such as shown at /docs, sent as Content-Type: application/json"
            return JSONResponse({"error": said}, 422)
        return JSONResponse({"error": plain(f"{where} is invalid: {reason(first)}")}, 422)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        said = {404: f"there is no {request.url.path} here", 405: f"{request.method} is not for {request.url.path}"}
        return JSONResponse({"error": plain(said.get(error.status_code, str(error.detail)))}, error.status_code)


def plain(sentence: str) -> str:
    """Short enough, and of letters that can be sent."""
    cut = sentence if len(sentence) <= 400 else sentence[:399] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8")


def status_of(error: UserError) -> int:
    """The status of a sentence: who is not there, who is forgotten, what cannot be done now, what is unknown."""
    said = str(error)
    for status, parts in STATUSES.items():
        if any(part in said for part in parts):
            return status
    return 400


STATUSES = {  # the first that fits
    409: ("already forgotten", "another process", "is not finished", "cannot take in", "nothing to resume", "to stop"),
    410: ("was forgotten", "is forgotten"),
    404: ("no user '", "unknown run '", "unknown experiment '"),
    422: ("unknown item '", "items of"),
}
