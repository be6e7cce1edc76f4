"""An invertible generator and a free-form energy, for data that is as large as its latent space (d = D).

The generator is a chain of coupling layers whose elementwise maps are monotone rational-quadratic splines (Durkan et
al. 2019): log p_g(x) is exact, at its own samples and anywhere else. The energy is an MLP on random Fourier features
(Tancik et al. 2020), which let it rise from a mode of width 0.01 and fall into the next, plus a parabola, which makes
it integrable whatever the MLP does.
"""

import math
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ebmbounds.bounds import base_log_density
from ebmbounds.errors import BadInput
from ebmbounds.networks.mlp import mlp
from ebmbounds.networks.pair import PairSettings
from ebmbounds.settings import Depth, NonNegative, Positive, Whole, Width

Task = Literal["generate", "sample", "log_density", "invert"]

LEAST_BIN, LEAST_SLOPE = 1e-3, 1e-3
"""Of a spline: keeps it invertible in single precision."""


@dataclass(frozen=True)
class SplineFlow(PairSettings):
    data_scale: Positive = 1.0
    """Both networks work on x / data_scale, which should have a spread of about one."""
    flow_layers: Depth = 4
    flow_width: Width = 64
    """Of the two hidden layers that give a layer its splines."""
    spline_bins: Depth = 16
    spline_bound: Positive = 4.0
    """Splines act on [-bound, bound]; beyond, the flow is the identity."""
    width: Width = 128
    """Of the energy's hidden layers."""
    depth: Depth = 3
    """How many of them there are."""
    fourier_features: Whole = 64
    """Random waves that the energy sees beside x; 0: x alone."""
    fourier_frequency: NonNegative = 8.0
    """Of the fastest waves, in radians for a data_scale; the slowest have a quarter."""
    parabola_scale: Positive = 1.5
    """The energy grows as |x / data_scale|^2 / (2 parabola_scale^2)."""

    def build(self, data_shape: tuple[int, ...], latent_dim: int) -> dict[str, nn.Module]:
        if data_shape != (latent_dim,) or latent_dim < 2:
            raise BadInput(
                "the spline flow needs rows of at least two numbers and latent_dim equal to their number, not data of "
                f"shape {data_shape} and latent_dim={latent_dim}: use latent_dim={prod(data_shape)} or another network."
            )
        return self.players(FourierEnergy(latent_dim, self), SplineGenerator(latent_dim, self))


