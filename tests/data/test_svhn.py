import os

import numpy as np
import pytest
from scipy.io import savemat

from ebmbounds.data.registry import load_images
from ebmbounds.data.svhn import read_mat
from ebmbounds.errors import BadInput

X = np.arange(32 * 32 * 3 * 2).astype(np.uint8).reshape(32, 32, 3, 2)
Y = np.array([[10], [3]], np.uint8)


def write(tmp_path, **variables):
    path = tmp_path / "test_32x32.mat"
    savemat(path, variables, do_compression=True)
    return path


@pytest.mark.parametrize("labels", [Y, Y.astype(float), Y.T])
def test_reads_images_and_labels_with_ten_for_zero(tmp_path, labels):
    images, found = read_mat(write(tmp_path, X=X, y=labels))
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images[1, 2], X[:, :, 2, 1])
    assert found.tolist() == [0, 3]


@pytest.mark.parametrize(
    "variables, says",
    [
        ({"y": Y}, "'X'"),
        ({"X": X}, "'y'"),
        ({"X": X.astype(float), "y": Y}, "float64"),
        ({"X": X[:, :31], "y": Y}, "(32, 31, 3, 2)"),
        ({"X": X, "y": Y[:1]}, "2 labels"),
        ({"X": X, "y": Y + 1}, "1 to 10"),
        ({"X": X, "y": Y + 0.5}, "1 to 10"),
        ({"X": X, "y": Y * np.nan}, "1 to 10"),
        ({"X": X, "y": np.array([["a"], ["b"]], dtype=object)}, "2 labels"),
        ({"X": {"a": X}, "y": Y}, "shape (0,)"),
    ],
)
def test_a_bad_file_is_named(tmp_path, variables, says):
    path = write(tmp_path, **variables)
    with pytest.raises(BadInput) as caught:
        read_mat(path)
    assert str(path) in str(caught.value) and says in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"short", os.urandom(500), b"\x89HDF\r\n\x1a\n" + bytes(600)])
def test_what_is_no_mat_file_is_named(tmp_path, content):
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="train_32x32"):
        read_mat(path)


def test_truncated_and_missing_files_are_named(tmp_path):
    path = write(tmp_path, X=X, y=Y)
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(BadInput, match="test_32x32"):
        read_mat(path)
    with pytest.raises(BadInput, match="No such file"):
        read_mat(tmp_path / "missing.mat")


def test_a_header_that_lies_is_refused(tmp_path):
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": X, "y": Y})
    content = path.read_bytes()
    for honest, lie in (((32, 32, 3, 2), (32, 32, 3, 10**6)), ((2, 1), (10**6, 1))):
        content = content.replace(np.int32(honest).tobytes(), np.int32(lie).tobytes())
    path.write_bytes(content)
    with pytest.raises(BadInput, match="has 6144 numbers"):
        read_mat(path)


@pytest.mark.data
def test_the_real_svhn(real_data):
    test = load_images("svhn", "test", real_data)
    assert test.images.shape == (26_032, 3, 32, 32)
    # Digits per class as published: ones are the most frequent, zeros 1,744.
    assert np.bincount(test.labels).tolist() == [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
