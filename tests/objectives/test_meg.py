"""MEG's critic where the mutual information is known: x = A z + s epsilon, all Gaussian."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from ebmbounds.networks.critic import Critic
from ebmbounds.noise import noise
from ebmbounds.objectives import MEG

A = torch.tensor([[1.0, 0.5], [-0.3, 0.8], [0.2, 0.1]], dtype=torch.float64)
S = 0.7
EYE = torch.eye(3, dtype=torch.float64)
N = 100_000


class LogRatio(nn.Module):
    """slope * log p(x|z) / p(x) + offset: the best critic where slope = 1 and offset = 0."""

    def __init__(self, slope: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.slope, self.offset = nn.Parameter(torch.tensor(slope)), nn.Parameter(torch.tensor(offset))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        given_z = MultivariateNormal(z @ A.T, S**2 * EYE)
        alone = MultivariateNormal(torch.zeros(3), A @ A.T + S**2 * EYE)
        return self.slope * (given_z.log_prob(x) - alone.log_prob(x)) + self.offset


@pytest.fixture
def pairs(double) -> tuple[Tensor, Tensor]:
    z = noise(0)("z").normal(N, 2)
    return z @ A.T + S * noise(0)("epsilon").normal(N, 3), z


def test_the_best_critic_averages_to_the_mutual_information(play, pairs):
    critic = LogRatio()
    loss, info = MEG().cross_entropy(play(N, 2, critic=critic), *pairs)
    truth = 0.5 * math.log(torch.det(EYE + A @ A.T / S**2))
    assert float(info["mutual_information"]) == pytest.approx(truth, abs=0.01)
    for gradient in torch.autograd.grad(loss, list(critic.parameters())):
        assert float(gradient) == pytest.approx(0, abs=2e-3)


@pytest.mark.parametrize("other", [LogRatio(0.7), LogRatio(1.4), LogRatio(1.0, 0.3), LogRatio(1.0, -0.3)])
def test_any_other_critic_pays_more(play, pairs, other):
    best, _ = MEG().cross_entropy(play(N, 2, critic=LogRatio()), *pairs)
    worse, _ = MEG().cross_entropy(play(N, 2, critic=other), *pairs)
    assert worse > best + 1e-3


def test_the_generator_pays_its_energy_and_the_critics_cross_entropy(play, double):
    objective = MEG(entropy_weight=0.3)
    game = play(16, 2, energy=nn.Linear(3, 1), generator=nn.Linear(2, 3), critic=Critic((3,), 2, 8))
    z = noise(5)("z").normal(16, 2)
    loss, _ = objective.losses()["generator"](game, torch.randn(16, 3), noise(5), None)
    cross_entropy, _ = objective.losses()["critic"](game, torch.randn(16, 3), noise(5), None)
    torch.testing.assert_close(loss, game.energy(game.generator(z)).mean() + 0.3 * cross_entropy)


@pytest.mark.parametrize(
    ("shape", "convolutions"), [((2,), 0), ((3, 28, 28), 0), ((1, 32, 32), 7), ((3, 64, 64), 7), ((2, 3, 5), 0)]
)
def test_critics_take_pairs_of_every_shape(shape, convolutions):
    critic = Critic(shape, 4, 16)
    assert sum(isinstance(layer, nn.Conv2d) for layer in critic.modules()) == convolutions
    x, z = torch.randn(3, *shape), torch.randn(3, 4)
    found = critic(x, z)
    assert found.shape == (3, 1)
    assert not torch.equal(found, critic(x, z.roll(1, 0))) and not torch.equal(found, critic(x.roll(1, 0), z))
