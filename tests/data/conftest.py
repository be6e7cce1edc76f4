"""The published data sets: small ones with the published layout."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat


def pytest_make_parametrize_id(val, argname):
    """Bytes name no test: gzip stamps them with the time, so each process would see other tests."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture
def published(tmp_path) -> Path:
    """A data folder with every set in its published layout, 8 images a file, 10 for training on MNIST."""
    draw = np.random.default_rng(0)
    root = tmp_path / "published"

    def place(name: str, content: bytes) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def idx(values: np.ndarray) -> bytes:
        values = values.astype(np.uint8)
        return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()

    for kind, count in (("train", 10), ("t10k", 8)):
        images, labels = idx(draw.integers(256, size=(count, 28, 28))), idx(draw.integers(10, size=count))
        place(f"MNIST/raw/{kind}-images-idx3-ubyte", images)
        place(f"MNIST/raw/{kind}-labels-idx1-ubyte", labels)
        place(f"FashionMNIST/raw/{kind}-images-idx3-ubyte.gz", gzip.compress(images))
        place(f"FashionMNIST/raw/{kind}-labels-idx1-ubyte.gz", gzip.compress(labels))

    pixels = draw.integers(256, size=(8, 3072)).astype(np.uint8)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        place(f"cifar-10-batches-py/{name}", pickle.dumps({b"data": pixels, b"labels": [*range(8)]}, 2))
    for name in ("train", "test"):
        place(f"cifar-100-python/{name}", pickle.dumps({"data": pixels, "fine_labels": [*range(92, 100)]}, 4))

    (root / "svhn").mkdir()
    for name in ("train", "test"):
        content = {"X": pixels.reshape(8, 32, 32, 3).transpose(1, 2, 3, 0), "y": np.arange(3, 11)[:, None]}
        savemat(root / f"svhn/{name}_32x32.mat", content, do_compression=name == "train")

    (root / "animeface").mkdir()
    for i in range(20):
        Image.new("RGB", (64, 64), (i, 2 * i, 3 * i)).save(root / f"animeface/{i}.png")
    return root
