"""Distances between two sets of features, Frechet (FID) and kernel (KID), and a cache for the real images."""

import contextlib
import hashlib
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.linalg
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ebmbounds.errors import BadInput, unknown
from ebmbounds.metrics import inception

KEPT = 10_000
"""How many of the reference set's features are kept for KID and for precision and recall."""


@dataclass(frozen=True)
class Protocol:
    """How an FID is taken: scores of different protocols do not compare."""

    name: str
    samples: int
    split: str


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("samples10k-test", 10_000, "test"),  # the authors' code
        Protocol("samples50k-train", 50_000, "train"),  # usual elsewhere
    )
}


def fid_protocol(name: str) -> Protocol:
    """The protocol of that name."""
    if name not in PROTOCOLS:
        raise unknown("FID protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


@dataclass(frozen=True, eq=False)
class Statistics:
    """The Gaussian fitted to a set of features."""

    mean: NDArray[np.float64]
    """(d,)"""
    cov: NDArray[np.float64]
    """(d, d), unbiased."""


def statistics(features: NDArray) -> Statistics:
    """Mean and covariance of features (n, d), in float64 whatever they come in."""
    if features.ndim != 2 or len(features) < 2:
        raise BadInput(f"features of shape {features.shape} have no covariance: give two or more rows (n, d).")
    mean = features.mean(axis=0, dtype=np.float64)
    cov = np.zeros((features.shape[1], features.shape[1]))
    for start in range(0, len(features), 5000):  # so that 50,000 features need no second copy in float64
        centred = features[start : start + 5000] - mean
        cov += centred.T @ centred
    return Statistics(mean, cov / (len(features) - 1))


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """|mean_a - mean_b|^2 + tr(A + B - 2 (AB)^(1/2)) of the covariances A and B (Heusel et al., 2017).

    With A = F F' and B = G G' the trace of (AB)^(1/2) is the sum of the singular values of F'G: no root of a
    product, so singular covariances (fewer images than features) lose no digits.
    """
    if a.mean.shape != b.mean.shape:
        raise BadInput(
            f"features of {a.mean.size} and of {b.mean.size} dimensions have no distance: "
            "use one network for both sets."
        )
    cross = scipy.linalg.svdvals(_factor(a.cov).T @ _factor(b.cov)).sum()
    shift = a.mean - b.mean
    return max(0.0, float(shift @ shift + np.trace(a.cov) + np.trace(b.cov) - 2 * cross))


def _factor(cov: NDArray[np.float64]) -> NDArray[np.float64]:
    """F with F F' = cov: Cholesky's, several times faster than eigenvectors, unless cov is as good as singular."""
    rounding = np.finfo(np.float64).eps * len(cov)
    with contextlib.suppress(np.linalg.LinAlgError):
        triangle = scipy.linalg.cholesky(cov, lower=True)
        if triangle.diagonal().min() ** 2 > rounding * cov.diagonal().max():
            return triangle
    values, vectors = scipy.linalg.eigh(cov)
    # Eigenvalues within rounding of zero are zero: the root would make 1e-8 of 1e-16.
    return vectors * np.sqrt(np.where(values > rounding * values.max(), values, 0))


def kernel_distance(
    a: NDArray, b: NDArray, *, subsets: int = 100, subset_size: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """KID (Binkowski et al., 2018): unbiased squared MMD under the kernel (x.y/d + 1)^3.

    Mean and standard deviation over random subsets of the features (n, d) and (m, d).
    """
    size = min(subset_size, len(a), len(b))
    if size < 2:
        raise BadInput(f"KID needs two features or more of each set, got {len(a)} and {len(b)}.")
    random = np.random.default_rng(seed)
    distances = [
        _squared_mmd(a[random.choice(len(a), size, replace=False)], b[random.choice(len(b), size, replace=False)])
        for _ in range(subsets)
    ]
    return float(np.mean(distances)), float(np.std(distances))


def _squared_mmd(x: NDArray, y: NDArray) -> float:
    n, d = x.shape
    xx, yy, xy = ((u @ v.T / d + 1.0).astype(np.float64) ** 3 for u, v in ((x, x), (y, y), (x, y)))
    within = (xx.sum() - np.trace(xx) + yy.sum() - np.trace(yy)) / (n * (n - 1))
    return float(within - 2 * xy.mean())


@dataclass(frozen=True, eq=False)
class Reference:
    """What scores need to know of the real images."""

    statistics: Statistics
    """Of all of them."""
    features: NDArray[np.float32]
    """Of KEPT of them, or of all where there are fewer."""


def reference(
    images: ArrayLike | Tensor,
    network: inception.Inception,
    *,
    cache: Path,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Reference:
    """Statistics and features of the real images, uint8 (n, c, h, w), computed once and kept in `cache`.

    The file is named by the content of the images and of the network, so it cannot be out of date.
    """
    pixels = np.ascontiguousarray(torch.as_tensor(images).cpu().numpy())
    key = hashlib.sha256(f"{network.sha256} {pixels.dtype} {pixels.shape}".encode())
    key.update(pixels.data)
    file = cache / f"inception-{key.hexdigest()[:32]}.npz"
    try:
        with np.load(file, allow_pickle=False) as kept:
            return Reference(Statistics(kept["mean"], kept["cov"]), kept["features"])
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        pass  # none yet, or one that another program spoiled: it is replaced below
    features = inception.features(pixels, network, device=device, progress=progress)
    some = features[np.random.default_rng(0).permutation(len(features))[:KEPT]]
    made = Reference(statistics(features), some)
    _write(file, made)
    return made


def _write(file: Path, made: Reference) -> None:
    """Write the file whole or not at all, whoever else writes it at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as part:
            np.savez(part, mean=made.statistics.mean, cov=made.statistics.cov, features=made.features)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
