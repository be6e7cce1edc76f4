"""Spectral norm: layers of unit norm, whatever the size of their weights."""

import pytest
import torch
from torch import nn

from ebmbounds.networks import DCGAN, MNISTMLP, ResNet, ToyMLP
from ebmbounds.networks.layout import PaddedConv2d
from ebmbounds.networks.spectral_norm import SpectralNorm

LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "convolution": (lambda: nn.Conv2d(3, 5, 4, 2, 1), (2, 3, 8, 8)),
    "padded convolution": (lambda: PaddedConv2d(3, 5, 3, 1, 1), (2, 3, 8, 8)),
}


@pytest.fixture(params=LAYERS)
def layer_and_input(request, double):
    make, shape = LAYERS[request.param]
    return make(), torch.randn(shape)


def test_power_iterations_find_the_largest_singular_value(layer_and_input):
    layer, x = layer_and_input
    normed = SpectralNorm(layer)
    for _ in range(500):
        normed(x)
    largest = torch.linalg.matrix_norm(layer.weight.flatten(1), 2)
    expected = torch.func.functional_call(layer, {"weight": layer.weight / largest}, x)
    torch.testing.assert_close(normed(x), expected)
    torch.testing.assert_close(normed.eval()(x), expected)


def test_the_size_of_the_weight_does_not_matter(layer_and_input):
    """From the first call on; so no update along the weight is asked for."""
    layer, x = layer_and_input
    normed = SpectralNorm(layer).eval()
    before = normed(x)
    (gradient,) = torch.autograd.grad(before.square().sum(), layer.weight)
    assert float((gradient * layer.weight).sum()) == pytest.approx(0, abs=1e-9)
    layer.weight.data *= 37
    torch.testing.assert_close(normed(x), before)


def test_train_mode_alone_moves_the_vector(layer_and_input):
    layer, x = layer_and_input
    normed = SpectralNorm(layer)
    start = normed.u.clone()
    normed.eval()(x)
    assert torch.equal(normed.u, start)
    normed.train()(x)
    assert not torch.equal(normed.u, start)


PAIRS = [
    (ToyMLP(spectral_norm=True, width=8), (2,)),
    (MNISTMLP(spectral_norm=True, shrink=16), (1, 28, 28)),
    (DCGAN(spectral_norm=True, channels=16), (3, 32, 32)),
    (ResNet(spectral_norm=True, channels=32), (3, 64, 64)),
]


@pytest.mark.parametrize(("pair", "shape"), PAIRS)
def test_every_layer_of_the_energy_and_none_of_the_generator(pair, shape):
    players = pair.build(shape, 2)
    linear = [m for m in players["energy"].modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    normed = [m.layer for m in players["energy"].modules() if isinstance(m, SpectralNorm)]
    assert len(linear) > 2 and set(linear) == set(normed)
    assert not any(isinstance(m, SpectralNorm) for m in players["generator"].modules())


def test_an_energy_of_unit_layers_is_nowhere_steeper_than_one(double):
    energy = ToyMLP(spectral_norm=True, width=32, depth=3).build((2,), 2)["energy"]
    for layer in energy.modules():
        if isinstance(layer, SpectralNorm):
            layer.layer.weight.data *= 10
    x = 3 * torch.randn(500, 2)
    for _ in range(300):
        energy(x)
    slopes = torch.func.grad(lambda x: energy.eval()(x).sum())(x).norm(dim=1)
    assert float(slopes.max()) <= 1 + 1e-6 and float(slopes.max()) > 1e-3


@pytest.mark.parametrize(
    ("pair", "shape"), [(ToyMLP(orthogonal_init=True), (2,)), (DCGAN(orthogonal_init=True, channels=16), (3, 32, 32))]
)
def test_orthogonal_weights(pair, shape):
    for player in pair.build(shape, 2).values():
        layers = [m for m in player.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)]
        for layer in layers:
            singular = torch.linalg.svdvals(layer.weight.flatten(1))
            torch.testing.assert_close(singular, torch.ones_like(singular))
            assert not layer.bias.any()
