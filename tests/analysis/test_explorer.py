"""The scene that the explorer shows: where features are moved to, the map, the names on it, the picture to keep.

And what answers requests: who is heard, how many at once, and what becomes of clients that leave.
"""

import http.client
import io
import json
import queue
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from isda.lab.analysis.directions import class_directions
from isda.lab.analysis.explorer import Scene, class_plane
from isda.lab.analysis.explorer.scene import certainty, draw_view, spread_labels
from isda.lab.analysis.explorer.server import Guard, RequestWorkers, is_loopback, listen


@pytest.fixture(scope="module")
def scene(seen):
    return Scene(seen, directions=3, images=4)


def test_moves_are_standard_deviations_along_the_directions_of_the_images_class(scene, seen):
    row = 17
    label = int(seen.labels[row])
    found = class_directions(seen, label, 3)
    expected = seen.features[row].clone()
    for move, vector, variance in zip((1.5, 0.0, -2.0), found.vectors, found.variances, strict=True):
        expected += move * variance.sqrt() * vector
    view = scene.view(row, [1.5, 0, -2])
    torch.testing.assert_close(view.feature, expected)
    torch.testing.assert_close(view.landing.probabilities, seen.logits(expected).softmax(0))
    assert row not in view.landing.nearest
    own = scene.view(row, [1.5, 0, -2], "own")
    assert set(seen.labels[own.landing.nearest].tolist()) == {label}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((60, []), "row must be from 0 to 59, got 60"),
        ((0, [0] * 4), "moves must be at most 3"),
        ((0, [float("nan")]), "moves must be from -4 to 4"),
        ((0, [4.5]), "moves must be from -4 to 4"),
        ((0, [], "others"), "among must be one of any, own"),
    ],
)
def test_what_nobody_can_see_is_refused(scene, asked, told):
    with pytest.raises(ValueError, match=told):
        scene.view(*asked)


def test_draws_are_normal_around_the_feature_with_lambda_times_the_covariance_of_the_class(scene, seen):
    row, strength, count = 17, 0.7, 800
    members = seen.features[seen.rows_of(int(seen.labels[row]))].numpy()
    values, vectors = np.linalg.eigh(strength * np.cov(members.T, bias=True))
    steps = np.stack([scene.draw(row, strength, seed).feature.numpy() for seed in range(count)])
    steps -= seen.features[row].numpy()
    # The class has as many directions as images but one; a draw stays in their space.
    rank = len(members) - 1
    scale = values[-1] ** 0.5
    assert np.abs(steps @ vectors[:, :-rank]).max() < 1e-6 * scale
    standard = steps @ vectors[:, -rank:] / np.sqrt(values[-rank:])
    # Means have the standard error 1 / sqrt(n), variances sqrt(2 / n), covariances 1 / sqrt(n): five of each.
    error = count**-0.5
    assert np.abs(standard.mean(0)).max() < 5 * error
    difference = np.abs(standard.T @ standard / count - np.eye(rank))
    assert difference.max() < 5 * 2**0.5 * error


def test_a_seed_is_a_draw_and_the_strength_only_scales_it(scene, seen):
    first, again, other = (scene.draw(3, 0.5, seed) for seed in (4, 4, 5))
    assert torch.equal(first.feature, again.feature)
    assert not torch.allclose(first.feature, other.feature)
    a = seen.features[3]
    torch.testing.assert_close(scene.draw(3, 2.0, 4).feature - a, 2 * (first.feature - a))
    assert torch.equal(scene.draw(3, 0.0, 4).feature, a)
    assert not torch.allclose(scene.draw(4, 0.5, 4).feature - seen.features[4], first.feature - a)


def test_margin_and_entropy_are_those_of_the_logits(scene, seen):
    view = scene.draw(9, 3.0, 1)
    label = int(seen.labels[9])
    described = scene.describe_view(view)
    for name, feature in (("source", seen.features[9]), ("moved", view.feature)):
        logits = seen.weight.numpy() @ feature.numpy() + seen.bias.numpy()
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        shown = described[name]
        assert shown["predicted"] == seen.classes[int(logits.argmax())]
        assert shown["probability"] == pytest.approx(p.max())
        assert shown["margin"] == pytest.approx(logits[label] - np.delete(logits, label).max())
        assert shown["entropy"] == pytest.approx(-(p * np.log(p)).sum())
    assert described["draw"] == {"strength": 3.0, "seed": 1}
    assert described["distance"] == pytest.approx(float((view.feature - seen.features[9]).norm()))


def test_logits_far_apart_and_a_single_class_are_certain():
    far = certainty(torch.tensor([0.0, 5000.0], dtype=torch.float64), 0)
    assert far == pytest.approx((1, 1.0, -5000.0, 0.0))
    assert certainty(torch.tensor([3.0]), 0) == pytest.approx((0, 1.0, None, 0.0))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((60, 1.0, 0), "row must be from 0 to 59, got 60"),
        ((0, -0.1, 0), "strength must be from 0 to 100, got -0.1"),
        ((0, float("nan"), 0), "strength must be from 0 to 100, got nan"),
        ((0, 101.0, 0), "strength must be from 0 to 100, got 101"),
        ((0, 1.0, -1), "draw must be from 0 to 1000000, got -1"),
        ((0, 1.0, 0, "others"), "among must be one of any, own"),
    ],
)
def test_bad_draws_are_refused(scene, asked, told):
    with pytest.raises(ValueError, match=told):
        scene.draw(*asked)


