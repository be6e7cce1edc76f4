"""A user's own networks, data and methods go through the step and the trainer as they are.

The first half is the tested twin of examples/own_method.py; the second has shapes that the package does not have.
"""

import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ebmbounds.data import ResidentRows
from ebmbounds.execution import plain
from ebmbounds.model import Model
from ebmbounds.noise import Noise, noise
from ebmbounds.objectives import EBMBB, METHODS, Objective
from ebmbounds.run import Run, flatten
from ebmbounds.step import Optimizer, Step
from ebmbounds.trainer import Trainer

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_method.py"


@pytest.fixture(scope="module")
def example() -> dict:
    return runpy.run_path(str(EXAMPLE))


# -- the example -----------------------------------------------------------------------------------------------------


def test_the_example_learns_its_ring(example, tmp_path, capsys):
    model = example["main"](tmp_path / "run", progress=False)
    samples = model.sample(2000)
    radius = samples.norm(dim=1)
    assert float(radius.mean()) == pytest.approx(2, abs=0.15) and radius.std() < 0.4
    angles = torch.histc(torch.atan2(samples[:, 1], samples[:, 0]), 8, -torch.pi, torch.pi)
    assert angles.min() > 2000 / 8 / 4  # all around
    on, off = example["Ring"]().draw(noise(1), 1000), torch.tensor([[0.0, 0.0], [6.0, 0.0]])
    assert model.energies(on).mean() < model.energies(off).min()
    assert capsys.readouterr().out == ""

    run = Run.open(tmp_path / "run")
    assert int(run.load()[0]["step"]) == 1000
    assert {"loss_energy", "loss_generator", "entropy"} <= set(list(run.records())[-1])


def test_the_example_resumes_bit_for_bit(example, tmp_path):
    """With nothing but the pieces that the example uses."""
    torch.manual_seed(0)
    players = {"energy": example["Energy"](), "generator": nn.Linear(2, 2)}
    step = Step(example["Classifier"](), players, example["Ring"](), Optimizer(batch_size=16))
    whole, parts = Run.create(tmp_path / "whole", {}), Run.create(tmp_path / "parts", {})
    options = {"log_every": 3, "checkpoint_every": 5, "progress": False}
    Trainer(whole, plain(step), 20, **options).train(step.initial_state(seed=0))
    Trainer(parts, plain(step), 10, **options).train(step.initial_state(seed=0))
    state = step.initial_state(seed=0)
    for name, tensor in flatten(parts.load()[0]).items():
        flatten(state)[name].copy_(tensor)
    Trainer(parts, plain(step), 20, **options).train(state)
    one, two = flatten(whole.load()[0]), flatten(parts.load()[0])
    assert set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)


# -- own networks and data under the package's methods ---------------------------------------------------------------


class Images:
    """Data of an odd shape."""

    shape = (2, 3, 5)

    def draw(self, source: Noise, n: int) -> Tensor:
        return source("x").uniform(n, *self.shape)


class OddEnergy(nn.Module):
    """One number a sample without a trailing dimension, a buffer, and dimensions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor(0.5))
        self.filters = nn.Conv2d(2, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(self.filters(x - self.offset)).sum((1, 2, 3))


class OddGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 20), nn.Linear(20, 30)
        self.register_buffer("calls", torch.tensor(0), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return torch.sigmoid(self.second(torch.tanh(self.first(z)))).unflatten(1, (2, 3, 5))


@pytest.mark.parametrize("name", METHODS)
def test_own_networks_and_data_under_every_method(name, tmp_path):
    torch.manual_seed(0)
    objective = METHODS[name]()
    players = {"energy": OddEnergy(), "generator": OddGenerator()} | objective.extra_players(Images.shape, 3)
    step = Step(objective, players, Images(), Optimizer(batch_size=8, latent_dim=3))
    state = step.initial_state(seed=0)
    before = {key: t.clone() for key, t in flatten(state["parameters"]).items()}
    run = Run.create(tmp_path / "run", {})
    assert Trainer(run, plain(step), 5, log_every=2, progress=False).train(state) is None
    for key, t in flatten(state["parameters"]).items():
        assert t.isfinite().all() and not torch.equal(t, before[key]), key
    calls = int(state["buffers"]["generator"]["calls"])
    assert calls % 5 == 0 and calls // 5 >= len(objective.turns())  # every turn calls it in train mode
    model = Model.of(step, state)
    samples = model.sample(7, batch=3)
    assert samples.shape == (7, 2, 3, 5) and model.energies(samples, batch=2).shape == (7,)
    assert int(state["buffers"]["generator"]["calls"]) == calls  # sampling does not


def test_rows_of_an_array_are_data(tmp_path):
    rows = torch.randn(50, 4)
    data = ResidentRows.of(rows.numpy())
    x = data.draw(noise(0), 1000)
    assert data.shape == (4,) and x.shape == (1000, 4)
    assert {tuple(row) for row in x.tolist()} == {tuple(row) for row in rows.tolist()}
    energy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    step = Step(EBMBB(), {"energy": energy, "generator": nn.Linear(2, 4)}, data, Optimizer(batch_size=8))
    state = step.initial_state(seed=0)
    Trainer(Run.create(tmp_path / "run", {}), plain(step), 3, progress=False).train(state)
    assert int(state["step"]) == 3


# -- own methods -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WithCritic(Objective):
    """Three players, one of them the method's own; something shared between turns; its own diagnostics."""

    def extra_players(self, data_shape, latent_dim):
        return {"critic": nn.Bilinear(data_shape[0], latent_dim, 1)}

    def prepare(self, game, source):
        return game.latents(source("z"))

    def losses(self):
        return {"energy": self.energy_loss, "critic": self.critic_loss, "generator": self.generator_loss}

    def energy_loss(self, game, x, source, z):
        return (game.energy(x) - game.energy(game.generator(z))).mean(), {"z": z.mean().detach()}

    def critic_loss(self, game, x, source, z):
        return (game.critic(game.generator(z), z) - 1).square().mean(), {"x": x.mean().detach()}

    def generator_loss(self, game, x, source, z):
        generated = game.generator(z)
        return (game.energy(generated) - game.critic(generated, z)).mean(), {}


def test_a_method_with_a_player_of_its_own(tmp_path):
    torch.manual_seed(0)
    objective, data = WithCritic(energy_steps=2), ResidentRows(torch.randn(50, 4))
    energy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    players = {"energy": energy, "generator": nn.Linear(2, 4)} | objective.extra_players((4,), 2)
    step = Step(objective, players, data, Optimizer(batch_size=8, ema=0.5))
    assert objective.turns() == ["energy", "energy", "critic", "generator"]
    state = step.initial_state(seed=0)
    run = Run.create(tmp_path / "run", {})
    before = {key: t.clone() for key, t in flatten(state["parameters"]).items()}
    Trainer(run, plain(step), 4, log_every=2, progress=False).train(state)
    after = flatten(state["parameters"])
    for player in players:
        assert any(not torch.equal(after[key], before[key]) for key in after if key.startswith(player))
    assert {"loss_critic", "z", "x"} <= set(list(run.records())[-1])
