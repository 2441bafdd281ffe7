"""The routes of the page: three files of this room, what the scene says, and images by their row. Nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from isda.analysis.explorer.guard import Guard
from isda.analysis.explorer.imagining import Imagining
from isda.analysis.explorer.picture import draw
from isda.analysis.explorer.scene import Scene, View
from isda.analysis.explorer.workers import Workers
from isda.report.document import asset

__all__ = ["make_application"]

LARGEST = 10**9
"""No row or label is."""


def make_application(scene: Scene, host: str = "127.0.0.1", imagining: Imagining | None = None) -> Starlette:
    """The ASGI application of a scene.

    Args:
        scene: what to show.
        host: where it will listen, see `Guard`.
        imagining: makes images for moved features, if there is a generator.
    """
    # What takes milliseconds must not wait for what takes seconds.
    quick, drawn, imagined = Workers(2, waiting=100), Workers(1, waiting=10), Workers(1, waiting=10)
    further = []
    if imagining is not None:
        further = [
            _made("/imagined.json", imagined, partial(_imagined, scene, imagining)),
            _made("/imagined.png", imagined, partial(_imagined_file, scene, imagining)),
        ]
    own = {name: _file(f"explore.{name}") for name in ("html", "css", "js")}
    application = Starlette(
        routes=[
            _fixed("/", own["html"], "text/html"),
            _fixed("/favicon.ico", "", "text/plain"),
            # The style of every page of ours, and what this one needs beside it.
            _fixed("/explore.css", f"{asset('style.css')}\n{own['css']}", "text/css"),
            _fixed("/explore.js", own["js"], "text/javascript"),
            _made("/run.json", quick, lambda request: JSONResponse(scene.describe() | {"imagines": bool(further)})),
            _made("/map.json", quick, lambda request: JSONResponse(scene.describe_map())),
            _made("/class.json", quick, partial(_class, scene)),
            _made("/view.json", quick, partial(_view, scene)),
            _made("/image/{row}", quick, partial(_image, scene)),
            _made("/picture.png", drawn, partial(_picture, scene)),
            *further,
        ],
        middleware=[Middleware(Guard, host=host)],
    )
    application.router.redirect_slashes = False
    return application


def _file(name: str) -> str:
    return files("isda.analysis.explorer").joinpath(name).read_text(encoding="utf-8")


def _fixed(path: str, content: str, kind: str) -> Route:
    """A route whose answer is always the same, and needs no thread."""

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, status_code=200 if content else 204)

    return Route(path, answer)


def _made(path: str, workers: Workers, answer: Callable[[Request], Response]) -> Route:
    """A route whose answers are made by threads."""
    return Route(path, partial(workers.answer, partial(_answered, answer)))


def _answered(answer: Callable[[Request], Response], request: Request) -> Response:
    """The answer, or what was wrong with the question."""
    try:
        return answer(request)
    except ValueError as error:
        return JSONResponse({"error": str(error)}, status_code=400)


def _class(scene: Scene, request: Request) -> Response:
    label = _whole("label", request.query_params.get("label", ""))
    return JSONResponse(scene.describe_class(label))


def _view(scene: Scene, request: Request) -> Response:
    return JSONResponse(scene.describe_view(_asked(scene, request)))


def _picture(scene: Scene, request: Request) -> Response:
    view = _asked(scene, request)
    name = f"{scene.observed.indices[view.row]}.png"
    headers = {"Content-Disposition": f'attachment; filename="isda-{name}"'}
    return Response(draw(scene, view), media_type="image/png", headers=headers)


def _imagined(scene: Scene, imagining: Imagining, request: Request) -> Response:
    made = imagining(_asked(scene, request), request.state.abandoned.is_set)
    return JSONResponse({"class": scene.observed.classes[made.seen_as], "left": made.left})


def _imagined_file(scene: Scene, imagining: Imagining, request: Request) -> Response:
    return _as_image(imagining(_asked(scene, request), request.state.abandoned.is_set).file)


def _image(scene: Scene, request: Request) -> Response:
    try:
        row = _whole("row", request.path_params["row"])
    except ValueError as error:
        raise HTTPException(404) from error
    if row >= len(scene.observed.labels):
        raise HTTPException(404)
    return _as_image(scene.image_file(row))


def _as_image(data: bytes) -> Response:
    return Response(data, media_type="image/png" if data[1:4] == b"PNG" else "image/webp")


def _asked(scene: Scene, request: Request) -> View:
    query = request.query_params
    words = query.get("moves", "")
    if len(words) > 2000:
        raise ValueError(f"moves must be one number for each direction, got {len(words)} letters")
    moves = [float(word) for word in words.split(",")] if words else []
    return scene.view(_whole("row", query.get("row", "")), moves, query.get("among", "any"))


def _whole(name: str, word: str) -> int:
    """A whole number that is no absurd one."""
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise ValueError(f"{name} must be a whole number below {LARGEST}, got {word[:20]!r}")
    return int(word)
