"""Toy data in the plane, each with its exact log-density, so that a model can be judged in nats."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ebmbounds.noise import Noise


@dataclass(frozen=True)
class Toy:
    """A known distribution in the plane. `draw` samples it and `log_density` is exact (closed form or quadrature)."""

    name: str
    extent: float
    """Quadrature runs over the box [-extent, extent]^2, which holds all but a negligible part of the mass."""
    resolution: int = 800
    """Grid points a side: cells no larger than the finest scale of the data."""

    shape = (2,)

    def draw(self, noise: Noise, n: int) -> Tensor:
        raise NotImplementedError

    def log_density(self, x: Tensor) -> Tensor:
        """(n, 2) -> (n,)."""
        raise NotImplementedError

    def grid(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, float]:
        """Midpoints of the box's cells, (resolution^2, 2), and the area of a cell."""
        return square_grid(self.extent, self.resolution, dtype)

    def entropy(self) -> float:
        """-E[log p] in nats, by quadrature."""
        return _entropy(self)


def square_grid(extent: float, resolution: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, float]:
    cell = 2 * extent / resolution
    side = (torch.arange(resolution, dtype=dtype) + 0.5) * cell - extent
    return torch.cartesian_prod(side, side), cell**2


@cache
def _entropy(toy: Toy) -> float:
    points, area = toy.grid(torch.float64)
    log_p = torch.cat([toy.log_density(part) for part in points.split(20_000)])
    return float(-(torch.xlogy(log_p.exp(), log_p.exp())).sum() * area)


@dataclass(frozen=True)
class Gaussians(Toy):
    """A mixture of equal round Gaussians."""

    centres: tuple[tuple[float, float], ...] = ()
    sigma: float = 1.0

    def draw(self, noise: Noise, n: int) -> Tensor:
        centres = torch.tensor(self.centres, device=noise.step.device)
        index = noise("mode").integers(len(self.centres), n, 1)[:, 0]
        return centres[index] + self.sigma * noise("offset").normal(n, 2)

    def log_density(self, x: Tensor) -> Tensor:
        centres = torch.tensor(self.centres, dtype=x.dtype, device=x.device)
        squares = (x[:, None] - centres).square().sum(2) / (2 * self.sigma**2)
        constant = math.log(len(self.centres) * 2 * math.pi * self.sigma**2)
        return torch.logsumexp(-squares, 1) - constant


@dataclass(frozen=True)
class NoisyCurves(Toy):
    """Points uniform in the parameter of one or more curves, plus round Gaussian noise."""

    sigma: float = 1.0

    def curve(self, u: Tensor, which: Tensor) -> Tensor:
        """Points (n, 2) of the curves numbered `which` (n,), at parameters u (n,) in [0, 1]."""
        raise NotImplementedError

    curves = 1

    def draw(self, noise: Noise, n: int) -> Tensor:
        u, which = noise("u").uniform(n, 1)[:, 0], noise("curve").integers(self.curves, n, 1)[:, 0]
        return self.curve(u, which) + self.sigma * noise("offset").normal(n, 2)

    def log_density(self, x: Tensor) -> Tensor:
        """By the midpoint rule along the curves, at steps well below sigma."""
        nodes = 400
        u = ((torch.arange(nodes, dtype=x.dtype, device=x.device) + 0.5) / nodes).repeat(self.curves)
        which = torch.arange(self.curves, device=x.device).repeat_interleave(nodes)
        centres = self.curve(u, which)
        # |x - c|^2 by products, in double: the matrix of differences would be large.
        x, centres = x.double(), centres.double()
        squares = x.square().sum(1, keepdim=True) - 2 * x @ centres.T + centres.square().sum(1)
        constant = math.log(len(centres) * 2 * math.pi * self.sigma**2)
        return torch.logsumexp(-squares / (2 * self.sigma**2), 1) - constant


@dataclass(frozen=True)
class SwissRoll(NoisyCurves):
    """scikit-learn's roll with noise 1.0, axes 0 and 2, divided by 5 (research code)."""

    def curve(self, u: Tensor, which: Tensor) -> Tensor:
        t = 1.5 * math.pi * (1 + 2 * u)
        return torch.stack((t * torch.cos(t), t * torch.sin(t)), 1) / 5


