"""Your own data, networks and method, trained by ebmbounds without editing it.

python examples/own_method.py runs/own
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ebmbounds import Model, Run, bounds
from ebmbounds.execution import plain
from ebmbounds.game import Game
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Info, Loss, Objective
from ebmbounds.step import Optimizer, Step
from ebmbounds.trainer import Trainer


class Ring:
    """A data set has the shape of a sample, and draws a batch as a function of the noise alone."""

    shape = (2,)

    def draw(self, noise: Noise, n: int) -> Tensor:
        angle = 2 * torch.pi * noise("angle").uniform(n, 1)
        radius = 2 + 0.1 * noise("radius").normal(n, 1)
        return radius * torch.cat((angle.cos(), angle.sin()), dim=1)


class Energy(nn.Module):
    """A network is any module; an energy gives one number a sample. The square makes this one grow outwards."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64))
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).square().mean(1) - self.offset


@dataclass(frozen=True)
class Classifier(Objective):
    """A method has its hyper-parameters as fields, and one loss for each player. Here the energy learns to tell data
    from samples by logistic regression; the generator seeks low energies and, by Eq. 9, high entropy."""

    entropy_weight: float = 0.1

    def losses(self) -> dict[str, Loss]:
        return {"energy": self.energy_loss, "generator": self.generator_loss}

    def energy_loss(self, game: Game, x: Tensor, noise: Noise, shared: None) -> tuple[Tensor, Info]:
        generated = game.generator(game.latents(noise("z")))
        return softplus(game.energy(x)).mean() + softplus(-game.energy(generated)).mean(), {}

    def generator_loss(self, game: Game, x: Tensor, noise: Noise, shared: None) -> tuple[Tensor, Info]:
        z = game.latents(noise("z"))
        entropy = bounds.entropy(game.generator.frozen, z)
        return game.energy(game.generator(z)).mean() - self.entropy_weight * entropy, {"entropy": entropy.detach()}


def main(folder: str | Path = "runs/own", steps: int = 1000, progress: bool = True) -> Model:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # fastest for networks this small
    generator = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    players = {"energy": Energy(), "generator": generator}
    optimizer = Optimizer(lr_energy=5e-3, lr_generator=2e-3, beta2=0.9, batch_size=256, latent_dim=2)
    step = Step(Classifier(), players, Ring(), optimizer)
    run = Run.create(folder, {"method": "classifier", "data": "ring"})
    state = step.initial_state(seed=0)
    # `execution.compiled` in place of `plain` is several times faster, after a minute of compilation.
    Trainer(run, plain(step), steps, progress=progress).train(state)
    return Model.of(step, state)


if __name__ == "__main__":
    radius = main(*sys.argv[1:2]).sample(10_000).norm(dim=1)
    print(f"radius of the samples: {radius.mean():.2f} +- {radius.std():.2f}, of the data: 2.00 +- 0.10")
