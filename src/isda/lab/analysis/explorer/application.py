"""The explorer's ASGI application: its routes, and generated images for moved features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from isda._utils.choices import check_choice
from isda.lab.analysis.explorer.scene import Draw, MovedFeature, Scene, draw_view
from isda.lab.analysis.explorer.server import Guard, RequestAbandoned, RequestWorkers
from isda.lab.analysis.inversion.generator_adapters import generator_of_run, load_matching_generator
from isda.lab.analysis.inversion.inverter import Descent, InvertedFeatures, Inverter
from isda.lab.analysis.markup import asset
from isda.lab.analysis.pages import encode_image, image_strip

if TYPE_CHECKING:
    from isda.lab.analysis.training_features import Observed

STEP = Descent(iterations=1000, tolerance=0.02)
"""A tenth of the paper's iterations, since the user waits."""
CACHED = 100


@dataclass(frozen=True)
class VisualizedFeature:
    """A generated image for a moved feature."""

    file: bytes
    """The image, its reconstruction, and the image for the moved feature, side by side: a PNG file."""
    left: float
    """Its feature error over that at the start of step I."""
    seen_as: int
    """The class that the run's classifier predicts."""


class FeatureVisualizer:
    """Generates images for moved features, one at a time, with a cache.

    Args:
        observed: the run.
        generator: folder of a run of `isda generate train` on the same data.
        device: to compute on.
    """

    def __init__(self, observed: Observed, generator: Path, device: torch.device | str = "cpu") -> None:
        latent_generator = generator_of_run(load_matching_generator(observed.folder, generator), device)
        self.inverter = Inverter(observed, latent_generator, first=STEP, second=STEP)
        self._lock = Lock()
        self._reconstructed: dict[int, InvertedFeatures] = {}
        self._results: dict[tuple[int, tuple[float, ...], Draw | None], VisualizedFeature] = {}

    def __call__(self, view: MovedFeature, abandoned: Callable[[], bool] = lambda: False) -> VisualizedFeature:
        """The image for a moved feature.

        Args:
            view: the moved feature.
            abandoned: called now and then; True cancels the work.

        Raises:
            RequestAbandoned: the work was cancelled.
        """

        def check(iterations: int) -> None:
            if abandoned():
                raise RequestAbandoned

        with self._lock:  # requests may overlap
            key = view.row, view.moves, view.draw
            if (result := self._results.get(key)) is None:
                result = self._results[key] = self._visualize(view, check)
                _drop_oldest(self._results)
            return result

    def _visualize(self, view: MovedFeature, check: Callable[[int], None]) -> VisualizedFeature:
        row = torch.tensor([view.row])
        if (reconstructed := self._reconstructed.get(view.row)) is None:
            reconstructed = self._reconstructed[view.row] = self.inverter.reconstruct(row, check)
            _drop_oldest(self._reconstructed)
        moved = self.inverter.reach(reconstructed, view.feature[None], check)
        images = [self.inverter.observed.images(row)[0], reconstructed.images[0], moved.images[0]]
        start = reconstructed.start[0]
        left = float(moved.error[0] / start) if start > 0 else 0.0
        return VisualizedFeature(encode_image(image_strip(images, 3)), left, int(moved.predicted[0]))


def _drop_oldest(cache: dict[Any, Any]) -> None:
    if len(cache) > CACHED:
        cache.pop(next(iter(cache)))


LARGEST = 10**9
"""Rows and labels are below."""


def make_application(scene: Scene, host: str = "127.0.0.1", visualizer: FeatureVisualizer | None = None) -> Starlette:
    """The ASGI application of a scene.

    Args:
        scene: the content.
        host: address of the server, see `Guard`.
        visualizer: generates images for moved features; by default none.
    """
    # Separate pools: short requests must not wait for long ones.
    quick, drawing = RequestWorkers(2, waiting=100), RequestWorkers(1, waiting=10)
    further = []
    if visualizer is not None:
        generating = RequestWorkers(1, waiting=10)
        further = [
            _threaded("/imagined.json", generating, partial(_imagined, scene, visualizer)),
            _threaded("/imagined.png", generating, partial(_imagined_file, scene, visualizer)),
        ]
    own = {name: _file(f"explore.{name}") for name in ("html", "css", "js")}
    application = Starlette(
        routes=[
            _fixed("/", own["html"], "text/html"),
            _fixed("/favicon.ico", "", "text/plain"),
            _fixed("/explore.css", f"{asset('style.css')}\n{own['css']}", "text/css"),
            _fixed("/explore.js", own["js"], "text/javascript"),
            _threaded("/run.json", quick, lambda request: JSONResponse(scene.describe() | {"imagines": bool(further)})),
            _threaded("/map.json", quick, lambda request: JSONResponse(scene.describe_map())),
            _threaded("/class.json", quick, partial(_class, scene)),
            _threaded("/view.json", quick, partial(_view, scene)),
            _threaded("/image/{row}", quick, partial(_image, scene)),
            _threaded("/picture.png", drawing, partial(_picture, scene)),
            *further,
        ],
        middleware=[Middleware(Guard, host=host)],
    )
    application.router.redirect_slashes = False
    return application


