"""A trained pair: an energy and a generator with fixed parameters, as functions."""

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from ebmbounds import bounds
from ebmbounds.game import Network
from ebmbounds.noise import noise
from ebmbounds.step import State, Step

PAIR = ("energy", "generator")
"""The players that a model is made of, whatever others trained along."""


@dataclass(frozen=True)
class Model:
    """Both networks in eval mode. `energy` maps data (n, ...) to (n,), `generator` maps latents (n, d) to data."""

    energy_network: Network
    generator_network: Network
    latent_dim: int
    data_shape: tuple[int, ...]
    device: torch.device
    iterations: int
    """That it was trained for."""
    unaveraged: "Model | None" = None
    """The networks as they were trained last, where this is their moving average."""

    @classmethod
    def of(cls, step: Step, state: State) -> "Model":
        """The pair of a training state; its moving average where the run keeps one."""
        if "average" in state:
            last = {key: value for key, value in state.items() if key != "average"}
            averaged = {
                kind: {
                    player: {name: state["average"][player].get(name, value) for name, value in table.items()}
                    for player, table in state[kind].items()
                }
                for kind in ("parameters", "buffers")
            }
            model = cls.of(step, last | averaged)
            # Weights that moved while they were averaged have other activations than any of them had, so that batch
            # norm's statistics, averaged along, are not those of the average (docs/stackedmnist.md has the difference).
            latents = model.latents(enough_for_statistics(model), seed=2**31 - 1)  # not those of samples
            generator = model.generator_network.with_own_statistics(latents.split(256))
            return replace(model, generator_network=generator, unaveraged=cls.of(step, last))
        # In full precision whatever the run trained in: in bf16 energies of a thousand would come in steps of eight.
        energy, generator = (
            Network(step.skeletons[name], state["parameters"][name], state["buffers"][name]) for name in PAIR
        )
        device = state["step"].device
        shape = tuple(step.data.shape)
        return cls(energy, generator, step.optimizer.latent_dim, shape, device, int(state["step"]))

    def double(self) -> "Model":
        """The same pair in double precision."""
        return replace(
            self, energy_network=self.energy_network.double(), generator_network=self.generator_network.double()
        )

    def tables(self) -> State:
        """Parameters and buffers, from which `of` makes the model again."""
        networks = dict(zip(PAIR, (self.energy_network, self.generator_network), strict=True))
        return {
            "parameters": {name: network.parameters for name, network in networks.items()},
            "buffers": {name: network.buffers for name, network in networks.items()},
        }

    def energy(self, x: Tensor) -> Tensor:
        return self.energy_network.frozen(x).flatten()

    def generator(self, z: Tensor) -> Tensor:
        return self.generator_network.frozen(z)

    def generator_log_density(self, x: Tensor) -> Tensor:
        """log p_g(x), (n,), of an invertible generator."""
        return self.generator_network.frozen(x, "log_density")

    def latents(self, n: int, seed: int = 0) -> Tensor:
        z = noise(seed, device=self.device)("latents").normal(n, self.latent_dim)
        return z.to(next(iter(self.generator_network.parameters.values())).dtype)

    @torch.no_grad()
    def sample(self, n: int, seed: int = 0, batch: int = 1000) -> Tensor:
        """n samples of the generator, (n, *data_shape)."""
        return torch.cat([self.generator(z) for z in self.latents(n, seed).split(batch)])

    @torch.no_grad()
    def sample_with_density(self, n: int, seed: int = 0, batch: int = 1000) -> tuple[Tensor, Tensor]:
        """n samples of the generator, (n, *data_shape), and log p_g there, (n,); d = D.

        Exact where the generator is invertible; where it folds, one preimage of several is counted."""

        def one(z: Tensor) -> tuple[Tensor, Tensor]:
            if self.generator_network.invertible:
                return self.generator_network.frozen(z, "sample")
            return self.generator(z), bounds.log_density(self.generator, z)

        x, log_p = zip(*(one(z) for z in self.latents(n, seed).split(batch)), strict=True)
        return torch.cat(x), torch.cat(log_p)

    @torch.no_grad()
    def energies(self, x: Tensor, batch: int = 1000) -> Tensor:
        """Energies (n,) of data, a batch at a time."""
        return torch.cat([self.energy(part.to(self.device)) for part in x.split(batch)])


def enough_for_statistics(model: Model) -> int:
    """Latents for batch norm's statistics; those of convolutions are over the pixels too, so that fewer images do."""
    modules = model.generator_network.skeleton.train.modules()
    convolutional = any(isinstance(module, _ConvNd) for module in modules)
    return max(256, 2**20 // prod(model.data_shape[1:])) if convolutional else 8192
