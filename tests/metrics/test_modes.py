"""Mode counting: figures of a perfect sampler, and the shipped classifier on the real digits."""

import os
from pathlib import Path

import numpy as np
import pytest

from ebmbounds.data.registry import load_images
from ebmbounds.errors import BadInput
from ebmbounds.metrics.mnist_classifier import WEIGHTS, classify_digits, train_digit_network
from ebmbounds.metrics.modes import (
    MODES,
    SAMPLES,
    count_modes,
    data_frequencies,
    divergence,
    image_modes,
    mode_counts,
)

needs_data = pytest.mark.skipif("EBMBOUNDS_DATA" not in os.environ, reason="EBMBOUNDS_DATA names no data folder")

DIGITS = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
"""How often each digit occurs in MNIST's training set."""


def stacked_labels(count: int, seed: int = 0) -> np.ndarray:
    """Labels of random triples of MNIST's digits."""
    digits = np.random.default_rng(seed).choice(10, (count, 3), p=DIGITS / DIGITS.sum())
    return digits @ np.array([100, 10, 1])


def test_frequencies_are_products_of_those_of_the_digits():
    p = DIGITS / DIGITS.sum()
    found = data_frequencies(stacked_labels(128_000))
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found, np.einsum("a,b,c->abc", p, p, p).ravel(), rtol=0.05)


def test_perfect_sampler_meets_the_floors():
    drawn = mode_counts(stacked_labels(SAMPLES, seed=1))
    found = count_modes(drawn, data_frequencies(stacked_labels(128_000)))
    assert found.modes == MODES and found.samples == SAMPLES
    assert found.kl_floor == pytest.approx(999 / 52_000, rel=0.03)
    assert found.kl_uniform_floor == pytest.approx(0.024, abs=0.001)
    assert found.kl == pytest.approx(found.kl_floor, abs=0.003)
    assert found.kl_uniform == pytest.approx(found.kl_uniform_floor, abs=0.003)


def test_collapse_to_one_mode():
    counts = mode_counts(np.full(SAMPLES, 123))
    found = count_modes(counts, np.full(MODES, 1 / MODES))
    assert found.modes == 1
    assert found.kl == found.kl_uniform == pytest.approx(np.log(1000))


def test_divergence_is_zero_for_the_same_and_infinite_outside():
    assert divergence(np.array([1, 3]), np.array([0.25, 0.75])) == 0
    assert divergence(np.array([1, 3]), np.array([0.0, 1.0])) == np.inf


def test_no_samples_are_refused():
    with pytest.raises(BadInput, match="without samples"):
        count_modes(np.zeros(MODES, int), np.full(MODES, 1 / MODES))


@pytest.mark.parametrize("shape", [(4, 3, 32, 32), (4, 28, 28)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(BadInput, match="28, 28"):
        image_modes(np.zeros(shape, np.uint8))


def test_gray_images_have_no_modes():
    with pytest.raises(BadInput, match="3 channels"):
        image_modes(np.zeros((2, 1, 28, 28), np.uint8))


def test_weights_are_small():
    assert WEIGHTS.stat().st_size < 1_000_000


def test_training_follows_the_seed():
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (64, 1, 28, 28), np.uint8), random.integers(0, 10, 64)
    first, again, other = (
        train_digit_network(images, labels, epochs=1, batch_size=32, seed=seed).state_dict()["12.bias"]
        for seed in (0, 0, 1)
    )
    assert first.equal(again) and not first.equal(other)


@pytest.mark.data
@needs_data
def test_classifier_reads_mnist():
    test = load_images("mnist", "test", Path(os.environ["EBMBOUNDS_DATA"]))
    assert (classify_digits(test.images)[:, 0] == test.labels).mean() >= 0.992


@pytest.mark.data
@needs_data
def test_modes_of_real_stacked_digits():
    test = load_images("stackedmnist", "test", Path(os.environ["EBMBOUNDS_DATA"]))
    modes = image_modes(test.images[:3000])
    assert (modes == test.labels[:3000]).mean() >= 0.97  # three digits, each right in 99.2%
