"""The explorer in a real browser: clicks and uploads are answered, hostile ones refused and never executed."""

import socket
import threading
import time

import numpy as np
import pytest
from PIL import Image

from ebmbounds.explore.server import LARGEST_UPLOAD, application

uvicorn = pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def addresses(explorers):
    """Of a served explorer of each kind."""
    servers, threads, found = [], [], {}
    for kind, explorer in explorers.items():
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(application(explorer), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        servers.append(server)
        threads.append(thread)
        found[kind] = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    while not all(server.started for server in servers):
        time.sleep(0.05)
    yield found
    for server, thread in zip(servers, threads, strict=True):
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(addresses, chromium):
    """Opens the explorer of a kind, and waits for its samples."""

    def open_page(kind):
        chromium.errors()  # those of other pages
        chromium.get(addresses[kind])
        text_of(chromium, "took", "samples in")
        return chromium

    return open_page


def text_of(browser, identifier, part):
    """The text of an element as soon as it holds the part."""
    from selenium.webdriver.support.ui import WebDriverWait

    def holds(browser):
        text = browser.execute_script("return document.getElementById(arguments[0]).textContent", identifier)
        return text if part in text else ""

    return WebDriverWait(browser, 20).until(holds, f"{identifier} never said {part!r}")


def send(browser, path):
    browser.find_element("id", "file").send_keys(str(path))


def test_points_are_drawn_walked_clicked_and_scored(page, tmp_path):
    browser = page("plane")
    first = text_of(browser, "listed", "sample")
    browser.find_element("id", "another").click()
    time.sleep(0.1)
    text_of(browser, "took", "samples in")
    assert text_of(browser, "listed", "sample") != first
    browser.find_element("css selector", "#way button").click()
    (tmp_path / "rows.csv").write_text("x,y\n0.5,0.5\n1.5,-3\n")
    send(browser, tmp_path / "rows.csv")
    scores = text_of(browser, "scores", "(1.500, -3.000)")
    assert scores.count("energy") == 2 and "of the test set" in scores
    middle = browser.find_element("css selector", "#map .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", middle)
    middle.click()
    text_of(browser, "scores", "The nearest of")
    lengths = browser.execute_script("return document.getElementById('map').data.map((trace) => trace.x.length)")
    assert lengths[2:] == [500, 60, 1]
    assert browser.errors() == []


def test_images_are_chosen_for_a_walk_and_scored(page, tmp_path):
    browser = page("images")
    samples = browser.find_elements("css selector", "#samples button")
    assert len(samples) == 64
    for i in (3, 9):
        browser.execute_script("arguments[0].click()", samples[i])
    text_of(browser, "hint", "Sample 9")
    pixels = np.random.default_rng(0).integers(0, 255, (50, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "own.jpg")
    send(browser, tmp_path / "own.jpg")
    text_of(browser, "scores", "of the test set")
    assert len(browser.find_elements("css selector", "#walk img")) == 10
    assert all(image.get_attribute("alt") for image in browser.find_elements("css selector", "img"))
    assert browser.errors() == []


@pytest.mark.parametrize(
    ("kind", "name", "content", "answer"),
    [
        ("plane", "<img src=x onerror=document.title=1>.csv", "x,y\n1,<script>document.title=1</script>\n", "numbers"),
        ("images", "<img src=x onerror=document.title=1>.png", "<svg onload='document.title=1'></svg>", "no image"),
        ("images", "huge.png", "0" * (LARGEST_UPLOAD + 1), "too large"),
    ],
)
def test_hostile_uploads_are_refused_and_never_run(page, tmp_path, kind, name, content, answer):
    browser = page(kind)
    (tmp_path / name).write_text(content)
    send(browser, tmp_path / name)
    text_of(browser, "problem", answer)
    assert browser.title == "ebmbounds explorer"
    assert browser.execute_script("return document.querySelectorAll('#problem *, #scores *').length") == 0
    browser.find_element("id", "another").click()  # and it goes on
    text_of(browser, "took", "samples in")
