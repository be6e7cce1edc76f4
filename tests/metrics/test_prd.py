"""Precision and recall for distributions on sets whose answer is known."""

import numpy as np
import pytest

from ebmbounds.errors import BadInput
from ebmbounds.metrics.prd import f8_and_f1_8, max_f_beta, prd, precision_recall


def blobs(centres: list[float], count: int = 400, seed: int = 0) -> np.ndarray:
    """Features (count, 5) around points on a line, in equal shares."""
    random = np.random.default_rng(seed)
    return np.resize(centres, count)[:, None] + random.normal(0, 0.1, (count, 5))


def test_identical_sets_score_one():
    x = blobs([0, 5, 10, 15])
    f8, f1_8 = f8_and_f1_8(x, x)  # with all of its runs, angles and clusters
    assert f8 == pytest.approx(1, abs=1e-2)
    assert f1_8 == pytest.approx(1, abs=1e-2)


def test_disjoint_sets_score_zero():
    curve = prd(blobs([0, 5]), blobs([100, 105]), runs=1)
    assert max_f_beta(curve, 8) == pytest.approx(0, abs=1e-9)
    assert max_f_beta(curve, 1 / 8) == pytest.approx(0, abs=1e-9)


def test_dropped_modes_cost_recall_and_invented_ones_precision():
    few, many = blobs([0, 5]), blobs([0, 5, 10, 15], seed=1)
    dropped, invented = prd(generated=few, real=many, runs=1), prd(generated=many, real=few, runs=1)
    assert max_f_beta(dropped, 8) < 0.7 < max_f_beta(dropped, 1 / 8)
    assert max_f_beta(invented, 1 / 8) < 0.7 < max_f_beta(invented, 8)


def test_curve_of_two_histograms():
    """Half of the mass is shared: full precision at recall 1/2 at the most, and the reverse."""
    curve = precision_recall(generated=np.array([1.0, 0.0]), real=np.array([0.5, 0.5]))
    assert curve.precision.shape == curve.recall.shape == (1001,)
    assert curve.precision.max() == pytest.approx(1)
    assert curve.recall.max() == pytest.approx(0.5)
    assert max_f_beta(curve, 1) == pytest.approx(2 / 3, abs=1e-3)


def test_the_clustering_follows_the_seed():
    x, y = np.random.default_rng(0).normal(size=(2, 200, 5))
    first, again, other = (prd(x, y, runs=1, seed=seed) for seed in (0, 0, 7))
    np.testing.assert_array_equal(first.precision, again.precision)
    assert not np.array_equal(first.precision, other.precision)


def test_runs_side_by_side_are_the_runs_one_by_one():
    x, y = np.random.default_rng(0).normal(size=(2, 300, 8)).astype(np.float32)
    alone = [prd(x, y, runs=1, seed=seed) for seed in range(3, 9)]
    averaged = prd(x, y, runs=6, seed=3)
    np.testing.assert_array_equal(averaged.precision, np.mean([curve.precision for curve in alone], axis=0))
    np.testing.assert_array_equal(averaged.recall, np.mean([curve.recall for curve in alone], axis=0))


def test_unusable_sets_are_refused():
    with pytest.raises(BadInput, match="one size"):
        prd(blobs([0], 30), blobs([0], 31))
    with pytest.raises(BadInput, match="20 clusters"):
        prd(blobs([0], 5), blobs([0], 5))