def test_the_plane_holds_the_most_of_the_class_means_that_a_plane_can(seen):
    plane = class_plane(seen.features, seen.labels)
    torch.testing.assert_close(plane.axes @ plane.axes.T, torch.eye(2, dtype=torch.float64))
    means = torch.stack([seen.features[seen.labels == label].mean(0) for label in range(10)])
    singular = torch.linalg.svdvals(means - means.mean(0))
    torch.testing.assert_close(plane.project(means).square().sum(), singular[:2].square().sum())


@pytest.mark.parametrize("classes", [1, 2])
def test_few_classes_have_a_map_with_two_axes_too(classes):
    features, labels = torch.randn(20, 5, dtype=torch.float64), torch.arange(20) % classes
    axes = class_plane(features, labels).axes
    torch.testing.assert_close(axes @ axes.T, torch.eye(2, dtype=torch.float64))


def test_features_that_do_not_vary_have_a_map_without_axes():
    assert class_plane(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)).axes.tolist() == [[0.0] * 3] * 2


def test_names_on_the_map_do_not_lie_on_each_other():
    free = spread_labels(torch.randn(20, 2), width=0.8, height=0.2)
    gaps = (free[:, None] - free[None]).abs() + 9 * torch.eye(20)[..., None]
    assert ((gaps[..., 0] >= 0.8) | (gaps[..., 1] >= 0.2 - 1e-6)).all()


def test_the_picture_changes_with_the_view(scene):
    still, moved = draw_view(scene, scene.view(3, [])), draw_view(scene, scene.view(3, [3]))
    assert Image.open(io.BytesIO(moved)).size == (1440, 662)
    assert still != moved
    assert draw_view(scene, scene.draw(3, 9.0, 0)) != still


def test_a_class_without_images_or_directions_is_described(with_features):
    observed = with_features(torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 0, 0, 0, 1]))
    scene = Scene(observed)
    assert scene.describe_class(1) == {"name": "1", "rows": [4], "directions": []}
    assert scene.describe_class(2) == {"name": "2", "rows": [], "directions": []}
    assert scene.describe_view(scene.view(4, []))["class"] == "1"


def test_hosts_that_are_ours():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [
        *(True, True, True),
        *(False, False),
    ]
    local, everywhere = Guard(None, "127.0.0.1"), Guard(None, "0.0.0.0")
    for host in ("127.0.0.1:80", "localhost:1", "[::1]:9", "LOCALHOST"):
        assert local._is_ours(host)
    for host in ("example.org", "127.0.0.1.example.org", "localhost.example.org:80", "192.168.1.5", "", "[", "a@b"):
        assert not local._is_ours(host)
    assert everywhere._is_ours("192.168.1.5:80")
    assert not everywhere._is_ours("example.org")


class Slow:
    """A server with one thread and one place to wait, whose answers are made when the test says so."""

    def __init__(self, port: int, workers: RequestWorkers) -> None:
        self.port, self.workers = port, workers
        self.begun: queue.Queue[threading.Event] = queue.Queue()
        """What says that an answer is not wanted any more, of each that was begun."""
        self.release = threading.Semaphore(0)

    def make(self, request):
        if request.query_params.get("wrong"):
            raise ValueError("no answer")
        self.begun.put(request.state.abandoned)
        assert self.release.acquire(timeout=60)
        return PlainTextResponse("made")

    def ask(self, path: str = "/") -> http.client.HTTPConnection:
        """Send a request; the answer is not waited for."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return connection

    def until_free(self, places: int) -> None:
        for _ in range(6000):
            if self.workers.capacity == places:
                return
            time.sleep(0.01)
        raise AssertionError(f"a minute has passed, and {self.workers.capacity} places are free instead of {places}")


@pytest.fixture
def slow():
    with listen("127.0.0.1", 0) as place:
        workers = RequestWorkers(1, waiting=1)
        made = Slow(place.getsockname()[1], workers)
        application = Starlette(routes=[Route("/", partial(workers.answer, made.make))])
        server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        yield made
        made.release.release(100)
        server.should_exit = True
        thread.join()


def test_beyond_the_places_requests_are_turned_away_and_told_when_to_come_back(slow):
    first = slow.ask()
    slow.begun.get(timeout=60)
    second = slow.ask()
    slow.until_free(0)
    refused = slow.ask().getresponse()
    assert (refused.status, refused.headers["Retry-After"]) == (503, "2")
    assert json.loads(refused.read())["error"].startswith("too many requests at once")
    assert slow.begun.empty()
    slow.release.release(2)
    assert [one.getresponse().read() for one in (first, second)] == [b"made", b"made"]
    slow.until_free(2)


def test_work_of_clients_that_have_gone_is_not_begun(slow):
    first = slow.ask()
    slow.begun.get(timeout=60)
    for _ in range(20):  # more than there are places
        gone = slow.ask()
        slow.until_free(0)
        gone.close()
        slow.until_free(1)
    last = slow.ask()
    slow.until_free(0)
    slow.release.release(2)
    assert [one.getresponse().read() for one in (first, last)] == [b"made", b"made"]
    slow.begun.get(timeout=60)
    assert slow.begun.empty()


def test_a_client_that_leaves_while_its_answer_is_made_frees_its_place_and_the_work_is_told(slow):
    first = slow.ask()
    abandoned = slow.begun.get(timeout=60)
    assert not abandoned.is_set()
    first.close()
    assert abandoned.wait(timeout=60)
    slow.until_free(2)
    # The thread is busy all the same: the next answer is begun when it has ended.
    second = slow.ask()
    slow.until_free(1)
    assert slow.begun.empty()
    slow.release.release(2)
    assert second.getresponse().read() == b"made"


def test_what_an_answer_raises_frees_its_place(slow):
    assert slow.ask("/?wrong=1").getresponse().status == 500
    slow.until_free(2)
