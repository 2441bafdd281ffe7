"""Images for moved features in the explorer: made by a generator when asked for, and remembered."""

from __future__ import annotations

import http.client
import io
import json
import threading

import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image

from generative_runs import SMALL_WORDS
from isda.lab.analysis.explorer import Scene, make_application
from isda.lab.analysis.explorer.application import FeatureVisualizer
from isda.lab.analysis.explorer.server import RequestAbandoned, listen
from isda.lab.analysis.inversion import Descent
from small_runs import isda

pytestmark = pytest.mark.filterwarnings("ignore:the generator has collapsed", "ignore:the discriminator tells")


@pytest.fixture(scope="module")
def visualizer(seen, small_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generators") / "gan"
    words = [*SMALL_WORDS, "--method", "infogan", "--judge", small_run, "--threads", 1]
    _, err, code = isda("generate", "train", *words, "--out", folder)
    assert code is None, err
    made = FeatureVisualizer(seen, folder)
    few = Descent(iterations=20)
    for name in ("first", "second"):
        object.__setattr__(made.inverter, name, few)
    return made


@pytest.fixture(scope="module")
def scene(seen):
    return Scene(seen, directions=2)


@pytest.fixture(scope="module")
def port(scene, visualizer):
    with listen("127.0.0.1", 0) as place:
        settings = uvicorn.Config(make_application(scene, visualizer=visualizer), log_level="warning", lifespan="off")
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        yield place.getsockname()[1]
        server.should_exit = True
        thread.join()


def ask(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_image_its_reconstruction_and_the_image_for_the_moved_feature(port, scene, visualizer, seen):
    assert json.loads(ask(port, "/run.json")[1])["imagines"] is True
    status, body = ask(port, "/imagined.json?row=4&moves=3,0")
    found = json.loads(body)
    assert (status, found["class"] in seen.classes) == (200, True)
    _, file = ask(port, "/imagined.png?row=4&moves=3,0")
    shown = np.asarray(Image.open(io.BytesIO(file)))
    assert shown.shape == (8, 3 * 8 + 2 * 2, 4)
    assert (shown[:, :8, 0] == seen.images(torch.tensor([4]))[0, 0].numpy()).all()
    # Step II, from the reconstruction, as `isda.lab.analysis.inversion` has it.
    view = scene.view(4, [3, 0])
    reconstructed = visualizer.inverter.reconstruct(torch.tensor([4]))
    moved = visualizer.inverter.reach(reconstructed, view.feature[None])
    assert (shown[:, 10:18, 0] == reconstructed.images[0, 0].numpy()).all()
    assert (shown[:, 20:28, 0] == moved.images[0, 0].numpy()).all()
    assert found["left"] == pytest.approx(float(moved.error[0] / reconstructed.start[0]))


def test_what_was_made_is_remembered(visualizer, scene):
    view = scene.view(5, [1, 1])
    assert visualizer(view) is visualizer(scene.view(5, [1, 1]))
    assert visualizer(scene.view(5, [1, 0])) is not visualizer(view)
    drawn = visualizer(scene.draw(5, 1.0, seed=0))
    assert drawn is visualizer(scene.draw(5, 1.0, seed=0))
    assert all(visualizer(other) is not drawn for other in (scene.draw(5, 1.0, seed=1), scene.view(5, [])))


def test_an_image_that_nobody_waits_for_is_not_made(visualizer, scene):
    looks = iter([False] * 2 + [True] * 100)
    with pytest.raises(RequestAbandoned):
        visualizer(scene.view(6, [1, 0]), lambda: next(looks))
    assert next(looks) is True
    assert not any(row == 6 for row, _, _ in visualizer._results)
    assert visualizer(scene.view(6, [1, 0])).file


def test_bad_questions_are_answered_and_without_a_generator_there_is_no_answer(port, scene):
    assert ask(port, "/imagined.json?row=4&moves=9")[0] == 400
    assert ask(port, "/imagined.png?row=400")[0] == 400
    paths = {route.path for route in make_application(scene).routes}
    assert not any(path.startswith("/imagined") for path in paths)


def test_a_generator_of_other_images_is_refused(small_run, tmp_path):
    assert "no run" in str(isda("explore", small_run, "--no-open", "--generator", tmp_path)[2])
