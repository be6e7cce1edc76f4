"""log Z where it is known: every method agrees with the truth within its error bars."""

import math

import pytest
import torch
from torch import Tensor

from ebmbounds import partition
from ebmbounds.annealing import Annealing
from ebmbounds.bounds import base_log_density, effective_samples, log_partition_lower, log_partition_upper
from ebmbounds.errors import BadInput

pytestmark = pytest.mark.usefixtures("double")
OFFSET = 7.0
"""log Z of every model here."""


class Mixture:
    """A mixture of round Gaussians, as an energy with log Z = OFFSET."""

    def __init__(self, dim: int, modes: int, distance: float) -> None:
        generator = torch.Generator().manual_seed(dim)
        self.means = distance * torch.nn.functional.normalize(torch.randn(modes, dim, generator=generator))
        self.scales = torch.linspace(0.8, 1.0, modes)

    def energy(self, x: Tensor) -> Tensor:
        parts = [log_normal(x - mean, scale) for mean, scale in zip(self.means, self.scales, strict=True)]
        return -torch.logsumexp(torch.stack(parts), 0) + math.log(len(parts)) - OFFSET

    def sample(self, n: int) -> Tensor:
        mode = torch.randint(len(self.means), (n,))
        return self.means[mode] + self.scales[mode, None] * torch.randn(n, self.means.shape[1])


def log_normal(x: Tensor, scale: Tensor | float) -> Tensor:
    return base_log_density(x / scale) - x.shape[1] * torch.as_tensor(scale).log()


MODELS = pytest.mark.parametrize(
    "model",
    [Mixture(2, 3, 2.0), Mixture(10, 3, 1.5), Mixture(50, 1, 1.0), Mixture(50, 2, 1.0)],
    ids=["2", "10", "50", "50, two modes"],
)
BROAD = 1.2


def within(found: partition.LogPartition, sigmas: float = 4.0) -> bool:
    return abs(found.value - OFFSET) < sigmas * found.standard_error + 1e-9


@pytest.mark.parametrize("dim, cells", [(1, None), (2, 200), (3, 60)])
def test_quadrature(dim, cells):
    model = Mixture(dim, 2, 1.0)
    box = torch.full((dim,), 7.0)
    found = partition.quadrature(model.energy, -box, box, cells)
    assert found.value == pytest.approx(OFFSET, abs=1e-6) and found.standard_error < 1e-3
    assert 1 < found.effective_samples < (cells or partition.CELLS[dim]) ** dim


def test_quadrature_is_for_few_dimensions():
    with pytest.raises(BadInput, match="not 4"):
        partition.quadrature(Mixture(4, 1, 1.0).energy, -torch.ones(4), torch.ones(4))


@pytest.mark.parametrize("model", [Mixture(2, 3, 2.0), Mixture(10, 2, 1.0)], ids=["2", "10"])
def test_importance_sampling(model):
    x = 1.3 * torch.randn(50_000, model.means.shape[1])
    found = partition.importance_sampling(model.energy, x, log_normal(x, 1.3))
    assert within(found) and 1e-4 < found.standard_error < 0.1
    assert 50 < found.effective_samples < 50_000


def test_a_perfect_proposal_has_no_error():
    model = Mixture(50, 2, 1.0)
    x = model.sample(1000)
    found = partition.importance_sampling(model.energy, x, -model.energy(x) - OFFSET)
    assert found.standard_error == pytest.approx(0, abs=1e-6) and found.effective_samples == pytest.approx(1000)


def test_the_standard_error_is_the_spread_of_repetitions():
    model = Mixture(2, 3, 2.0)
    runs = []
    for _ in range(200):
        x = 1.3 * torch.randn(500, 2)
        runs.append(partition.importance_sampling(model.energy, x, log_normal(x, 1.3)))
    spread = float(torch.tensor([run.value for run in runs]).std())
    claimed = sum(run.standard_error for run in runs) / len(runs)
    assert claimed == pytest.approx(spread, rel=0.25)


@MODELS
def test_annealing_encloses_the_truth(model):
    """Forward chains err low, reverse ones from exact samples high; both within their error bars."""
    dim, n = model.means.shape[1], 300
    path = Annealing(model.energy, lambda x: log_normal(x, BROAD), temperatures=60, leapfrog=5)
    below, above = path.sandwich(BROAD * torch.randn(n, dim), model.sample(n))
    assert within(below) and within(above)
    assert below.effective_samples > 20 and below.standard_error < 0.3
    slack = 3 * (below.standard_error**2 + above.standard_error**2) ** 0.5
    assert below.value <= above.value + slack


def test_a_smoothed_generator_of_fewer_dimensions():
    """x = A z + sigma epsilon is Gaussian; its posterior as auxiliary leaves no error, a learned one little."""
    A, sigma = torch.tensor([[1.0, 0.0], [0.5, 0.8], [0.0, -0.3]]), 0.5
    covariance = A @ A.T + sigma**2 * torch.eye(3)
    model = torch.distributions.MultivariateNormal(torch.zeros(3), covariance)
    precision = torch.eye(2) + A.T @ A / sigma**2
    gain = torch.linalg.solve(precision, A.T) / sigma**2

    def posterior(z: Tensor, x: Tensor) -> Tensor:
        return torch.distributions.MultivariateNormal(x @ gain.T, precision_matrix=precision).log_prob(z)

    learned = partition.GaussianAuxiliary(3, 2, width=16).fit(lambda z: z @ A.T, sigma, 2, steps=300)
    z = torch.randn(5000, 2)
    for auxiliary, share in ((posterior, 0.999), (learned, 0.3)):
        found = partition.joint_importance_sampling(
            lambda x: -model.log_prob(x) - OFFSET, lambda z: z @ A.T, sigma, auxiliary, z
        )
        assert within(found) and found.effective_samples > share * len(z)


def test_multi_sample_bounds_enclose_log_z_and_tighten():
    model = Mixture(2, 3, 2.0)

    def mean_bounds(K: int) -> tuple[float, float]:
        x = 1.5 * torch.randn(20_000 // K * K, 2)
        log_weights = (-model.energy(x) - log_normal(x, 1.5)).reshape(-1, K)
        exact = model.sample(len(log_weights))
        own = -model.energy(exact) - log_normal(exact, 1.5)
        lower = [log_partition_lower(row) for row in log_weights]
        upper = [log_partition_upper(o[None], row) for o, row in zip(own, log_weights, strict=True)]
        return float(torch.stack(lower).mean()), float(torch.stack(upper).mean())

    (l1, u1), (l10, u10), (l100, u100) = map(mean_bounds, (1, 10, 100))
    assert l1 < l10 - 0.05 < l100 and u1 > u10 + 0.05 > u100
    assert l100 - 0.03 < OFFSET < u100 + 0.03


def test_effective_samples():
    assert effective_samples(torch.zeros(50)) == pytest.approx(50)
    assert effective_samples(torch.tensor([0.0, -100.0])) == pytest.approx(1)
