"""`isda explore` as a user runs it: a process of its own, asked over sockets and driven in Chromium."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from explorer_load import explorer, load
from isda.lab.analysis.explorer import Scene
from small_runs import isda


@pytest.fixture(scope="module")
def server(small_run) -> Iterator[tuple[subprocess.Popen, int]]:
    words = ["explore", str(small_run), "--no-open", "--device", "cpu", "--directions", "3"]
    process = subprocess.Popen([sys.executable, "-m", "isda", *words], stdout=subprocess.PIPE, text=True)
    told = process.stdout.readline()
    assert "http://127.0.0.1:" in told
    yield process, int(told.split("http://127.0.0.1:")[1].split("/")[0])
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def port(server) -> int:
    return server[1]


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        return connection.recv(10_000)


@pytest.mark.parametrize("path", ["/", "/explore.css", "/explore.js", "/run.json", "/map.json", "/image/0"])
def test_what_the_page_needs_is_served_and_may_load_nothing_from_elsewhere(port, path):
    status, headers, body = ask(port, path)
    assert (status, bool(body)) == (200, True)
    assert headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in body


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/image/../../../etc/passwd", "/image/%2e%2e%2fconfig.json", "//etc/passwd"),
        *("/config.json", "/image/", "/image/-1", "/image/60", "/image/1.5", "/image/" + "9" * 5000, "/image/٣"),
        *("/explore.html", "/explore.js/", "/run.json/../config.json", "/%00", "/scene.py", "/static/explore.js"),
    ],
)
def test_anything_else_is_not_found(port, path):
    """Sent as it is: clients tidy such paths up."""
    answer = raw(port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert answer.split()[1] in (b"404", b"400")
    assert b"root:" not in answer
    assert b"Content-Security-Policy" in answer.title() or answer.split()[1] == b"400"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.1.2.3", "evil.example:80"])
def test_a_request_by_another_name_is_refused(port, host):
    status, _, body = ask(port, "/run.json", Host=host)
    assert status == 421
    assert b"classes" not in body


def test_a_request_without_a_name_or_with_two_is_refused(port):
    assert raw(port, b"GET /run.json HTTP/1.0\r\n\r\n").split()[1] == b"421"
    two = f"GET /run.json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil.example\r\n\r\n".encode()
    assert raw(port, two).split()[1] in (b"400", b"421")


@pytest.mark.parametrize("path", ["/", "/picture.png?row=1", "/image/1", "/nowhere"])
def test_a_request_from_another_site_is_refused(port, path):
    """As browsers mark what a page elsewhere makes them ask for."""
    status, headers, body = ask(port, path, **{"Sec-Fetch-Site": "cross-site"})
    assert (status, headers.get_content_type()) == (403, "text/plain")
    assert b"another site" in body
    assert headers["Content-Security-Policy"].startswith("default-src 'none';")


@pytest.mark.parametrize("site", ["same-origin", "same-site", "none"])
def test_the_page_itself_is_answered(port, site):
    assert ask(port, "/run.json", **{"Sec-Fetch-Site": site})[0] == 200


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/view.json", "row must be an integer from 0"),
        ("/view.json?row=x", "row must be an integer from 0 to below 1000000000, got 'x'"),
        ("/view.json?row=60", "row must be from 0 to 59, got 60"),
        ("/view.json?row=1&moves=1,nan", "moves must be numbers, got 'nan'"),
        ("/view.json?row=1&moves=1,,2", "moves must be numbers, got ''"),
        ("/picture.png?row=1&moves=a", "moves must be numbers, got 'a'"),
        ("/view.json?row=1&among=all", "among must be one of any, own, got 'all'"),
        ("/view.json?row=1&draw=0", "draw and strength must be given together, strength is missing"),
        ("/view.json?row=1&strength=1", "draw and strength must be given together, draw is missing"),
        ("/view.json?row=1&draw=0&strength=1&moves=1", "moves and draw must not be given together"),
        ("/view.json?row=1&draw=-1&strength=1", "draw must be an integer"),
        ("/view.json?row=1&draw=9999999&strength=1", "draw must be from 0 to 1000000, got 9999999"),
        ("/view.json?row=1&draw=0&strength=inf", "strength must be numbers, got 'inf'"),
        ("/view.json?row=1&draw=0&strength=200", "strength must be from 0 to 100, got 200"),
        ("/view.json?row=1&seed=1", "parameter must be one of row, among, moves, draw, strength, got 'seed'"),
        ("/view.json?row=1&row=2", "each of row, among, moves, draw, strength must be given at most once"),
        ("/class.json?label=10", "label must be from 0 to 9, got 10"),
        ("/class.json?row=1", "parameter must be one of label, got 'row'"),
    ],
)
def test_a_bad_question_is_answered_in_a_sentence(port, path, told):
    status, _, body = ask(port, path)
    assert status == 400
    assert told in json.loads(body)["error"]


def test_it_only_answers_questions(port):
    assert ask(port, "/run.json", "POST")[0] == 405
    assert ask(port, "/image/1", "DELETE")[0] == 405


def test_moving_changes_what_is_there(port):
    still, moved = (json.loads(ask(port, f"/view.json?row=3&moves={moves}")[2]) for moves in ("0,0,0", "4,0,-4"))
    assert still["from"] == pytest.approx(still["to"])
    assert moved["from"] != pytest.approx(moved["to"])
    assert still["probabilities"] != moved["probabilities"]


def until(page, expression: str) -> None:
    """Wait for something on the page; Playwright's own waiting evaluates strings in it, which the policy forbids."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"a minute has passed, and not {expression}")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def test_a_person_chooses_a_class_and_moves_a_slider_by_keys_and_the_picture_changes(browser, port, width, scheme):
    context = browser.new_context(
        viewport={"width": width, "height": 844}, is_mobile=width < 600, color_scheme=scheme, accept_downloads=True
    )
    page, complaints, requests = context.new_page(), [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_selector("#nearest li")
    with page.expect_response("**/class.json?label=7"), page.expect_response("**/view.json*"):
        page.get_by_label("Class", exact=True).select_option("7")
    assert page.locator("#choices input").count() == 6
    with page.expect_response("**/view.json*") as answered:
        page.locator("#choices input").nth(2).check()
    sources = "[...document.querySelectorAll('#nearest img')].map(image => image.getAttribute('src'))"
    before = [f"/image/{one['row']}" for one in answered.value.json()["nearest"]]
    assert len(before) == 8
    # The answer is there, the picture may yet be that of the image before.
    until(page, f"JSON.stringify({sources}) == {json.dumps(json.dumps(before, separators=(',', ':')))}")
    place = page.locator("#map .moved").get_attribute("cx")
    assert page.locator("#map .start").get_attribute("cx") == place
    slider = page.get_by_label("Direction 1,")
    slider.focus()
    for _ in range(16):
        page.keyboard.press("ArrowRight")
    until(page, f"document.querySelector('#map .moved').getAttribute('cx') != {place!r}")
    until(page, f"JSON.stringify({sources}) != {json.dumps(json.dumps(before, separators=(',', ':')))}")
    assert page.locator("label[for=slider0] output").inner_text() == "+4.00 σ"
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # All images came, each has a text, and nothing was asked of anybody else.
    assert page.evaluate("[...document.images].every(image => image.hasAttribute('alt'))")
    until(page, "[...document.images].every(image => image.hidden || image.naturalWidth > 0)")
    if width > 600:  # a picture takes a second
        with page.expect_download() as kept:
            page.get_by_role("link", name="Save as picture").click()
        assert kept.value.suggested_filename.startswith("isda-")
        assert kept.value.path().read_bytes()[1:4] == b"PNG"
    page.get_by_role("button", name="Back to the image").click()
    until(page, f"JSON.stringify({sources}) == {json.dumps(json.dumps(before, separators=(',', ':')))}")
    assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in requests)
    assert complaints == []
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")], ids=["desk", "phone"])
def test_a_person_draws_augmented_features_and_the_numbers_are_those_of_the_logits(browser, port, seen, width, scheme):
    context = browser.new_context(
        viewport={"width": width, "height": 844}, is_mobile=width < 600, color_scheme=scheme, reduced_motion="reduce"
    )
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    rows = "[...document.querySelectorAll('#draws tr')].map(row => row.innerText.replace(/\\s+/g, ' ').trim())"

    def draw_two() -> list[str]:
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("#nearest li")
        assert page.locator(".draws").is_hidden()
        # lambda_0 of the run, and one step of the slider.
        assert page.locator("#strength-text").inner_text() == "λ = 1.00"
        page.get_by_label("Strength λ").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#strength-text").inner_text() == "λ = 1.05"
        for count in (1, 2):
            page.get_by_role("button", name="Draw from N(a, λΣ)").click()
            until(page, f"document.querySelectorAll('#draws tr').length == {count}")
        until(page, "document.querySelector('#said').textContent.startsWith('Draw 1 at λ = 1.05')")
        return page.evaluate(rows)

    shown = draw_two()
    scene = Scene(seen, directions=3)
    row = int(seen.rows_of(0)[0])

    def numbers(seed: int, strength: float) -> tuple[str, str, str, str]:
        feature = scene.draw(row, strength, seed).feature.numpy()
        logits = seen.weight.numpy() @ feature + seen.bias.numpy()
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        margin = logits[0] - logits[1:].max()
        label, best = int(p.argmax()), f"{100 * p.max():.1f}%"
        return str(label), best, f"{margin:+.2f}".replace("-", "−"), f"{-(p * np.log(p)).sum():.3f}"

    for text, seed in zip(shown, (1, 0), strict=True):
        label, best, margin, entropy = numbers(seed, 1.05)
        assert text == f"{seed} 1.05 {label} {best} {margin} {entropy}"
    label, best, margin, entropy = numbers(1, 1.05)
    present = "[...document.querySelectorAll('#certainty tr')].map(row => row.lastChild.textContent)"
    assert page.evaluate(present) == [label, best, margin, entropy]
    assert page.locator("#map .cross").count() == 2
    assert page.locator("#source img").get_attribute("src") == f"/image/{row}"
    near = int(scene.draw(row, 1.05, 1).landing.nearest[0])
    assert page.locator("#target img").get_attribute("src") == f"/image/{near}"
    # The strength moves the present draw and keeps its number.
    page.get_by_label("Strength λ").focus()
    page.keyboard.press("End")
    label, best, margin, entropy = numbers(1, 5.0)
    until(page, f"{rows}[0] == '1 5.00 {label} {best} {margin} {entropy}'")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("[...document.images].every(image => image.hasAttribute('alt'))")
    # Ten more; a slider leaves the draws, and their table stays.
    page.get_by_role("button", name="Draw ten").click()
    until(page, "document.querySelectorAll('#draws tr').length == 12")
    until(page, "document.querySelector('#said').textContent.startsWith('Draw 11')")
    page.get_by_label("Direction 1,").focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#said').textContent.startsWith('Moved by the sliders')")
    assert page.locator("#draws tr").count() == 12
    # The same page again.
    assert draw_two() == shown
    assert complaints == []
    context.close()


def test_bad_words_are_refused_in_a_sentence(small_run, port):
    assert "port must be from 0 to 65535, got 70000" in isda("explore", small_run, "--port", 70000)[2]
    assert "must be an address that is free" in isda("explore", small_run, "--port", port)[2]
    assert "directions must be from 1 to 20, got 0" in isda("explore", small_run, "--directions", 0)[2]
    assert isda("explore", "nowhere", "--no-open")[2] is not None


@pytest.mark.slow
def test_fifty_clients_of_which_some_leave_do_not_block_it_or_fill_its_memory(small_run):
    with explorer(small_run) as (process, port):
        measured = load(process, port, requests=1000, clients=50)
    print(measured)
    assert sum(measured.outcomes.values()) == 1000
    assert set(measured.outcomes) <= {"200", "503", "abandoned"}
    assert measured.failures == []


def test_ctrl_c_ends_it_without_a_word(server):
    """The last test: nothing answers after it."""
    process, _ = server
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    assert process.stdout.read() == ""