def _file(name: str) -> str:
    return files("isda.lab.analysis.explorer").joinpath(name).read_text(encoding="utf-8")


def _fixed(path: str, content: str, kind: str) -> Route:
    """A route with constant content."""

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, status_code=200 if content else 204)

    return Route(path, answer)


def _threaded(path: str, workers: RequestWorkers, answer: Callable[[Request], Response]) -> Route:
    """A route whose responses are computed in threads."""
    return Route(path, partial(workers.answer, partial(_with_errors, answer)))


def _with_errors(answer: Callable[[Request], Response], request: Request) -> Response:
    """The response, or 400 with the message of a ValueError."""
    try:
        return answer(request)
    except ValueError as error:
        return JSONResponse({"error": str(error)}, status_code=400)


def _class(scene: Scene, request: Request) -> Response:
    return JSONResponse(scene.describe_class(_whole("label", _query(request, ("label",)).get("label", ""))))


def _view(scene: Scene, request: Request) -> Response:
    return JSONResponse(scene.describe_view(_moved_feature(scene, request)))


def _picture(scene: Scene, request: Request) -> Response:
    view = _moved_feature(scene, request)
    name = f"{scene.observed.indices[view.row]}.png"
    headers = {"Content-Disposition": f'attachment; filename="isda-{name}"'}
    return Response(draw_view(scene, view), media_type="image/png", headers=headers)


def _imagined(scene: Scene, visualizer: FeatureVisualizer, request: Request) -> Response:
    result = visualizer(_moved_feature(scene, request), request.state.abandoned.is_set)
    return JSONResponse({"class": scene.observed.classes[result.seen_as], "left": result.left})


def _imagined_file(scene: Scene, visualizer: FeatureVisualizer, request: Request) -> Response:
    return _image_response(visualizer(_moved_feature(scene, request), request.state.abandoned.is_set).file)


def _image(scene: Scene, request: Request) -> Response:
    try:
        row = _whole("row", request.path_params["row"])
    except ValueError as error:
        raise HTTPException(404) from error
    if row >= len(scene.observed.labels):
        raise HTTPException(404)
    return _image_response(scene.image_file(row))


def _image_response(data: bytes) -> Response:
    return Response(data, media_type="image/png" if data[1:4] == b"PNG" else "image/webp")


def _moved_feature(scene: Scene, request: Request) -> MovedFeature:
    query = _query(request, ("row", "among", "moves", "draw", "strength"))
    row, among = _whole("row", query.get("row", "")), query.get("among", "any")
    if "draw" in query or "strength" in query:
        if "moves" in query:
            raise ValueError("moves and draw must not be given together: a draw starts from the image's own feature")
        missing = [name for name in ("draw", "strength") if name not in query]
        if missing:
            raise ValueError(f"draw and strength must be given together, {missing[0]} is missing")
        return scene.draw(row, _number("strength", query["strength"]), _whole("draw", query["draw"]), among)
    words = query.get("moves", "")
    if len(words) > 2000:
        raise ValueError(f"moves must be one number for each direction, got {len(words)} characters")
    moves = [_number("moves", word) for word in words.split(",")] if words else []
    return scene.view(row, moves, among)


def _query(request: Request, names: Sequence[str]) -> dict[str, str]:
    """The parameters of a request, each at most once; a ValueError if there is one of another name."""
    given = request.query_params.multi_items()
    for name, _ in given:
        check_choice("parameter", name[:20], names)
    query = dict(given)
    if len(query) < len(given):
        raise ValueError(f"each of {', '.join(names)} must be given at most once")
    return query


def _number(name: str, word: str) -> float:
    """A finite number."""
    try:
        value = float(word) if word.isascii() else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} must be numbers, got {word[:20]!r}")
    return value


def _whole(name: str, word: str) -> int:
    """A non-negative integer below LARGEST."""
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise ValueError(f"{name} must be an integer from 0 to below {LARGEST}, got {word[:20]!r}")
    return int(word)
