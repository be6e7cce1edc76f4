"""Toy data: densities that integrate to 1, samples that follow them; and how models on them are judged."""

import math
from functools import cache

import pytest
import torch
from scipy import stats
from sklearn.datasets import make_moons, make_swiss_roll
from torch import Tensor

from ebmbounds.data.toy import TOYS, Gaussians, Toy
from ebmbounds.metrics.toy import best_temperature, good_samples, grid_energies, modes_found, normalise
from ebmbounds.noise import noise

ALL = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS.keys())
MIXTURES = pytest.mark.parametrize("name", ["25gaussians", "8gaussians"])


@cache
def grid_log_density(toy: Toy) -> tuple[Tensor, float]:
    """(resolution, resolution) in double precision, and the area of a cell."""
    points, area = toy.grid(torch.float64)
    log_p = torch.cat([toy.log_density(part) for part in points.split(20_000)])
    return log_p.reshape(toy.resolution, toy.resolution), area


# -- the distributions -----------------------------------------------------------------------------------------------


def test_the_names():
    assert set(TOYS) == {"25gaussians", "8gaussians", "swissroll", "moons", "checkerboard", "pinwheel"}
    assert all(toy.name == name and toy.shape == (2,) for name, toy in TOYS.items())


@ALL
def test_the_density_integrates_to_one(toy):
    log_p, area = grid_log_density(toy)
    assert float(log_p.exp().sum() * area) == pytest.approx(1, abs=1e-6)


@ALL
def test_the_density_integrates_to_one_on_another_grid(toy):
    """A grid that shares no points or cells with the package's own."""
    n = 1501 if isinstance(toy, Gaussians) else 301
    side = torch.linspace(-toy.extent, toy.extent, n + 1, dtype=torch.float64)[:-1] + toy.extent / n
    points = torch.cartesian_prod(side, side)
    mass = sum(float(toy.log_density(part).exp().sum()) for part in points.split(50_000))
    # The edges of the checkerboard cut through cells: an error of a cell's width along them.
    tolerance = 2e-2 if toy.name == "checkerboard" else 1e-6
    assert mass * (2 * toy.extent / n) ** 2 == pytest.approx(1, abs=tolerance)


@ALL
def test_the_entropy_is_that_of_samples(toy, double):
    log_p = toy.log_density(toy.draw(noise(0), 10_000))
    assert log_p.isfinite().all()
    error = float(log_p.std()) / 10_000**0.5
    assert toy.entropy() == pytest.approx(float(-log_p.mean()), abs=4 * error + 1e-6)


def test_entropies_in_closed_form():
    """Far apart, a mixture of k equal Gaussians has entropy log k + 1 + log(2 pi sigma^2)."""
    for name, modes, sigma in (("25gaussians", 25, 0.05 / 2.828), ("8gaussians", 8, 0.02 / 1.414)):
        expected = math.log(modes) + 1 + math.log(2 * math.pi * sigma**2)
        assert TOYS[name].entropy() == pytest.approx(expected, abs=1e-6)
    assert TOYS["25gaussians"].entropy() == pytest.approx(-2.01, abs=0.005)
    assert TOYS["checkerboard"].entropy() == pytest.approx(math.log(32), abs=1e-6)
    # The pinwheel's twist keeps areas, so its entropy is that of five straight arms: below that of arms apart.
    arms = math.log(5) + 1 + math.log(2 * math.pi * 0.6 * 0.2)
    assert arms - 0.1 < TOYS["pinwheel"].entropy() < arms


@ALL
def test_samples_follow_the_density(toy, double):
    """Chi-square over 50 x 50 squares of the box, those with few expected samples pooled."""
    n, bins = 20_000, 50
    log_p, area = grid_log_density(toy)
    per = toy.resolution // bins
    mass = (log_p.exp() * area).reshape(bins, per, bins, per).sum((1, 3)).flatten()
    x = toy.draw(noise(1), n)
    assert x.shape == (n, 2) and x.abs().max() < toy.extent
    cell = ((x + toy.extent) / (2 * toy.extent) * bins).long()
    found = torch.bincount(cell[:, 0] * bins + cell[:, 1], minlength=bins * bins).double()
    likely = mass * n >= 10
    expected = torch.cat((mass[likely] * n, (mass[~likely].sum() * n)[None]))
    observed = torch.cat((found[likely], found[~likely].sum()[None]))
    keep = expected > 0.5
    assert observed[~keep].sum() <= 3
    statistic = float(((observed - expected).square() / expected)[keep].sum())
    assert stats.chi2.sf(statistic, int(keep.sum()) - 1) > 1e-3


@ALL
def test_draws_are_a_function_of_the_noise(toy):
    assert torch.equal(toy.draw(noise(3), 50), toy.draw(noise(3), 50))
    assert not torch.equal(toy.draw(noise(3), 50), toy.draw(noise(3, step=1), 50))


def test_the_curves_are_scikit_learns(double):
    roll, t = make_swiss_roll(200, noise=0, random_state=0)
    u = torch.from_numpy(t) / (3 * math.pi) - 0.5
    assert float(u.min()) >= 0 and float(u.max()) <= 1
    found = TOYS["swissroll"].curve(u, torch.zeros(200, dtype=torch.int64))
    torch.testing.assert_close(found, torch.from_numpy(roll[:, [0, 2]]) / 5)

    theirs, which = make_moons(200, shuffle=False, noise=None)
    u = torch.linspace(0, 1, 100).repeat(2)
    found = TOYS["moons"].curve(u, torch.from_numpy(which))
    torch.testing.assert_close(found, 2 * (torch.from_numpy(theirs) - torch.tensor([0.5, 0.25])))


