"""The explorer's ASGI application: its routes, and generated images for moved features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from isda.analysis.explorer.scene import MovedFeature, Scene, draw_view
from isda.analysis.explorer.server import Guard, RequestAbandoned, RequestWorkers
from isda.analysis.inversion import Descent, InvertedFeatures, Inverter, generator_of_run
from isda.analysis.inversion.generator_adapters import load_matching_generator
from isda.analysis.pages import as_file, strip
from isda.analysis.training_features import Observed
from isda.report.markup import asset

STEP = Descent(iterations=1000, tolerance=0.02)
"""A tenth of the paper's iterations: somebody is waiting."""
REMEMBERED = 100


@dataclass(frozen=True)
class VisualizedFeature:
    """An image for a view."""

    file: bytes
    """The image, its reconstruction, and the image for the moved feature, side by side: a PNG file."""
    left: float
    """Its feature error, over that of the latent vector which step I started from."""
    seen_as: int
    """The class that the run's classifier sees in it."""


class FeatureVisualizer:
    """Makes images for views, one after another; those that were made are remembered.

    Args:
        observed: the run.
        generator: the folder of a run of `isda generate train` on the same data.
        device: where to compute.
    """

    def __init__(self, observed: Observed, generator: Path, device: torch.device | str = "cpu") -> None:
        made = generator_of_run(load_matching_generator(observed.folder, generator), device)
        self.inverter = Inverter(observed, made, first=STEP, second=STEP)
        self._lock = Lock()
        self._found: dict[int, InvertedFeatures] = {}
        self._made: dict[tuple[int, tuple[float, ...]], VisualizedFeature] = {}

    def __call__(self, view: MovedFeature, abandoned: Callable[[], bool] = lambda: False) -> VisualizedFeature:
        """The image for a view.

        Args:
            view: whose feature it should have.
            abandoned: asked now and then whether nobody waits for it any more.

        Raises:
            Abandoned: nobody does.
        """

        def look(iterations: int) -> None:
            if abandoned():
                raise RequestAbandoned

        with self._lock:  # the page may ask for the next before this one is made
            if (made := self._made.get((view.row, view.moves))) is None:
                made = self._made[view.row, view.moves] = self._make(view, look)
                _keep_last(self._made)
            return made

    def _make(self, view: MovedFeature, look: Callable[[int], None]) -> VisualizedFeature:
        row = torch.tensor([view.row])
        if (found := self._found.get(view.row)) is None:
            found = self._found[view.row] = self.inverter.reconstruct(row, look)
            _keep_last(self._found)
        moved = self.inverter.reach(found, view.feature[None], look)
        images = [self.inverter.observed.images(row)[0], found.images[0], moved.images[0]]
        left = float(moved.error[0] / found.start[0]) if found.start[0] > 0 else 0.0
        return VisualizedFeature(as_file(strip(images, 3)), left, int(moved.predicted[0]))


def _keep_last(made: dict[Any, Any]) -> None:
    if len(made) > REMEMBERED:
        made.pop(next(iter(made)))


LARGEST = 10**9
"""No row or label is."""


def make_application(scene: Scene, host: str = "127.0.0.1", imagining: FeatureVisualizer | None = None) -> Starlette:
    """The ASGI application of a scene.

    Args:
        scene: what to show.
        host: where it will listen, see `Guard`.
        imagining: makes images for moved features, if there is a generator.
    """
    # What takes milliseconds must not wait for what takes seconds.
    quick, drawn, imagined = (
        RequestWorkers(2, waiting=100),
        RequestWorkers(1, waiting=10),
        RequestWorkers(1, waiting=10),
    )
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


def _made(path: str, workers: RequestWorkers, answer: Callable[[Request], Response]) -> Route:
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
    return Response(draw_view(scene, view), media_type="image/png", headers=headers)


def _imagined(scene: Scene, imagining: FeatureVisualizer, request: Request) -> Response:
    made = imagining(_asked(scene, request), request.state.abandoned.is_set)
    return JSONResponse({"class": scene.observed.classes[made.seen_as], "left": made.left})


def _imagined_file(scene: Scene, imagining: FeatureVisualizer, request: Request) -> Response:
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


def _asked(scene: Scene, request: Request) -> MovedFeature:
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