@dataclass(frozen=True)
class Moons(NoisyCurves):
    """scikit-learn's two moons with noise 0.1, doubled and centred."""

    curves = 2

    def curve(self, u: Tensor, which: Tensor) -> Tensor:
        t = math.pi * u
        outer = torch.stack((torch.cos(t), torch.sin(t)), 1)
        inner = torch.stack((1 - torch.cos(t), 0.5 - torch.sin(t)), 1)
        middle = torch.tensor((0.5, 0.25), dtype=u.dtype, device=u.device)
        return 2 * (torch.where((which == 0)[:, None], outer, inner) - middle)


@dataclass(frozen=True)
class Checkerboard(Toy):
    """Uniform on the eight black squares, each of side 2, of a board [-4, 4]^2."""

    def draw(self, noise: Noise, n: int) -> Tensor:
        u = noise("place").uniform(n, 2)
        square = noise("square").integers(8, n, 1)[:, 0]
        column, row = square % 4, 2 * (square // 4) + square % 2  # row and column of equal parity
        return 2 * (u + torch.stack((column, row), 1)) - 4

    def log_density(self, x: Tensor) -> Tensor:
        cell = torch.floor((x + 4) / 2)
        inside = (cell >= 0).all(1) & (cell <= 3).all(1) & (cell.sum(1) % 2 == 0)
        return torch.where(inside, -math.log(32), -math.inf).to(x.dtype)


@dataclass(frozen=True)
class Pinwheel(Toy):
    """Five Gaussian arms, twisted. The angle grows with the distance from the centre, so the twist keeps areas and
    the density stays in closed form (the usual pinwheel twists by the radial coordinate: nearly the same picture)."""

    arms: int = 5
    radial: float = 0.6
    tangential: float = 0.2
    distance: float = 2.0

    def twist(self, radius: Tensor) -> Tensor:
        return 0.25 * torch.exp(radius / 2)

    def draw(self, noise: Noise, n: int) -> Tensor:
        offset = noise("offset").normal(n, 2)
        x, y = self.distance + self.radial * offset[:, 0], self.tangential * offset[:, 1]
        arm = noise("arm").integers(self.arms, n, 1)[:, 0]
        angle = 2 * math.pi / self.arms * arm + self.twist(torch.sqrt(x * x + y * y))
        c, s = torch.cos(angle), torch.sin(angle)
        return torch.stack((c * x - s * y, s * x + c * y), 1)

    def log_density(self, x: Tensor) -> Tensor:
        arm = torch.arange(self.arms, dtype=x.dtype, device=x.device)
        angle = 2 * math.pi / self.arms * arm + self.twist(x.norm(dim=1))[:, None]
        c, s = torch.cos(angle), torch.sin(angle)
        u, v = c * x[:, :1] + s * x[:, 1:], -s * x[:, :1] + c * x[:, 1:]
        squares = ((u - self.distance) / self.radial) ** 2 / 2 + (v / self.tangential) ** 2 / 2
        constant = math.log(self.arms * 2 * math.pi * self.radial * self.tangential)
        return torch.logsumexp(-squares, 1) - constant


_EIGHT = [2 * math.pi * k / 8 for k in range(8)]

TOYS: dict[str, Toy] = {
    toy.name: toy
    for toy in (
        # Grid {-2, ..., 2}^2 doubled, noise 0.05, all divided by 2.828 (research code).
        Gaussians(
            "25gaussians",
            extent=3.0,
            centres=tuple((2 * i / 2.828, 2 * j / 2.828) for i in range(-2, 3) for j in range(-2, 3)),
            sigma=0.05 / 2.828,
        ),
        # A circle of radius 2, noise 0.02, all divided by 1.414: the companion of the former in the GAN literature.
        Gaussians(
            "8gaussians",
            extent=3.0,
            centres=tuple((2 * math.cos(t) / 1.414, 2 * math.sin(t) / 1.414) for t in _EIGHT),
            sigma=0.02 / 1.414,
        ),
        SwissRoll("swissroll", extent=5.0, resolution=250, sigma=1.0 / 5),
        Moons("moons", extent=5.0, resolution=250, sigma=0.2),
        Checkerboard("checkerboard", extent=6.0, resolution=600),
        Pinwheel("pinwheel", extent=6.0, resolution=600),
    )
}
