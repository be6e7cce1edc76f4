"""log Z of an energy, Z = integral of exp(-E(x)) dx, with what it is worth: quadrature and importance sampling.

Every function takes the energy as a callable (n, D) -> (n,) and works in the precision of its points. Estimates from
weights are lower bounds in expectation, and the error bars are those of the sample: they cannot see mass where no
sample went. `annealing` has the third method.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ebmbounds import bounds
from ebmbounds.bounds import Energy, base_log_density
from ebmbounds.errors import BadInput
from ebmbounds.networks.mlp import mlp
from ebmbounds.noise import noise
from ebmbounds.spectra import Generator

CHUNK = 65_536
CELLS = {1: 20_000, 2: 800, 3: 120}
"""Cells a side for each dimension that quadrature can afford."""


@dataclass(frozen=True)
class LogPartition:
    value: float
    """log Z in nats."""
    standard_error: float
    """Of the value; for quadrature the change from half as many cells a side."""
    effective_samples: float
    """To how many equally weighted points the estimate amounts."""
    method: str


def quadrature(energy: Energy, low: Tensor, high: Tensor, cells: int | None = None) -> LogPartition:
    """The midpoint rule over the box from `low` to `high`, (D,) each, for up to three dimensions."""
    D = len(low)
    if D not in CELLS:
        raise BadInput(f"quadrature is for one to three dimensions, not {D}: use importance sampling or annealing.")
    cells = cells or CELLS[D]

    def log_weights(cells: int) -> Tensor:
        edges = (torch.arange(cells, dtype=low.dtype) + 0.5) / cells
        axes = [low[i] + (high[i] - low[i]) * edges for i in range(D)]
        points = torch.cartesian_prod(*axes).reshape(-1, D)
        log_volume = (high - low).log().sum()
        with torch.no_grad():
            return torch.cat([-energy(part).flatten().double() for part in points.split(CHUNK)]) + log_volume

    fine, coarse = log_weights(cells), log_weights(max(cells // 2, 1))
    value = float(bounds.log_partition_lower(fine))
    error = abs(value - float(bounds.log_partition_lower(coarse)))
    return LogPartition(value, error, float(bounds.effective_samples(fine)), "quadrature")


def from_log_weights(log_weights: Tensor, method: str = "importance sampling") -> LogPartition:
    """log of the mean weight, (n,) weights in; its standard error to first order in the weights' spread."""
    log_weights = log_weights.double()
    n = len(log_weights)
    effective = float(bounds.effective_samples(log_weights))
    variance = max(1 / effective - 1 / n, 0.0) * n / max(n - 1, 1)
    return LogPartition(float(bounds.log_partition_lower(log_weights)), variance**0.5, effective, method)


@torch.no_grad()
def importance_sampling(energy: Energy, x: Tensor, log_q: Tensor) -> LogPartition:
    """From samples x (n, D) of a proposal and its exact log-density log_q (n,) there."""
    energies = torch.cat([energy(part).flatten() for part in x.split(CHUNK)])
    return from_log_weights(-energies - log_q)


@torch.no_grad()
def joint_importance_sampling(
    energy: Energy,
    g: Generator,
    sigma: float,
    log_auxiliary: Callable[[Tensor, Tensor], Tensor],
    z: Tensor,
    seed: int = 0,
) -> LogPartition:
    """From a generator smoothed by noise, x = g(z) + sigma * epsilon, at latents z (n, d): any d, any g.

    The density of x has no closed form, that of the pair (x, z) has. With a normalised `log_auxiliary(z, x)`, r(z | x),
    the weights exp(-E(x)) r(z | x) / p(x, z) have mean Z whatever r is, and least spread where it is the posterior."""
    centre = g(z).flatten(1)
    epsilon = noise(seed, device=z.device)("smoothing").normal(*centre.shape).to(z)
    x = centre + sigma * epsilon
    log_joint = base_log_density(z) + base_log_density(epsilon) - x.shape[1] * torch.tensor(sigma).log()
    return from_log_weights(-energy(x).flatten() + log_auxiliary(z, x) - log_joint, "joint importance sampling")


class GaussianAuxiliary(nn.Module):
    """r(z | x) = N(z; m(x), diag s(x)^2), with m and log s the outputs of an MLP, for `joint_importance_sampling`."""

    def __init__(self, data_dim: int, latent_dim: int, width: int = 64) -> None:
        super().__init__()
        self.network = mlp([data_dim, width, width, 2 * latent_dim], "linear silu")

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """log r(z | x), (n,)."""
        mean, log_scale = self.network(x).chunk(2, dim=1)
        return base_log_density((z - mean) / log_scale.exp()) - log_scale.sum(1)

    def fit(self, g: Generator, sigma: float, latent_dim: int, steps: int = 1000) -> "GaussianAuxiliary":
        """By maximum likelihood on pairs of the smoothed generator."""
        adam = torch.optim.Adam(self.parameters(), lr=3e-3)
        decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.01, steps)
        dtype = next(self.parameters()).dtype
        for step in range(steps):
            fresh = noise(0, step)
            with torch.no_grad():
                z = fresh("auxiliary z").normal(500, latent_dim).to(dtype)
                x = g(z).flatten(1)
                x = x + sigma * fresh("auxiliary epsilon").normal(*x.shape).to(dtype)
            adam.zero_grad()
            (-self(z, x).mean()).backward()
            adam.step()
            decay.step()
        return self
