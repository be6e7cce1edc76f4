"""The invertible generator and the energy beside it."""

import math

import pytest
import torch

from ebmbounds import bounds, spectra
from ebmbounds.data.resident import ResidentRows
from ebmbounds.errors import BadInput
from ebmbounds.networks.flow import SplineFlow, rational_quadratic
from ebmbounds.noise import noise
from ebmbounds.objectives.ebm_bb import EBMBB
from ebmbounds.step import Optimizer, Step

DIMENSIONS = pytest.mark.parametrize("dim", [2, 3, 8])


def shaken(dim: int, scale: float = 1.7):
    """A pair whose generator is no longer the identity."""
    players = SplineFlow(data_scale=scale, flow_width=16, spline_bins=6, width=16).build((dim,), dim)
    with torch.no_grad():
        for parameter in players["generator"].parameters():
            parameter.add_(0.25 * torch.randn_like(parameter))
    return players


@DIMENSIONS
def test_the_inverse_undoes_the_generator(double, dim):
    g = shaken(dim)["generator"]
    z = 3 * torch.randn(500, dim)  # some of them beyond the splines
    x = g(z)
    assert (x / 1.7 - z).abs().max() > 0.05
    torch.testing.assert_close(g(x, "invert"), z, rtol=0, atol=1e-7)


@DIMENSIONS
def test_densities_are_those_of_the_jacobian(double, dim):
    """Eq. 8, from the exact log-determinant of J, from the samples' side and from x's."""
    g = shaken(dim)["generator"]
    z = torch.randn(100, dim)
    expected = bounds.log_density(g, z)
    x, log_p = g(z, "sample")
    assert torch.equal(x, g(z))
    torch.testing.assert_close(log_p, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(g(x, "log_density"), expected, rtol=0, atol=1e-6)


@DIMENSIONS
def test_it_starts_as_a_scaled_identity(dim):
    g = SplineFlow(data_scale=2.0).build((dim,), dim)["generator"]
    z = 3 * torch.randn(200, dim)
    torch.testing.assert_close(g(z), 2 * z, rtol=0, atol=1e-4)
    torch.testing.assert_close(spectra.half_logdet(g, z), torch.full((200,), dim * math.log(2)), rtol=0, atol=1e-3)


@DIMENSIONS
def test_every_coordinate_depends_on_every_other(dim):
    J = spectra.jacobian(shaken(dim)["generator"], torch.randn(50, dim))
    assert (J.abs().amax(0) > 1e-6).all()


@pytest.mark.parametrize("inverse", [False, True])
def test_splines_rise(double, inverse):
    spline = 3 * torch.randn(1, 1, 3 * 5 - 1)
    x = torch.linspace(-4.5, 4.5, 2001)[:, None]
    y, log_slope = rational_quadratic(x, spline.expand(len(x), 1, -1), 5, 4.0, inverse)
    assert (y[1:] > y[:-1]).all()
    assert torch.equal(y[x.abs() >= 4], x[x.abs() >= 4])
    slopes = (y[2:] - y[:-2]) / (x[2:] - x[:-2])
    away = (log_slope[1:-1] - slopes.log()).abs()
    assert away.median() < 1e-4  # knots aside, where the second derivative jumps


@DIMENSIONS
def test_the_energy_grows_outwards(dim):
    energy = shaken(dim)["energy"]
    direction = torch.nn.functional.normalize(torch.randn(50, dim))
    near, far = energy(direction), energy(1e3 * direction)
    assert near.shape == (50, 1) and (far > near + 1e4).all()


@pytest.mark.parametrize("shape, latent_dim", [((3,), 2), ((1,), 1), ((1, 4, 4), 16)])
def test_data_of_another_size_is_refused(shape, latent_dim):
    with pytest.raises(BadInput, match="latent_dim"):
        SplineFlow().build(shape, latent_dim)


def test_rows_of_the_data_stand_in_for_weighted_samples():
    """The generator's loss lies between the cross-entropy of the model and that of the data."""
    torch.manual_seed(0)
    players, x = shaken(3), torch.randn(40, 3)

    def loss(share: float) -> float:
        objective = EBMBB(entropy_estimator="multi-sample", importance_samples=20, data_share=share)
        step = Step(objective, players, ResidentRows(x), Optimizer(batch_size=40, latent_dim=3))
        state = step.initial_state(0)
        game = step.game(state["parameters"], state["buffers"], state["buffers"])
        return float(objective.multi_sample_generator_loss(game, x, noise(0), objective.propose(game, noise(0)))[0])

    on_data = -float(players["generator"](x, "log_density").mean().detach())
    assert loss(0.0) != pytest.approx(on_data, abs=0.01)
    assert loss(0.25) == pytest.approx(0.75 * loss(0.0) + 0.25 * on_data, abs=1e-5)
