"""The networks against the tables of the appendix: layers, shapes, numbers of parameters."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from ebmbounds.errors import BadInput
from ebmbounds.networks import DCGAN, MNISTMLP, NETWORKS, ResNet, ToyMLP, network
from ebmbounds.networks.activations import LeakyReLU, ReLU
from ebmbounds.networks.layout import FlattenPixels, PaddedConv2d, UnflattenPixels
from ebmbounds.settings import build


def paper_sized(pair, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
    """On the meta device: shapes and counts without the numbers."""
    with torch.device("meta"):
        return pair.build(data_shape, latent_dim)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def shape_of(module: nn.Module, *shape: int) -> tuple[int, ...]:
    return tuple(module(torch.empty(shape, device="meta")).shape)


def linear(i: int, o: int) -> int:
    return i * o + o


def conv(kernel: int, i: int, o: int) -> int:
    return kernel * kernel * i * o + o


def norm(channels: int) -> int:
    return 2 * channels


# -- the appendix's tables, row by row -------------------------------------------------------------------------------


def test_toy_networks():
    players = paper_sized(ToyMLP(), (2,), 2)
    assert count(players["energy"]) == linear(2, 100) + 1 + linear(100, 100) + 1 + linear(100, 1)
    assert count(players["generator"]) == sum(
        [linear(2, 100), 1, norm(100), linear(100, 100), 1, norm(100), linear(100, 2)]
    )
    assert shape_of(players["energy"], 7, 2) == (7, 1) and shape_of(players["generator"], 7, 2) == (7, 2)
    kinds = [type(layer).__name__ for layer in players["generator"]]
    assert kinds == ["Linear", "PReLU", "BatchNorm1d", "Linear", "PReLU", "BatchNorm1d", "Linear"]


def test_toy_networks_of_other_sizes():
    players = paper_sized(ToyMLP(width=30, depth=3, batch_norm=False, scaled_energy=True), (2,), 4)
    hidden = [linear(30, 30), 1, linear(30, 30), 1]
    assert count(players["energy"]) == sum([linear(2, 30), 1, *hidden, linear(30, 1), 1])  # the last by Linear(1, 1)
    assert count(players["generator"]) == sum([linear(4, 30), 1, *hidden, linear(30, 2)])


def test_mnist_networks():
    players = paper_sized(MNISTMLP(), (3, 28, 28), 128)
    down, up = [2352, 2000, 1000, 500, 250, 250], [128, 500, 1000, 2000]
    assert count(players["energy"]) == (sum(linear(i, o) + 1 for i, o in pairwise(down)) + linear(250, 1))
    assert count(players["generator"]) == (
        sum(linear(i, o) + norm(o) + 1 for i, o in pairwise(up)) + linear(2000, 2352)
    )
    assert shape_of(players["energy"], 5, 3, 28, 28) == (5, 1)
    assert shape_of(players["generator"], 5, 128) == (5, 3, 28, 28)
    kinds = [type(layer).__name__ for layer in players["generator"]]
    assert kinds == 3 * ["Linear", "BatchNorm1d", "PReLU"] + ["Linear", "Tanh", "Unflatten"]


def test_cifar_networks():
    players = paper_sized(DCGAN(), (3, 32, 32), 128)
    rows = [(3, 3, 64), (4, 64, 64), (3, 64, 128), (4, 128, 128), (3, 128, 256), (4, 256, 256), (3, 256, 512)]
    assert count(players["energy"]) == sum(conv(*row) for row in rows) + linear(8192, 1)
    ups = [(4, 512, 256), (4, 256, 128), (4, 128, 64)]
    assert count(players["generator"]) == sum(
        [linear(128, 8192), *(conv(*row) + norm(row[2]) for row in ups), conv(3, 64, 3)]
    )
    assert shape_of(players["energy"], 5, 3, 32, 32) == (5, 1)
    assert shape_of(players["generator"], 5, 128) == (5, 3, 32, 32)
    sizes, x = [], torch.empty(1, 3, 32, 32, device="meta")
    for layer in players["energy"]:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            sizes.append((x.shape[1], x.shape[2]))
    assert sizes == [(64, 32), (64, 16), (128, 16), (128, 8), (256, 8), (256, 4), (512, 4)]
    slopes = {layer.slope for layer in players["energy"] if isinstance(layer, LeakyReLU)}
    assert slopes == {0.1}


@pytest.mark.parametrize("batch_norm", [True, False])
def test_animeface_networks(batch_norm):
    players = paper_sized(ResNet(energy_batch_norm=batch_norm), (3, 64, 64), 128)

    def bn(channels: int) -> int:
        return norm(channels) if batch_norm else 0

    first = conv(3, 3, 64) + bn(64) + conv(3, 64, 64) + bn(3) + conv(1, 3, 64)
    widths = [64, 128, 256, 512, 1024]
    blocks = [bn(i) + conv(3, i, o) + bn(o) + conv(3, o, o) + bn(i) + conv(1, i, o) for i, o in pairwise(widths)]
    assert count(players["energy"]) == first + sum(blocks) + linear(1024, 1)
    widths.reverse()
    blocks = [norm(i) + conv(3, i, o) + norm(o) + conv(3, o, o) + conv(1, i, o) for i, o in pairwise(widths)]
    assert count(players["generator"]) == linear(128, 16384) + sum(blocks) + norm(64) + conv(3, 64, 3)
    assert shape_of(players["energy"], 5, 3, 64, 64) == (5, 1)
    assert shape_of(players["generator"], 5, 128) == (5, 3, 64, 64)
    sizes, x = [], torch.empty(1, 3, 64, 64, device="meta")
    for block in players["energy"].blocks:
        x = block(x)
        sizes.append((x.shape[1], x.shape[2]))
    assert sizes == [(64, 32), (128, 16), (256, 8), (512, 4), (1024, 4)]


def test_resnets_also_take_32_pixels():
    players = paper_sized(ResNet(channels=64), (1, 32, 32), 16)
    assert shape_of(players["energy"], 2, 1, 32, 32) == (2, 1)
    assert shape_of(players["generator"], 2, 16) == (2, 1, 32, 32)


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "data_shape", "latent_dim"),
    [
        (ToyMLP(width=7), (20,), 8),
        (MNISTMLP(shrink=16), (1, 28, 28), 32),
        (DCGAN(channels=8), (3, 32, 32), 129),
        (ResNet(channels=16), (3, 64, 64), 257),
    ],
)
def test_a_width_below_the_latent_dimension_is_refused(pair, data_shape, latent_dim):
    with pytest.raises(BadInput, match=f"latent_dim={latent_dim}"):
        pair.build(data_shape, latent_dim)
    pair.build(data_shape, latent_dim - 1)


@pytest.mark.parametrize("name", ["dcgan", "resnet"])
@pytest.mark.parametrize("data_shape", [(2,), (3, 28, 28), (3, 32, 64), (3, 128, 128)])
def test_images_of_other_sizes_are_refused(name, data_shape):
    with pytest.raises(BadInput, match=str(data_shape[-1])):
        network(name)().build(data_shape, 2)


@pytest.mark.parametrize(("name", "least"), [("dcgan", 8), ("resnet", 16)])
def test_too_few_channels_to_halve_are_refused(name, least):
    side = {"dcgan": 32, "resnet": 64}[name]
    with pytest.raises(BadInput, match=f"channels={least - 1}.*{least}"):
        build(network(name), {"channels": least - 1})
    players = build(network(name), {"channels": least}).build((3, side, side), 2)
    assert players["generator"](torch.randn(2, 2)).shape == (2, 3, side, side)


def test_an_unknown_network_is_named_with_the_closest():
    with pytest.raises(BadInput, match=r"'resnt'.*'resnet'"):
        network("resnt")
    assert all(network(name) is kind for name, kind in NETWORKS.items())


# -- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [(LeakyReLU(0.1), nn.LeakyReLU(0.1)), (ReLU(), nn.ReLU())])
def test_activations_are_torchs_to_the_first_derivative(ours, theirs):
    x = torch.randn(1000).requires_grad_()
    assert torch.equal(ours(x), theirs(x))
    (a,), (b,) = (torch.autograd.grad(f(x).sum(), x) for f in (ours, theirs))
    assert torch.equal(a, b)


def test_pixels_flatten_and_unflatten():
    x = torch.randn(2, 5, 4, 4)
    flat = FlattenPixels()(x)
    assert flat.shape == (2, 80) and torch.equal(flat[:, :5], x[:, :, 0, 0])
    assert torch.equal(UnflattenPixels(5, 4)(flat), x)


@pytest.mark.gpu
def test_padded_convolutions_are_convolutions(double):
    for i, o in ((3, 8), (16, 3), (5, 7)):
        layer = PaddedConv2d(i, o, 3, 1, 1).cuda()
        x = torch.randn(2, i, 6, 6, device="cuda", requires_grad=True)
        plain = nn.functional.conv2d(x, layer.weight, layer.bias, 1, 1)
        torch.testing.assert_close(layer(x), plain)
        (a,), (b,) = (torch.autograd.grad(y.square().sum(), x) for y in (layer(x), plain))
        torch.testing.assert_close(a, b)
