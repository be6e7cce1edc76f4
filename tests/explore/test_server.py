"""What the explorer answers, and what it refuses."""

import io
import socket

import numpy as np
import pytest
from PIL import Image

from ebmbounds.errors import BadInput
from ebmbounds.explore import Explorer, explore
from ebmbounds.explore.explorer import NEAREST, SHOWN, STOPS
from ebmbounds.explore.server import LARGEST_UPLOAD, UPLOAD, application

testclient = pytest.importorskip("starlette.testclient")
KINDS = pytest.mark.parametrize("kind", ["plane", "images"])


@pytest.fixture(scope="module")
def clients(explorers):
    return {
        kind: testclient.TestClient(application(explorer), base_url="http://127.0.0.1", raise_server_exceptions=False)
        for kind, explorer in explorers.items()
    }


def picture(size=(40, 60), kind="PNG"):
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)).save(content, kind)
    return content.getvalue()


GOOD = {"plane": b"x,y\n0.5,-0.25\n", "images": picture()}


def upload(client, content, **headers):
    return client.post("/api/score", content=content, headers={"content-type": UPLOAD} | headers)


@KINDS
def test_a_seed_gives_its_samples_again_and_another_gives_others(clients, kind):
    first, again, other = (clients[kind].get(f"/api/samples?seed={seed}").json() for seed in (1, 1, 2))
    assert len(first) == SHOWN[kind] and first == again and first != other


@KINDS
def test_sorting_is_by_energy_and_keeps_the_numbers(clients, kind):
    drawn = clients[kind].get("/api/samples?seed=3").json()
    ordered = clients[kind].get("/api/samples?seed=3&order=energy").json()
    assert [each["energy"] for each in ordered] == sorted(each["energy"] for each in drawn)
    assert all(drawn[each["index"]] == each for each in ordered)


@KINDS
def test_a_walk_leads_from_one_sample_to_another(clients, kind):
    samples = clients[kind].get("/api/samples?seed=4").json()
    stops = clients[kind].get("/api/walk?seed=4&from=2&to=5").json()
    assert len(stops) == STOPS[kind]
    ends = [stops[0]["energy"], stops[-1]["energy"]]
    assert ends == pytest.approx([samples[2]["energy"], samples[5]["energy"]], rel=1e-3)


@KINDS
def test_your_own_data_gets_energy_percentile_and_neighbours(clients, explorers, kind):
    (scored,) = upload(clients[kind], GOOD[kind]).json()
    assert 0 <= scored["percentile"] <= 100 and len(scored["nearest"]) == NEAREST
    test = explorers[kind]._test_energies
    assert scored["percentile"] == pytest.approx(100 * (test < scored["energy"]).mean())


def test_the_nearest_sample_of_a_sample_is_itself(explorers):
    explorer = explorers["plane"]
    point = explorer._pool[7].tolist()
    (scored,) = explorer.score(f"{point[0]!r},{point[1]!r}\n".encode())
    assert scored["nearest"][0]["point"] == pytest.approx(point, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("images", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"),
        ("images", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
        ("images", picture()[:-500]),
        ("images", GOOD["plane"]),
        ("plane", GOOD["images"]),
        ("plane", b"x,y\n1,<script>alert(1)</script>\n"),
        ("plane", b"x,y\n1,=cmd|' /C calc'!A0\n"),
        ("plane", b"1,2,3\n"),
        ("plane", b"1,nan\n"),
        ("plane", b"1,2\n" * 1001),
        ("plane", b""),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(clients, kind, content):
    answer = upload(clients[kind], content)
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
    assert answer.json()["error"].startswith(("your file", "line", "sample", "cannot read your file"))
    assert "/tmp" not in answer.text


def test_an_image_of_too_many_pixels_is_refused_before_it_is_unpacked(clients):
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < LARGEST_UPLOAD
    assert upload(clients["images"], bomb.getvalue()).status_code == 400


@KINDS
def test_too_large_uploads_are_given_up(clients, kind):
    parts = (b"0" * 1_000_000 for _ in range(100))  # streamed, its length not told
    answer = upload(clients[kind], parts)
    assert answer.status_code == 413 and "too large" in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/samples?seed=-1", 400),
        ("/api/samples?seed=1e3", 400),
        ("/api/samples?seed=" + "9" * 5000, 400),
        ("/api/samples?seed=<script>", 400),
        ("/api/walk?from=64&to=0", 400),
        ("/api/score", 405),
        ("/../../pyproject.toml", 404),
    ],
)
def test_odd_questions_are_refused(clients, path, status):
    assert clients["images"].get(path).status_code == status


def test_other_sites_have_no_way_in(clients):
    client = clients["plane"]
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.post("/api/score", data={"x": "1"}).status_code == 415
    assert client.post("/api/score", content=b"1,2", headers={"content-type": "text/plain"}).status_code == 415
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers


def test_what_cannot_be_opened_is_said(tmp_path):
    with pytest.raises(BadInput, match="no run folder"):
        Explorer.open(str(tmp_path), "last", "cpu", None)


def test_a_port_that_is_taken_is_said(explorers, monkeypatch):
    monkeypatch.setattr(Explorer, "open", lambda *arguments: explorers["plane"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BadInput, match="name another --port"):
        explore("some run", device="cpu", port=taken.getsockname()[1])
