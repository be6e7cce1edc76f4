"""StackedMNIST: three digits as the three channels of one image, hence 1,000 modes."""

import numpy as np

# 128,000 as in the papers that count modes; for testing, as many as the samples whose modes are counted.
COUNTS = {"train": 128_000, "test": 26_000}


def stack(images: np.ndarray, labels: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` random triples of the images (N, 1, H, W) with labels (N,) from 0 to 9.

    Returns images (count, 3, H, W) and labels (count,) from 0 to 999: digits a, b, c give 100a + 10b + c.
    """
    triples = np.random.default_rng(seed).integers(len(images), size=(count, 3))
    return images[:, 0][triples], labels[triples] @ np.array([100, 10, 1])
