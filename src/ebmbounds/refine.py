"""Samples of the energy itself, started from the generator's."""

from typing import Literal

import torch
from torch import Tensor

from ebmbounds.bounds import Energy
from ebmbounds.errors import BadInput
from ebmbounds.model import Model
from ebmbounds.noise import noise

Refinement = Literal["sir", "langevin"]


def refined_samples(model: Model, n: int, method: Refinement, seed: int = 0) -> Tensor:
    return importance_resampled(model, n, seed) if method == "sir" else langevin(model, n, seed)


@torch.no_grad()
def importance_resampled(
    model: Model, n: int, seed: int = 0, oversampling: int = 20, energy: Energy | None = None
) -> Tensor:
    """Sampling-importance-resampling: n of 20 n generated samples, drawn with weights exp(-E(x)) / p_g(x), of the
    model's energy or another one.

    Exact in the limit where the generator is one-to-one; where it folds, p_g counts one preimage of several."""
    if (size := model.data_shape[0] if len(model.data_shape) == 1 else None) != model.latent_dim:
        raise BadInput(
            f"--refine sir needs a density of the generator, so latent_dim={model.latent_dim} must equal the data's "
            f"dimension ({size or model.data_shape}): use --refine langevin."
        )
    x, log_p = model.sample_with_density(oversampling * n, seed)
    energies = torch.cat([(energy or model.energy)(part) for part in x.split(1000)])
    weights = torch.softmax((-energies - log_p).double(), 0)
    places = (torch.arange(n, dtype=torch.float64) + float(noise(seed)("sir").uniform(1, 1))) / n
    chosen = torch.searchsorted(weights.cumsum(0), places.to(weights.device)).clamp(max=len(x) - 1)
    return x[chosen][torch.randperm(n, generator=torch.Generator().manual_seed(seed))]


def langevin(model: Model, n: int, seed: int = 0, steps: int = 200, rate: float = 0.1) -> Tensor:
    """Metropolis-adjusted Langevin from the generator's samples; the step adapts to an acceptance of a half."""
    x = model.sample(n, seed)
    scale = rate * x.std()

    def gradient(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: model.energy(x).sum())(x)

    def log_forward(to: Tensor, mean: Tensor) -> Tensor:
        return -(to - mean).flatten(1).square().sum(1) / (2 * scale**2)

    energy, slope = model.energies(x), gradient(x)
    for step in range(steps):
        fresh = noise(seed, step, x.device)
        mean = x - scale**2 / 2 * slope
        proposal = mean + scale * fresh("langevin").normal(n, *x.shape[1:])
        new_energy, new_slope = model.energies(proposal), gradient(proposal)
        back = log_forward(x, proposal - scale**2 / 2 * new_slope)
        log_ratio = energy - new_energy + back - log_forward(proposal, mean)
        accept = torch.log(fresh("accept").uniform(n, 1)[:, 0]) < log_ratio
        shape = (n, *(1,) * (x.dim() - 1))
        x = torch.where(accept.reshape(shape), proposal, x)
        slope = torch.where(accept.reshape(shape), new_slope, slope)
        energy = torch.where(accept, new_energy, energy)
        scale = scale * torch.exp(0.1 * (accept.to(x.dtype).mean() - 0.574))
    return x.detach()
