"""Detection by energy: its symmetries, its protocol, and figures that Gaussians give in closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ebmbounds.errors import BadInput
from ebmbounds.metrics.ood import both_orientations, detection

# Few distinct values, so that ties occur.
energies = arrays(np.float64, st.integers(2, 40), elements=st.integers(-5, 5).map(float))


def gaussian_energies(count_in: int = 10_000, count_ood: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """Unit Gaussians this far apart have AUROC 0.88: it is Phi(1.6617 / sqrt 2)."""
    random = np.random.default_rng(0)
    return random.normal(0, 1, count_in), random.normal(1.6617, 1, count_ood)


def test_figures_of_two_gaussians():
    found = detection(*gaussian_energies())
    assert found.auroc == pytest.approx(0.88, abs=0.01)
    assert found.auprc == pytest.approx(0.88, abs=0.01)
    assert found.fpr80 == pytest.approx(0.2062, abs=0.015)  # 1 - Phi(1.6617 - 0.8416)
    assert found.fpr95 == pytest.approx(0.4932, abs=0.02)  # 1 - Phi(1.6617 - 1.6449)


def test_the_larger_set_is_cut_to_balance():
    found = detection(*gaussian_energies(10_000, 26_032))
    assert found.count == 10_000
    assert found.auprc == pytest.approx(0.88, abs=0.01)  # 0.95 were all 26,032 used
    assert detection(*gaussian_energies(300, 26_032)).count == 300


def test_the_subset_follows_the_seed():
    sets = gaussian_energies(30_000, 30_000)
    assert detection(*sets, seed=3) == detection(*sets, seed=3)
    assert detection(*sets, seed=3) != detection(*sets, seed=4)


@settings(max_examples=40, deadline=None)
@given(energies, energies)
def test_auroc_flips_under_negation(inside, outside):
    plain, negated = detection(inside, outside), detection(-inside, -outside)
    assert plain.auroc + negated.auroc == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(energies, energies)
def test_numbers_are_shares(inside, outside):
    found = detection(inside, outside)
    assert all(0 <= value <= 1 for value in (found.auroc, found.auprc, found.fpr80, found.fpr95))
    assert found.fpr80 <= found.fpr95


@settings(max_examples=40, deadline=None)
@given(energies, energies)
def test_exchanging_the_classes_keeps_auroc(inside, outside):
    both = both_orientations(inside, outside)
    assert both["ood"].auroc == pytest.approx(both["in-distribution"].auroc)


def test_exchanging_the_classes_changes_the_rest():
    inside, outside = gaussian_energies()
    both = both_orientations(inside, 2 * outside - 1.6617)  # the same mean, twice the deviation
    assert both["ood"].fpr80 == pytest.approx(0.5086, abs=0.02)  # 1 - Phi(1.6617 - 2 * 0.8416)
    assert both["in-distribution"].fpr80 == pytest.approx(0.3409, abs=0.02)  # Phi((0.8416 - 1.6617) / 2)


def test_perfect_and_constant_energies():
    perfect = detection(np.zeros(50), np.ones(50))
    assert (perfect.auroc, perfect.auprc, perfect.fpr80, perfect.fpr95) == (1, 1, 0, 0)
    constant = detection(np.zeros(50), np.zeros(50))
    assert (constant.auroc, constant.fpr80, constant.fpr95) == (0.5, 1, 1)


@pytest.mark.parametrize(
    ("inside", "message"),
    [([], "no in-distribution energies"), ([1.0, np.nan, np.inf], "2 of 3 in-distribution energies")],
)
def test_unusable_energies_are_refused(inside, message):
    with pytest.raises(BadInput, match=message):
        detection(inside, [1.0, 2.0])
