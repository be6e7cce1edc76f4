"""Mode counting on StackedMNIST: images -> their modes -> how many are found, and how evenly.

The three digits of an image, read by a small classifier, make one of 1,000 modes. A finite sample misses the
frequencies even when its source is perfect, so each divergence comes with its floor: what a perfect sampler
gets, on average, with as many samples.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ebmbounds.errors import BadInput
from ebmbounds.metrics.mnist_classifier import classify_digits

MODES = 1000
SAMPLES = 26_000
"""Samples in the protocol of the paper (Kumar et al., 2019)."""


@dataclass(frozen=True)
class ModeCount:
    """Divergences are sum p log(p/q) in nats, of the samples' mode frequencies p and reference ones q."""

    modes: int
    """Modes with at least one sample."""
    kl: float
    """To the data's own mode frequencies."""
    kl_floor: float
    kl_uniform: float
    """To 1/1000 each."""
    kl_uniform_floor: float
    samples: int


def image_modes(
    images: ArrayLike | Tensor,
    *,
    batch_size: int = 250,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> NDArray[np.int64]:
    """The mode of each uint8 image (n, 3, 28, 28), 0 to 999: digits a, b, c give 100a + 10b + c."""
    digits = classify_digits(images, batch_size=batch_size, device=device, progress=progress)
    if digits.shape[1] != 3:
        raise BadInput(f"images of {digits.shape[1]} channels have no modes: StackedMNIST has 3 channels.")
    return digits @ np.array([100, 10, 1])


def mode_counts(modes: NDArray[np.integer]) -> NDArray[np.int64]:
    """How often each of the 1,000 modes occurs (1000,) among the modes (n,) of images."""
    return np.bincount(modes, minlength=MODES)


def data_frequencies(labels: NDArray[np.integer]) -> NDArray[np.float64]:
    """Frequencies of the 1,000 modes (1000,) in the data, from its labels (n,).

    The digits of a triple are drawn independently, so these are products of the digits' own frequencies.
    Counted directly, the 128,000 triples would add their own noise to a perfect sampler: 0.004 nats.
    """
    digits = labels[:, None] // np.array([100, 10, 1]) % 10
    p = np.bincount(digits.ravel(), minlength=10) / digits.size
    return (p[:, None, None] * p[:, None] * p).ravel()


def divergence(counts: NDArray, frequencies: NDArray) -> float:
    """KL in nats from counts (k,), normalised, to frequencies (k,)."""
    p = counts / counts.sum()
    found = p > 0
    with np.errstate(divide="ignore"):  # a mode that the reference lacks: infinite, as it should be
        return float((p[found] * np.log(p[found] / frequencies[found])).sum())


def count_modes(counts: NDArray, data: NDArray, *, simulations: int = 100, seed: int = 0) -> ModeCount:
    """The modes of samples with these counts (1000,), against the data's mode frequencies (1000,).

    The floors are means over simulated perfect samplers, which draw as many modes from the data's own
    frequencies. To those the floor is close to (K - 1)/(2n), with K = 1000 modes and n samples.
    """
    samples = int(counts.sum())
    if samples == 0:
        raise BadInput("no modes can be counted without samples: give at least one image.")
    uniform = np.full(MODES, 1 / MODES)
    perfect = np.random.default_rng(seed).multinomial(samples, data, size=simulations)
    return ModeCount(
        modes=int((counts > 0).sum()),
        kl=divergence(counts, data),
        kl_floor=float(np.mean([divergence(drawn, data) for drawn in perfect])),
        kl_uniform=divergence(counts, uniform),
        kl_uniform_floor=float(np.mean([divergence(drawn, uniform) for drawn in perfect])),
        samples=samples,
    )