class SplineGenerator(nn.Module):
    """x = G(z), (n, D) -> (n, D), or what `task` asks for beside or instead of it. It starts as x = data_scale * z."""

    invertible = True

    def __init__(self, dim: int, settings: SplineFlow) -> None:
        super().__init__()
        self.dim, self.bins, self.bound = dim, settings.spline_bins, settings.spline_bound
        self.scale = settings.data_scale
        kept, moved, hidden = dim // 2, dim - dim // 2, settings.flow_width
        self.conditioners = nn.ModuleList()
        orders: list[list[int]] = []
        for layer in range(settings.flow_layers):
            conditioner = mlp([kept, hidden, hidden, moved * (3 * self.bins - 1)], "linear silu")
            nn.init.zeros_(conditioner[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(conditioner[-1].bias)  # type: ignore[arg-type]
            self.conditioners.append(conditioner)
            # A pair of layers moves every coordinate. Pairs differ in which ones move together: those whose number has
            # the same bit set.
            bit = layer // 2 % max((dim - 1).bit_length(), 1)
            order = sorted(range(dim), key=lambda i: i >> bit & 1)
            orders.append(order if layer % 2 == 0 else order[::-1])
        self.orders: Tensor
        self.places: Tensor
        self.register_buffer("orders", torch.tensor(orders))
        self.register_buffer("places", torch.tensor(orders).argsort(1))

    def forward(self, points: Tensor, task: Task = "generate") -> Any:
        """generate: x from z. sample: x and log p_g(x) from z. log_density: log p_g(x) from x. invert: z from x."""
        if task in ("generate", "sample"):
            x, log_det = self.push(points)
            return x if task == "generate" else (x, base_log_density(points) - log_det)
        z, log_det = self.pull(points)
        return z if task == "invert" else base_log_density(z) + log_det

    def push(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """G(z) and log |det dG/dz|."""
        total = torch.full_like(z[:, 0], self.dim * math.log(self.scale))
        for layer in range(len(self.conditioners)):
            z, log_det = self.couple(z, layer, inverse=True)  # the closed form without a root is for densities
            total = total + log_det
        return self.scale * z, total

    def pull(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """G^-1(x) and log |det dG^-1/dx|."""
        total = torch.full_like(x[:, 0], -self.dim * math.log(self.scale))
        x = x / self.scale
        for layer in reversed(range(len(self.conditioners))):
            x, log_det = self.couple(x, layer, inverse=False)
            total = total + log_det
        return x, total

    def couple(self, x: Tensor, layer: int, inverse: bool) -> tuple[Tensor, Tensor]:
        """Half of the coordinates through splines that the other half chooses."""
        ordered = x[:, self.orders[layer]]
        kept, moved = ordered[:, : self.dim // 2], ordered[:, self.dim // 2 :]
        splines = self.conditioners[layer](kept).unflatten(1, (moved.shape[1], -1))
        moved, log_slope = rational_quadratic(moved, splines, self.bins, self.bound, inverse)
        return torch.cat((kept, moved), 1)[:, self.places[layer]], log_slope.sum(1)


def rational_quadratic(x: Tensor, spline: Tensor, bins: int, bound: float, inverse: bool) -> tuple[Tensor, Tensor]:
    """Monotone splines of x (n, m), or their inverses, and the logarithms of their slopes.

    spline (n, m, 3 bins - 1) holds logits of the bins' widths and heights, and the slopes at the inner knots, all as
    numbers without bounds; zeros give the identity. Outside [-bound, bound] the map is the identity."""
    sizes, slopes = spline.split((2 * bins, bins - 1), dim=-1)
    sizes = 2 * bound * (LEAST_BIN + (1 - LEAST_BIN * bins) * sizes.unflatten(-1, (2, bins)).softmax(-1))
    before = torch.ones(bins, bins, dtype=x.dtype, device=x.device).triu(1)
    corners = sizes @ before - bound  # lower left corners of the bins; a cumulative sum whose order is fixed
    slopes = LEAST_SLOPE + F.softplus(slopes + math.log(math.expm1(1 - LEAST_SLOPE)))
    slopes = F.pad(slopes, (1, 1), value=1.0)

    inside = x.abs() < bound
    x_inside = torch.where(inside, x, 0)
    # Sums over a mask in place of gather, whose backward pass is slow to compile and has no fixed order on a GPU.
    past = (x_inside[..., None] >= corners[..., int(inverse), :]).to(x.dtype)
    mask = past - F.pad(past[..., 1:], (0, 1))
    w, h = (sizes * mask[..., None, :]).sum(-1).unbind(-1)
    x0, y0 = (corners * mask[..., None, :]).sum(-1).unbind(-1)
    d0, d1 = (slopes[..., :-1] * mask).sum(-1), (slopes[..., 1:] * mask).sum(-1)
    s = h / w
    bend = d0 + d1 - 2 * s
    if inverse:  # t solves a t^2 + b t + c = 0, by the form of the root that does not cancel
        y = x_inside - y0
        a, b, c = h * (s - d0) + y * bend, h * d0 - y * bend, -s * y
        t = -2 * c / (b + (b * b - 4 * a * c).clamp(min=0).sqrt())
    else:
        t = (x_inside - x0) / w
    mixed = t * (1 - t)
    denominator = s + bend * mixed
    log_slope = 2 * s.log() + (d1 * t * t + 2 * s * mixed + d0 * (1 - t) ** 2).log() - 2 * denominator.log()
    mapped = x0 + t * w if inverse else y0 + h * (s * t * t + d0 * mixed) / denominator
    return torch.where(inside, mapped, x), torch.where(inside, -log_slope if inverse else log_slope, 0)


class FourierEnergy(nn.Module):
    """E(x) = MLP(x, sin Wx, cos Wx) + |x|^2 / (2 parabola_scale^2), x in units of data_scale: (n, D) -> (n, 1)."""

    def __init__(self, dim: int, settings: SplineFlow) -> None:
        super().__init__()
        self.scale, self.parabola = settings.data_scale, settings.parabola_scale
        count = settings.fourier_features
        lengths = settings.fourier_frequency * torch.logspace(-1, 0, count, base=4)
        self.waves: Tensor
        self.register_buffer("waves", torch.randn(dim, count) * lengths * (2 / dim) ** 0.5)
        self.network = mlp([dim + 2 * count, *[settings.width] * settings.depth, 1], "linear silu")

    def forward(self, x: Tensor) -> Tensor:
        x = x / self.scale
        phase = x @ self.waves
        features = torch.cat((x, phase.sin(), phase.cos()), 1)
        return self.network(features) + x.square().sum(1, keepdim=True) / (2 * self.parabola**2)
