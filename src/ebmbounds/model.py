"""A trained pair: an energy and a generator with fixed parameters, as functions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ebmbounds.game import Network
from ebmbounds.noise import noise
from ebmbounds.step import State, Step


@dataclass(frozen=True)
class Model:
    """Both networks in eval mode. `energy` maps data (n, ...) to (n,), `generator` maps latents (n, d) to data."""

    energy_network: Network
    generator_network: Network
    latent_dim: int
    data_shape: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, step: Step, state: State) -> "Model":
        """The pair of a training state; its moving average where the run keeps one."""
        parameters = state["average"] if "average" in state else state["parameters"]
        # In full precision whatever the run trained in: in bf16 energies of a thousand would come in steps of eight.
        energy, generator = (
            Network(step.skeletons[name], parameters[name], state["buffers"][name]) for name in ("energy", "generator")
        )
        device = state["step"].device
        return cls(energy, generator, step.optimizer.latent_dim, tuple(step.data.shape), device)

    def energy(self, x: Tensor) -> Tensor:
        return self.energy_network.frozen(x).flatten()

    def generator(self, z: Tensor) -> Tensor:
        return self.generator_network.frozen(z)

    def latents(self, n: int, seed: int = 0) -> Tensor:
        return noise(seed, device=self.device)("latents").normal(n, self.latent_dim)

    @torch.no_grad()
    def sample(self, n: int, seed: int = 0, batch: int = 1000) -> Tensor:
        """n samples of the generator, (n, *data_shape)."""
        return torch.cat([self.generator(z) for z in self.latents(n, seed).split(batch)])

    @torch.no_grad()
    def energies(self, x: Tensor, batch: int = 1000) -> Tensor:
        """Energies (n,) of data, a batch at a time."""
        return torch.cat([self.energy(part.to(self.device)) for part in x.split(batch)])
