"""The explorer as a web application: one page, and the questions that it asks, answered in JSON.

Uploads are bytes without a name, limited in size and read by the readers of hostile files. The page writes what comes
back as text, and may load nothing from elsewhere.
"""

import math
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ebmbounds.errors import BadInput
from ebmbounds.explore.explorer import SHOWN, Explorer
from ebmbounds.report.charts import density_chart

LARGEST_UPLOAD = 8_000_000
UPLOAD = "application/octet-stream"
"""Which no form of another site can send without being asked first."""
LOCAL = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def application(explorer: Explorer, hosts: tuple[str, ...] = LOCAL) -> Starlette:
    """The application; requests under other host names than these are refused ("*" takes all)."""

    def about(request: Request) -> Response:
        return JSONResponse(explorer.about() | {"largest_upload": LARGEST_UPLOAD})

    def density(request: Request) -> Response:
        found = explorer.density()
        return JSONResponse(without_nan(density_chart(explorer.name, found).spec) if found else None)

    def samples(request: Request) -> Response:
        by_energy = request.query_params.get("order") == "energy"
        return JSONResponse(without_nan(explorer.samples(whole(request, "seed", 2**31), by_energy)))

    def walk(request: Request) -> Response:
        seed, most = whole(request, "seed", 2**31), SHOWN[explorer.kind]
        return JSONResponse(without_nan(explorer.walk(seed, whole(request, "from", most), whole(request, "to", most))))

    async def score(request: Request) -> Response:
        if request.headers.get("content-type") != UPLOAD:
            raise HTTPException(415, f"send the bytes of a file as {UPLOAD}.")
        content = await limited_body(request)
        return JSONResponse(without_nan(await run_in_threadpool(explorer.score, content)))

    page = files("ebmbounds.explore") / "static"
    served = {
        "/": (page / "index.html", "text/html"),
        "/explore.js": (page / "explore.js", "text/javascript"),
        "/explore.css": (page / "explore.css", "text/css"),
        "/page.css": (files("ebmbounds.report") / "templates" / "page.css", "text/css"),
    }
    routes = [file(path, source.read_text(encoding="utf-8"), kind) for path, (source, kind) in served.items()]
    routes += [
        file("/plotly.js", get_plotlyjs(), "text/javascript"),
        Route("/api/about", about),
        Route("/api/density", density),
        Route("/api/samples", samples),
        Route("/api/walk", walk),
        Route("/api/score", score, methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
            Middleware(BaseHTTPMiddleware, guard),
        ],
        exception_handlers={BadInput: lambda _, error: refusal(400, error), HTTPException: http_refusal},
    )


def file(path: str, text: str, kind: str) -> Route:
    return Route(path, lambda request: Response(text, media_type=kind))


def whole(request: Request, name: str, below: int) -> int:
    """A whole number of the query, from 0."""
    text = request.query_params.get(name, "0")
    if not text.isascii() or not text.isdigit() or int(text[:20]) >= below:
        raise BadInput(f"{name}={text[:20]!r} must be a whole number from 0 to {below - 1}.")
    return int(text)


async def limited_body(request: Request) -> bytes:
    """The body, given up as soon as it is too large, whatever its announced length."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > LARGEST_UPLOAD:
            raise HTTPException(413, f"your file is too large: at most {LARGEST_UPLOAD // 1_000_000} MB are taken.")
    if not content:
        raise BadInput("your file is empty.")
    return bytes(content)


async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(HEADERS)
    return response


def refusal(status: int, error: object) -> Response:
    return JSONResponse({"error": str(error)}, status)


def http_refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, error.detail)


def without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
