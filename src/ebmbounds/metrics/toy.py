"""Likelihood and sample quality on data with a known density."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ebmbounds.bounds import Energy
from ebmbounds.data.toy import Gaussians, Toy


@dataclass(frozen=True)
class GridDensity:
    """exp(-E / T) normalised over the data set's box by the midpoint rule."""

    log_partition: float
    border_mass: float
    """Share of the mass in the outermost ring, a fortieth of the box on each side: what the box may cut off."""

    @property
    def normalisable(self) -> bool:
        """Whether the box seems to hold the mass: an energy that does not grow outwards piles it up at the border."""
        return self.border_mass < 0.01


@torch.no_grad()
def grid_energies(energy: Energy, toy: Toy) -> Tensor:
    """(resolution, resolution) energies at the midpoints of the box's cells."""
    points, _ = toy.grid()
    values = torch.cat([energy(part).flatten() for part in points.split(65_536)])
    return values.reshape(toy.resolution, toy.resolution)


def normalise(energies: Tensor, toy: Toy, temperature: float = 1.0) -> GridDensity:
    area = (2 * toy.extent / toy.resolution) ** 2
    scaled = -energies.double() / temperature
    log_partition = torch.logsumexp(scaled.flatten(), 0)
    mass = (scaled - log_partition).exp()
    ring = max(1, toy.resolution // 40)
    inner = mass[ring:-ring, ring:-ring].sum()
    return GridDensity(float(log_partition + torch.tensor(area).log()), float((mass.sum() - inner).clamp(min=0)))


def best_temperature(energies: Tensor, data_energy: float, toy: Toy) -> float:
    """The T that minimises E_data[E]/T + log Z(T), a convex problem in 1/T, by golden section on log T."""
    low, high = torch.tensor(1e-3).log().item(), torch.tensor(1e3).log().item()
    golden = (5**0.5 - 1) / 2

    def loss(log_t: float) -> float:
        t = float(torch.tensor(log_t).exp())
        return data_energy / t + normalise(energies, toy, t).log_partition

    a, b = high - golden * (high - low), low + golden * (high - low)
    fa, fb = loss(a), loss(b)
    while high - low > 1e-2:
        if fa < fb:
            high, b, fb = b, a, fa
            a = high - golden * (high - low)
            fa = loss(a)
        else:
            low, a, fa = a, b, fb
            b = low + golden * (high - low)
            fb = loss(b)
    return float(torch.tensor((low + high) / 2).exp())


def good_samples(samples: Tensor, toy: Toy, data: Tensor) -> Tensor:
    """Which samples are good, (n,): within 4 sigma of a mode; on data without modes, those whose true log-density is
    above the data's 1% quantile, or equal to it (the checkerboard's density has one value only)."""
    if isinstance(toy, Gaussians):
        return _distances(samples, toy).min(1).values <= 4 * toy.sigma
    return toy.log_density(samples) >= torch.quantile(toy.log_density(data), 0.01)


def modes_found(samples: Tensor, toy: Gaussians, share: float = 0.005) -> int:
    """How many modes have at least that share of the samples within 4 sigma."""
    near = (_distances(samples, toy) <= 4 * toy.sigma).double().mean(0)
    return int((near >= share).sum())


def _distances(samples: Tensor, toy: Gaussians) -> Tensor:
    return torch.cdist(samples, torch.tensor(toy.centres, dtype=samples.dtype, device=samples.device))
