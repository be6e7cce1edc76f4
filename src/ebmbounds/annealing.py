"""log Z by annealed importance sampling (Neal 2001) with Hamiltonian transitions.

Chains start at samples of a known density q and pass through the densities q^(1-b) exp(-b E) for b from 0 to 1. With
forward chains alone the estimate errs on the low side in expectation. Chains that start at exact samples of the model
and run backwards err on the high side; together they enclose log Z (Grosse et al. 2015). Exact samples exist only for
known models, so only there the pair is a sandwich.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ebmbounds.bounds import Energy
from ebmbounds.noise import Noise, noise
from ebmbounds.partition import LogPartition, from_log_weights

LogDensity = Callable[[Tensor], Tensor]
ACCEPTANCE = 0.8
"""That the pilot's step sizes aim at."""


@dataclass(frozen=True)
class Annealing:
    """A path of densities between q and exp(-E), and how chains move along it."""

    energy: Energy
    log_q: LogDensity
    temperatures: int = 200
    """Densities after q."""
    leapfrog: int = 8
    """Steps of a transition."""

    def schedule(self, like: Tensor) -> Tensor:
        """b_0 = 0 < ... < b_T = 1, closer together near both ends, where the densities change most."""
        t = torch.linspace(0, 1, self.temperatures + 1, dtype=like.dtype, device=like.device)
        return t * t * (3 - 2 * t)

    def potential(self, x: Tensor, b: Tensor) -> Tensor:
        return b * self.energy(x).flatten() - (1 - b) * self.log_q(x)

    @torch.no_grad()
    def forward(self, x: Tensor, seed: int = 0) -> LogPartition:
        """From samples x (n, D) of q."""
        return from_log_weights(self.log_weights(x, seed, self.step_sizes(x, seed)), "annealed importance sampling")

    @torch.no_grad()
    def sandwich(self, x: Tensor, exact: Tensor, seed: int = 0) -> tuple[LogPartition, LogPartition]:
        """Estimates that err low and high: from samples x of q, and from exact samples of the model."""
        sizes = self.step_sizes(x, seed)
        below = from_log_weights(self.log_weights(x, seed, sizes), "annealed importance sampling")
        inverse = from_log_weights(self.log_weights(exact, seed + 1, sizes, backwards=True))
        above = LogPartition(-inverse.value, inverse.standard_error, inverse.effective_samples, "reverse annealing")
        return below, above

    def log_weights(self, x: Tensor, seed: int, sizes: Tensor, backwards: bool = False) -> Tensor:
        """(n,). Forwards their mean is Z, backwards 1 / Z."""
        b = self.schedule(x)
        order = range(self.temperatures, 0, -1) if backwards else range(1, self.temperatures + 1)
        total = torch.zeros_like(x[:, 0])
        for t in order:
            if backwards:  # a move that leaves b_t unchanged comes before the weight, the mirror image of the way out
                x, _ = self.move(x, b[t], sizes[t], noise(seed, t, x.device))
            start, end = (b[t], b[t - 1]) if backwards else (b[t - 1], b[t])
            total = total + self.potential(x, start) - self.potential(x, end)
            if not backwards:
                x, _ = self.move(x, b[t], sizes[t], noise(seed, t, x.device))
        return total

    def step_sizes(self, x: Tensor, seed: int) -> Tensor:
        """For each density, from a pilot run that adapts them to the acceptance. The run that counts must not: weights
        of chains that tune themselves are no longer exact."""
        b = self.schedule(x)
        sizes = torch.ones_like(b)
        size = 0.5 * x.std() / x.shape[1] ** 0.25
        for t in range(1, self.temperatures + 1):
            for attempt in range(3 if t > 1 else 20):
                x, accepted = self.move(x, b[t], size, noise(seed, t, x.device)(f"pilot {attempt}"))
                size = size * torch.exp(accepted - ACCEPTANCE)
            sizes[t] = size
        return sizes

    def move(self, x: Tensor, b: Tensor, size: Tensor, fresh: Noise) -> tuple[Tensor, Tensor]:
        """One Hamiltonian transition, which leaves the density at b unchanged; and the share of chains that moved."""
        slope = torch.func.grad(lambda x: self.potential(x, b).sum())
        # Without jitter all trajectories near a Gaussian mode turn by one angle, and where that is half a turn no chain
        # changes its energy.
        size = size * (0.5 + fresh("jitter").uniform(len(x), 1).to(x))
        p = fresh("momentum").normal(*x.shape).to(x)
        before = self.potential(x, b) + 0.5 * p.square().sum(1)
        y = x
        p = p - size / 2 * slope(y)
        for i in range(self.leapfrog):
            y = y + size * p
            p = p - (size if i < self.leapfrog - 1 else size / 2) * slope(y)
        after = self.potential(y, b) + 0.5 * p.square().sum(1)
        uniform = fresh("accept").uniform(len(x), 1)[:, 0].to(x)
        accept = uniform.log() < before - after  # false for NaN, so that a chain that flew off stays
        return torch.where(accept[:, None], y, x), accept.to(x).mean()
