"""Precision and recall for distributions (Sajjadi et al., 2018).

Features -> histograms over clusters -> a curve -> F_8 and F_1/8.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import threadpool_limits

from ebmbounds.errors import BadInput


@dataclass(frozen=True, eq=False)
class Curve:
    """Precision as a function of recall: one point an angle."""

    precision: NDArray[np.float64]
    recall: NDArray[np.float64]


def together(generated: NDArray, real: NDArray) -> NDArray[np.float64]:
    """Generated and real features (n, d) as one array (2n, d), in the precision in which clustering is fastest."""
    if len(generated) != len(real):
        raise BadInput(
            f"precision and recall need sets of one size, got features of {len(generated)} generated and "
            f"{len(real)} real images: take as many of each."
        )
    return np.concatenate([generated, real], dtype=np.float64)


def cluster_histograms(
    features: NDArray[np.float64], *, clusters: int = 20, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of the first and of the second half of features (2n, d) in each cluster of them all."""
    if len(features) < clusters:
        raise BadInput(f"{len(features)} features cannot form {clusters} clusters: take more of them.")
    kmeans = MiniBatchKMeans(n_clusters=clusters, n_init=10, random_state=seed)
    first, second = np.split(kmeans.fit_predict(features), 2)
    return np.bincount(first, minlength=clusters) / len(first), np.bincount(second, minlength=clusters) / len(second)


def precision_recall(generated: NDArray, real: NDArray, *, angles: int = 1001) -> Curve:
    """The curve of two histograms (k,): at slope l, precision sum min(l p, q) and recall precision / l, where
    p is the real and q the generated one."""
    slopes = np.tan(np.linspace(1e-6, np.pi / 2 - 1e-6, angles))
    precision = np.minimum(slopes[:, None] * real, generated).sum(axis=1)
    return Curve(precision.clip(0, 1), (precision / slopes).clip(0, 1))


def prd(
    generated: NDArray,
    real: NDArray,
    *,
    clusters: int = 20,
    runs: int = 10,
    angles: int = 1001,
    seed: int = 0,
) -> Curve:
    """The curve of two sets of features (n, d), averaged over runs of the clustering."""
    features = together(generated, real)

    def curve(run: int) -> Curve:
        return precision_recall(*cluster_histograms(features, clusters=clusters, seed=seed + run), angles=angles)

    # Products with 20 centres are too thin to be shared out: a run takes one thread, and the runs share the cores.
    # OpenMP's limit is each thread's own, that of BLAS is the program's.
    own_limit = partial(threadpool_limits, 1, "openmp")
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count(), initializer=own_limit) as threads:
        curves = list(threads.map(curve, range(runs)))
    return Curve(
        np.mean([curve.precision for curve in curves], axis=0),
        np.mean([curve.recall for curve in curves], axis=0),
    )


def max_f_beta(curve: Curve, beta: float) -> float:
    """The best F_beta on the curve: F_8 weighs recall, F_1/8 precision."""
    weighted = beta**2 * curve.precision + curve.recall
    f = (1 + beta**2) * curve.precision * curve.recall / np.maximum(weighted, np.finfo(float).tiny)
    return float(f.max())


def f8_and_f1_8(generated: NDArray, real: NDArray, *, seed: int = 0) -> tuple[float, float]:
    """F_8 and F_1/8 of two sets of features, as in the paper: 20 clusters, 10 runs, 1001 angles."""
    curve = prd(generated, real, seed=seed)
    return max_f_beta(curve, 8), max_f_beta(curve, 1 / 8)
