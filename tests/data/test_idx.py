import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmbounds.data.idx import read_idx, read_pair
from ebmbounds.errors import BadInput

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def idx(*shape: int, body: bytes = b"", magic: bytes = b"") -> bytes:
    return (magic or bytes([0, 0, 8, len(shape)])) + struct.pack(f">{len(shape)}I", *shape) + body


GOOD = idx(2, 3, 4, body=IMAGES.tobytes())


@pytest.mark.parametrize("name, content", [("plain", GOOD), ("a.gz", gzip.compress(GOOD)), ("unpacked.gz", GOOD)])
def test_reads_plain_and_gzipped_whatever_the_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    values = read_idx(tmp_path / name, 3)
    assert values.dtype == np.uint8
    np.testing.assert_array_equal(values, IMAGES)


def test_pair_has_a_channel(tmp_path):
    (tmp_path / "x").write_bytes(GOOD)
    (tmp_path / "y").write_bytes(idx(2, body=b"\x07\x09"))
    images, labels = read_pair(tmp_path / "x", tmp_path / "y")
    assert images.shape == (2, 1, 3, 4)
    assert labels.tolist() == [7, 9]


@pytest.mark.parametrize(
    "content, says",
    [
        (b"", "starts with the bytes (none)"),
        (b"<html>not found</html>", "3c68746d"),
        (idx(24, body=bytes(24)), "00000801"),
        (GOOD[:9], "ends within its header"),
        (GOOD[:-1], "23 follow"),
        (GOOD + b"!", "more follow"),
        (gzip.compress(GOOD)[:-9], "cannot read"),
        (gzip.compress(GOOD)[:10] + b"\xff" * 40, "cannot read"),
        (idx(0, 28, 28), "claims 0 bytes"),
        (idx(2**32 - 1, 2**32 - 1, 0), "claims 0 bytes"),
        (idx(2**32 - 1, 2**32 - 1, 2**32 - 1), "expected 1 to"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, says):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value) and says in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_header_that_lies_takes_no_memory(tmp_path, pack):
    path = tmp_path / "lie"
    path.write_bytes(pack(idx(1_000_000, 28, 28, body=bytes(1000))))  # 784 MB of which 1000 bytes are there
    tracemalloc.start()
    with pytest.raises(BadInput, match="1,000 follow"):
        read_idx(path, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def test_what_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(BadInput, match="missing"):
        read_idx(tmp_path / "missing", 3)
    with pytest.raises(BadInput, match="directory"):
        read_idx(tmp_path, 3)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_bytes_give_an_array_or_a_sentence(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.idx"
    ndim = data.draw(st.integers(1, 3))
    shape = data.draw(st.lists(st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1)), min_size=ndim, max_size=ndim))
    content = data.draw(st.one_of(st.binary(), st.binary(max_size=70).map(lambda body: idx(*shape, body=body))))
    path.write_bytes(data.draw(st.sampled_from([bytes, gzip.compress]))(content))
    try:
        assert read_idx(path, ndim).tobytes() == content[4 + 4 * ndim :]
    except BadInput as error:
        assert str(path) in str(error)
