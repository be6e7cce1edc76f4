"""Downloads against a server on this machine that can be told to misbehave."""

import hashlib
import io
import os
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from ebmbounds.data import catalog, download, registry
from ebmbounds.data.download import Remote, fetch_remote, unpack
from ebmbounds.errors import BadInput

CONTENT = os.urandom(300_000)
PIECE = 2**16  # what is written at a time


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; breaks the next transfers off after the numbers of bytes in `breaks`."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.breaks: list[int] = []
        self.knows_ranges = True
        self.requests: list[tuple[str, str | None]] = []

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        content = self.server.files.get(self.path)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.knows_ranges else 0
        if content is None or (start and start >= len(content)):
            self.send_error(404 if content is None else 416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = start + self.server.breaks.pop(0) if self.server.breaks else None
        self.wfile.write(content[start:stop])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def remote(server):
    return Remote("sub/file", sha256(CONTENT), (server.address("/file"),))


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_file_arrives_whole(tmp_path, server, remote):
    fetch_remote(remote, tmp_path)
    assert (tmp_path / "sub/file").read_bytes() == CONTENT
    assert everything(tmp_path) == ["sub/file"]
    assert server.requests == [("/file", None)]


def test_a_broken_transfer_goes_on_where_it_broke_off(tmp_path, server, remote):
    server.breaks = [2 * PIECE]
    fetch_remote(remote, tmp_path)
    assert (tmp_path / "sub/file").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, f"bytes={2 * PIECE}-"]


def test_the_next_call_goes_on_too(tmp_path, server, remote):
    server.breaks = [PIECE, PIECE]
    with pytest.raises(BadInput, match="try again later"):
        fetch_remote(remote, tmp_path)
    assert everything(tmp_path) == ["sub/file.part"]  # never under its own name
    fetch_remote(remote, tmp_path)
    assert everything(tmp_path) == ["sub/file"]
    assert server.requests[-1] == ("/file", f"bytes={2 * PIECE}-")


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"!", b"of another file"])
@pytest.mark.parametrize("knows_ranges", [True, False])
def test_whatever_part_is_left_the_file_is_right(tmp_path, server, remote, part, knows_ranges):
    server.knows_ranges = knows_ranges
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/file.part").write_bytes(part)
    fetch_remote(remote, tmp_path)
    assert (tmp_path / "sub/file").read_bytes() == CONTENT
    assert everything(tmp_path) == ["sub/file"]


def test_a_wrong_checksum_leaves_nothing(tmp_path, server, remote):
    with pytest.raises(BadInput, match="wrong checksum"):
        fetch_remote(replace(remote, sha256=sha256(b"another")), tmp_path)
    assert everything(tmp_path) == []


def test_a_mirror_takes_over(tmp_path, server, remote):
    server.files["/changed"] = b"changed"
    others = (server.address("/gone"), server.address("/changed"), "http://127.0.0.1:9/closed")
    fetch_remote(replace(remote, addresses=(*others, *remote.addresses)), tmp_path)
    assert (tmp_path / "sub/file").read_bytes() == CONTENT


def test_offline_it_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    remote = Remote("sub/file", sha256(CONTENT), ("http://127.0.0.1:9/file",))
    with pytest.raises(BadInput) as caught:
        fetch_remote(remote, tmp_path)
    assert remote.addresses[0] in str(caught.value) and f"put it at {tmp_path / 'sub/file'}" in str(caught.value)
    assert everything(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path, remote):
    (tmp_path / "sub").write_text("a file in the way")
    with pytest.raises(BadInput, match="sub"):
        fetch_remote(remote, tmp_path)


def test_progress(tmp_path, remote, capfd):
    pytest.importorskip("tqdm")
    fetch_remote(remote, tmp_path, progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "100%" in err


def tar(**entries: bytes | tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in entries.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("d/a")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


def test_an_archive_gives_its_members_and_goes(tmp_path, server):
    server.files["/x.tar.gz"] = content = tar(**{"d/a": b"A", "d/readme.html": b"?", "d/b": b"B"})
    remote = Remote("x.tar.gz", sha256(content), (server.address("/x.tar.gz"),), ("d/a", "d/b"))
    fetch_remote(remote, tmp_path)
    assert everything(tmp_path) == ["d/a", "d/b"]
    assert (tmp_path / "d/b").read_bytes() == b"B"


def test_an_archive_that_the_user_supplies_stays(tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(tar(**{"d/a": b"A"}))
    fetch_remote(Remote("x.tar.gz", "", ("http://127.0.0.1:9/",), ("d/a",)), tmp_path)
    assert everything(tmp_path) == ["d/a", "x.tar.gz"]


@pytest.mark.parametrize(
    "content, says",
    [
        (tar(**{"d/a": b"A", "../evil": b"!"}), "'../evil' is a link or leads outside"),
        (tar(**{"d/a": b"A", "d/../../evil": b"!"}), "leads out"),
        (tar(**{"d/a": b"A", "/evil": b"!"}), "leads out"),
        (tar(first=link(tarfile.SYMTYPE), **{"d/a": b"A"}), "leads out"),
        (tar(first=link(tarfile.LNKTYPE)), "leads out"),
        (tar(first=link(tarfile.FIFOTYPE)), "leads out"),
        (tar(**{"d/a": bytes(2_000_000)}), "unpacks to more than"),
        (tar(**{"d/b": b"B"}), "has no d/a"),
        (tar(**{"d/a": os.urandom(9000)})[:-4000], "cannot unpack"),
        (b"<html>", "cannot unpack"),
        (b"", "cannot unpack"),
    ],
)
def test_a_hostile_archive_writes_nothing(tmp_path, monkeypatch, content, says):
    monkeypatch.setattr(download, "MOST_UNPACKED", 1_000_000)
    root = tmp_path / "root"
    root.mkdir()
    archive = root / "x.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        unpack(archive, root, ("d/a",))
    assert str(archive) in str(caught.value) and says in str(caught.value)
    assert everything(tmp_path) == ["root/x.tar.gz"] and os.listdir(root) == ["x.tar.gz"]


def test_fetch_brings_only_what_is_missing(published, tmp_path, server, monkeypatch):
    """Through the registry, with the published files served from here: a set that can then be read."""
    known = catalog.IMAGE_SETS["fashionmnist"]
    remotes = []
    for remote in known.remotes:
        server.files["/" + remote.path] = content = (published / remote.path).read_bytes()
        remotes.append(replace(remote, sha256=sha256(content), addresses=(server.address("/" + remote.path),)))
    monkeypatch.setitem(catalog.IMAGE_SETS, "fashionmnist", replace(known, remotes=tuple(remotes)))
    root = tmp_path / "fresh"
    held = registry.fetch("fashionmnist", root)
    assert len(held.present) == 4 and not held.missing
    np.testing.assert_array_equal(
        registry.load_images("fashionmnist", "train", root).images,
        registry.load_images("fashionmnist", "train", published).images,
    )
    (root / remotes[2].path).unlink()
    server.requests.clear()
    registry.fetch("fashionmnist", root)
    assert server.requests == [("/" + remotes[2].path, None)]
