"""Frechet and kernel distances: closed forms, singular covariances, and the cache of the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmbounds.errors import BadInput
from ebmbounds.metrics import inception
from ebmbounds.metrics.frechet import (
    Statistics,
    _factor,
    fid_protocol,
    frechet_distance,
    kernel_distance,
    reference,
    statistics,
)
from ebmbounds.metrics.inception import Inception


def gaussians(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def test_statistics_are_those_of_numpy_in_float64():
    x = (gaussians(12_000, 7) + 100).astype(np.float32)  # more than one chunk
    found = statistics(x)
    assert found.mean.dtype == found.cov.dtype == np.float64
    np.testing.assert_allclose(found.mean, x.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.cov, np.cov(x.astype(np.float64), rowvar=False), rtol=1e-9, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 300), st.integers(1, 100), st.integers(0, 5))
def test_distance_to_itself_is_zero(n, d, seed):
    """Also where fewer images than features make the covariance singular."""
    found = statistics(gaussians(n, d, seed))
    assert frechet_distance(found, found) == pytest.approx(0, abs=1e-9)


def test_two_gaussians_whose_covariances_commute():
    rotation, _ = np.linalg.qr(gaussians(30, 30))
    a, b = np.linspace(0, 2, 30), np.linspace(3, 1, 30)
    shift = gaussians(1, 30, seed=1)[0]
    first = Statistics(np.zeros(30), rotation @ np.diag(a) @ rotation.T)
    second = Statistics(shift, rotation @ np.diag(b) @ rotation.T)
    exact = shift @ shift + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    assert frechet_distance(first, second) == pytest.approx(exact, rel=1e-10)


def test_two_gaussians_that_do_not_commute():
    """In two dimensions tr (AB)^(1/2) = (tr AB + 2 sqrt(det AB))^(1/2)."""
    a, b = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, -0.8], [-0.8, 3.0]])
    product = a @ b
    exact = np.trace(a) + np.trace(b) - 2 * np.sqrt(np.trace(product) + 2 * np.sqrt(np.linalg.det(product)))
    zero = np.zeros(2)
    assert frechet_distance(Statistics(zero, a), Statistics(zero, b)) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize(("n", "triangular"), [(100, True), (30, False)])
def test_a_covariance_is_taken_apart(n, triangular):
    """By Cholesky, or where fewer images than features make it singular by eigenvectors."""
    cov = statistics(gaussians(n, 40)).cov
    factor = _factor(cov)
    np.testing.assert_allclose(factor @ factor.T, cov, atol=1e-12)
    assert np.array_equal(factor, np.tril(factor)) == triangular
    assert np.linalg.matrix_rank(factor) == min(n - 1, 40)


def test_distance_is_symmetric():
    a, b = statistics(gaussians(40, 60)), statistics(gaussians(50, 60, 1) * 2 + 1)
    assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-9)


def test_kernel_distance_is_unbiased():
    """Zero on average for two samples of one distribution, though each subset's may be negative."""
    x, y = gaussians(4000, 16), gaussians(4000, 16, 1)
    mean, std = kernel_distance(x, y, subsets=50, subset_size=200)
    assert abs(mean) < 4 * std / np.sqrt(50)
    assert kernel_distance(x, y + 0.5, subsets=10, subset_size=200)[0] > 5 * std


def test_kernel_distance_of_a_tiny_set_by_hand():
    x, y = np.array([[0.0], [1.0]]), np.array([[1.0], [2.0]])
    expected = 1 + 27 - 2 * (1 + 1 + 8 + 27) / 4
    mean, std = kernel_distance(x, y, subsets=3)
    assert mean == pytest.approx(expected) and std == pytest.approx(0)


def test_kernel_distance_follows_the_seed_and_is_precise_in_float32():
    x, y = gaussians(500, 64), gaussians(500, 64, 1) + 0.1
    kid = kernel_distance(x, y, subsets=5, subset_size=100)
    assert kid == kernel_distance(x, y, subsets=5, subset_size=100)
    single = kernel_distance(x.astype(np.float32), y.astype(np.float32), subsets=5, subset_size=100)
    assert single[0] == pytest.approx(kid[0], abs=1e-6)


def test_unusable_features_are_refused():
    with pytest.raises(BadInput, match="no covariance"):
        statistics(np.zeros((1, 8)))
    with pytest.raises(BadInput, match="3 and of 4 dimensions"):
        frechet_distance(statistics(gaussians(9, 3)), statistics(gaussians(9, 4)))
    with pytest.raises(BadInput, match="KID needs"):
        kernel_distance(np.zeros((1, 8)), np.zeros((5, 8)))


def test_protocols_have_names():
    assert fid_protocol("samples10k-test").samples == 10_000
    assert fid_protocol("samples50k-train").split == "train"
    with pytest.raises(BadInput, match="did you mean 'samples10k-test'"):
        fid_protocol("sample10k-test")


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Puts the pixels themselves in the place of Inception features; records how often they are asked for."""
    made = []

    def pixels(images, network, **options):
        made.append(len(images))
        return images.reshape(len(images), -1).astype(np.float32)

    monkeypatch.setattr(inception, "features", pixels)
    return made


def test_reference_is_computed_once_for_each_content(calls, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 2, 2), np.uint8)
    network = Inception(layers=None, classifier=None, sha256="a")
    first = reference(images, network, cache=tmp_path / "new")
    again = reference(images, network, cache=tmp_path / "new")
    np.testing.assert_array_equal(first.statistics.cov, again.statistics.cov)
    np.testing.assert_array_equal(first.features, again.features)
    assert calls == [20]
    reference(images ^ 1, network, cache=tmp_path / "new")
    reference(images, Inception(layers=None, classifier=None, sha256="b"), cache=tmp_path / "new")
    assert calls == [20, 20, 20]
    assert not list((tmp_path / "new").glob("*.part"))


def test_a_spoiled_cache_file_is_replaced(calls, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 2, 2), np.uint8)
    network = Inception(layers=None, classifier=None, sha256="a")
    reference(images, network, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    reference(images, network, cache=tmp_path)
    reference(images, network, cache=tmp_path)
    assert calls == [20, 20]