# -- likelihood of a model -------------------------------------------------------------------------------------------


def bowl(variance: float, scale: float = 1.0, offset: float = 0.0):
    """scale * |x|^2 / (2 variance) + offset."""
    return lambda x: scale * x.square().sum(1, keepdim=True) / (2 * variance) + offset


BOX = TOYS["pinwheel"]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("offset", [0.0, -700.0, 1e4])
def test_the_partition_function_of_a_gaussian(temperature, offset):
    energies = grid_energies(bowl(0.25, offset=offset), BOX)
    assert energies.shape == (BOX.resolution, BOX.resolution)
    found = normalise(energies, BOX, temperature)
    expected = math.log(2 * math.pi * 0.25 * temperature) - offset / temperature
    assert found.log_partition == pytest.approx(expected, abs=1e-3)
    assert found.border_mass < 1e-6 and found.normalisable


def test_energies_lie_on_the_grid_as_the_axes_say():
    """Rows go along x_0, columns along x_1, cells from low to high."""
    energies = grid_energies(lambda x: 10 * x[:, :1] + x[:, 1:], BOX)
    cell = 2 * BOX.extent / BOX.resolution
    assert float(energies[1, 0] - energies[0, 0]) == pytest.approx(10 * cell, rel=1e-3)
    assert float(energies[0, 1] - energies[0, 0]) == pytest.approx(cell, rel=1e-3)
    assert float(energies[0, 0]) == pytest.approx(11 * (cell / 2 - BOX.extent), rel=1e-5)


@ALL
def test_the_true_density_scores_the_entropy(toy):
    """The known log-density as energy: Z = 1, and the NLL in nats is the data's entropy, at temperature 1."""
    log_p, _ = grid_log_density(toy)
    found = normalise(-log_p, toy)
    assert found.log_partition == pytest.approx(0, abs=1e-5)
    assert found.normalisable
    if toy.name != "checkerboard":  # a flat density is as good at every temperature
        assert best_temperature(-log_p, toy.entropy(), toy) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("scale", [0.05, 1.0, 8.0])
def test_the_best_temperature_of_a_scaled_gaussian(scale):
    """Data of variance 0.25 under k |x|^2 / (2 * 0.25): mean energy k, best temperature k, and then its entropy."""
    energies = grid_energies(bowl(0.25, scale), BOX)
    temperature = best_temperature(energies, scale, BOX)
    assert temperature == pytest.approx(scale, rel=0.01)
    nll = scale / temperature + normalise(energies, BOX, temperature).log_partition
    assert nll == pytest.approx(1 + math.log(2 * math.pi * 0.25), abs=1e-3)


@pytest.mark.parametrize("energy", [lambda x: 0 * x[:, :1], lambda x: -x.norm(dim=1), lambda x: -3 * x[:, 0]])
def test_an_energy_that_does_not_grow_outwards_is_flagged(energy):
    found = normalise(grid_energies(energy, BOX), BOX)
    assert found.border_mass > 0.05 and not found.normalisable


def test_the_border_of_a_flat_energy():
    """A ring of a fortieth of the box on each side holds 1 - 0.95^2 of its area."""
    found = normalise(torch.zeros(BOX.resolution, BOX.resolution), BOX)
    assert found.border_mass == pytest.approx(1 - 0.95**2, abs=1e-9)
    assert found.log_partition == pytest.approx(math.log((2 * BOX.extent) ** 2), abs=1e-5)


# -- samples of a model ----------------------------------------------------------------------------------------------


@MIXTURES
def test_a_perfect_sampler_finds_every_mode(name):
    toy = TOYS[name]
    samples = toy.draw(noise(0), 10_000)
    assert modes_found(samples, toy) == len(toy.centres)
    share = float(good_samples(samples, toy, samples).double().mean())
    assert share == pytest.approx(1 - math.exp(-8), abs=2e-3)  # P(|offset| <= 4 sigma) in the plane


@MIXTURES
def test_a_uniform_smear_finds_none(name):
    toy = TOYS[name]
    smear = (2 * noise(0).uniform(10_000, 2) - 1) * 1.5
    assert modes_found(smear, toy) == 0
    assert good_samples(smear, toy, smear).double().mean() < 0.05


@MIXTURES
def test_a_mode_needs_half_a_percent_within_four_sigma(name):
    toy = TOYS[name]
    centres = torch.tensor(toy.centres)
    far = torch.full((10_000, 2), 2.9)
    for count, found in ((50, 1), (49, 0)):
        samples = far.clone()
        samples[:count] = centres[0]
        assert modes_found(samples, toy) == found
        assert int(good_samples(samples, toy, samples).sum()) == count
    for distance, good in ((3.98, True), (4.02, False)):
        edge = centres + distance * toy.sigma * torch.tensor([0.6, 0.8])
        assert bool(good_samples(edge, toy, edge).all()) == good
        assert bool(good_samples(edge, toy, edge).any()) == good
        assert modes_found(edge, toy) == (len(centres) if good else 0)


@pytest.mark.parametrize("name", ["swissroll", "moons", "checkerboard", "pinwheel"])
def test_good_samples_of_data_without_modes(name):
    """All but the least likely hundredth of a perfect sampler's; of the checkerboard, whose density is flat, all."""
    toy = TOYS[name]
    data, samples = toy.draw(noise(1), 10_000), toy.draw(noise(0), 10_000)
    share = float(good_samples(samples, toy, data).double().mean())
    assert share == (1 if name == "checkerboard" else pytest.approx(0.99, abs=0.005))
    outside = torch.full((10, 2), 0.98 * toy.extent)
    assert not good_samples(outside, toy, data).any()
