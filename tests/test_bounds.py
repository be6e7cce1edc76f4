"""The paper's equations on models where everything has a closed form. float64 throughout.

Sigma points z = +-sqrt(d) e_i have the mean and the covariance of N(0, I), so averages of quadratics over them are
exact: for Gaussian energies and linear generators nothing below is a sampling estimate. Elsewhere z is a Sobol sample.
"""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import qmc
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from ebmbounds import bounds, spectra

pytestmark = pytest.mark.usefixtures("double")

seeds = st.integers(0, 10_000)
dimensions = st.integers(1, 5)


def sigma_points(d: int) -> Tensor:
    return d**0.5 * torch.cat((torch.eye(d), -torch.eye(d)))


def sobol_normals(d: int, power: int = 12) -> Tensor:
    sample = qmc.MultivariateNormalQMC(torch.zeros(d).numpy(), rng=0).random(2**power)
    return torch.from_numpy(sample)


class GaussianEnergy:
    """E(x) = (x - mean)' P (x - mean) / 2 + offset, with its log Z."""

    def __init__(self, mean: Tensor, covariance: Tensor, offset: float = 0.0) -> None:
        self.mean, self.covariance, self.offset = mean, covariance, offset
        self.precision = torch.linalg.inv(covariance)

    def __call__(self, x: Tensor) -> Tensor:
        y = x - self.mean
        return 0.5 * ((y @ self.precision) * y).sum(1) + self.offset

    @property
    def log_partition(self) -> float:
        D = len(self.mean)
        return float(D / 2 * math.log(2 * math.pi) + torch.logdet(self.covariance) / 2) - self.offset

    def nll(self, data: Tensor) -> float:
        """L of Eq. 2, exactly."""
        return float(self(data).mean()) + self.log_partition

    @property
    def log_sobolev(self) -> float:
        return float(torch.linalg.eigvalsh(self.covariance)[-1]) / 2


def random_covariance(d: int) -> Tensor:
    A = torch.randn(d, d)
    return A @ A.T / d + 0.05 * torch.eye(d)


def random_gaussian_energy(d: int) -> GaussianEnergy:
    return GaussianEnergy(torch.randn(d), random_covariance(d), offset=float(torch.randn(())))


def linear(A: Tensor, b: Tensor):
    return lambda z: z @ A.T + b


def bent(A: Tensor, b: Tensor, C: Tensor):
    """A diffeomorphism of R^d: the bend's slope stays at half of the smallest singular value of A."""
    bend = 0.5 * torch.linalg.svdvals(A)[-1] / torch.linalg.svdvals(C)[0]
    return lambda z: z @ A.T + b + bend * torch.tanh(z @ C.T)


def sandwich(energy: GaussianEnergy, g, z: Tensor, data: Tensor) -> tuple[float, float, float]:
    """Lower bound, exact NLL, upper bound by the log-Sobolev inequality."""
    lower = bounds.lower_bound(energy(data), energy(g(z)), bounds.entropy(g, z))
    upper = bounds.upper_bound(lower, bounds.score_gap(energy, g, z), energy.log_sobolev)
    return float(lower), energy.nll(data), float(upper)


# -- density and entropy ---------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(dimensions, seeds)
def test_log_density_of_a_linear_generator(d, seed):
    torch.manual_seed(seed)
    A, b, z = torch.randn(d, d), torch.randn(d), torch.randn(6, d)
    assume(torch.linalg.svdvals(A)[-1] > 1e-2)
    expected = MultivariateNormal(b, A @ A.T).log_prob(linear(A, b)(z))
    torch.testing.assert_close(bounds.log_density(linear(A, b), z), expected, rtol=1e-8, atol=1e-8)


def test_log_density_on_a_manifold():
    """A Gaussian on a line in the plane: density along the line, in units of length."""
    g, z = (lambda z: 0.1 * z @ torch.tensor([[0.6, 0.8]])), torch.randn(5, 1)
    expected = torch.distributions.Normal(0, 0.1).log_prob(0.1 * z[:, 0])
    torch.testing.assert_close(bounds.log_density(g, z), expected)
    # Eq. 4 is no bound off d = D: with E = |x|^2 / (2 * 0.01), "lower" exceeds log Z.
    energy = GaussianEnergy(torch.zeros(2), 0.01 * torch.eye(2))
    points = sigma_points(1)
    claimed = float(bounds.entropy(g, points) - energy(g(points)).mean())
    assert claimed == pytest.approx(-1.38, abs=0.01) and energy.log_partition == pytest.approx(-2.77, abs=0.01)


@pytest.mark.parametrize(("D", "d"), [(1, 1), (3, 3), (6, 2), (9, 5)])
def test_entropy_of_a_linear_generator(D, d):
    A, b = torch.randn(D, d), torch.randn(D)
    expected = d / 2 * (1 + math.log(2 * math.pi)) + float(torch.logdet(A.T @ A)) / 2
    assert float(bounds.entropy(linear(A, b), torch.randn(7, d))) == pytest.approx(expected)
    assert bounds.base_entropy(d) == pytest.approx(float(MultivariateNormal(torch.zeros(d), torch.eye(d)).entropy()))


def test_entropy_of_a_log_normal():
    """x = exp(z) has entropy mu + log(sigma sqrt(2 pi e)), here with mu 0 and sigma 1."""
    z = sobol_normals(1)
    assert float(bounds.entropy(torch.exp, z)) == pytest.approx(0.5 * math.log(2 * math.pi * math.e), abs=1e-3)


@settings(max_examples=10)
@given(st.integers(1, 6), st.integers(0, 4), seeds)
def test_the_entropy_bound_is_below(d, extra, seed):
    """With LOBPCG converged."""
    torch.manual_seed(seed)
    g = nn.Sequential(nn.Linear(d, d + 4), nn.Tanh(), nn.Linear(d + 4, d + extra))
    z = torch.randn(5, d)
    bound, exact = bounds.entropy_lower_bound(g, z, steps=60), bounds.entropy(g, z)
    assert bound <= exact + 1e-9
    # And it is that of Eq. 10, not merely something lower.
    s1 = torch.linalg.svdvals(spectra.jacobian(g, z))[:, -1]
    torch.testing.assert_close(bound, bounds.base_entropy(d) + d * s1.log().mean(), rtol=0, atol=1e-3 * d)


def test_the_entropy_bound_is_tight_for_scaled_isometries():
    Q = torch.linalg.qr(torch.randn(5, 3))[0]
    g, z = linear(0.3 * Q, torch.zeros(5)), torch.randn(4, 3)
    torch.testing.assert_close(bounds.entropy_lower_bound(g, z, steps=1), bounds.entropy(g, z))


@pytest.mark.parametrize("estimator", ["s1", "exact", "hutchinson"])
def test_the_three_log_volumes(estimator):
    A = torch.randn(6, 4)
    g, z = linear(A, torch.zeros(6)), torch.randn(3, 4)
    values, vectors = torch.linalg.svd(A)[1:]
    smallest = vectors[-1].expand(3, 4)
    probe = torch.randn(3, 4)
    expected = {
        "s1": 4 * values[-1].log().expand(3),
        "exact": values.log().sum().expand(3),
        "hutchinson": 2 * ((probe @ A.T).square().sum(1) / 4).log(),
    }[estimator]
    direction = smallest if estimator == "s1" else probe
    torch.testing.assert_close(bounds.log_volume(g, z, estimator, direction), expected)


# -- the sandwich ----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(dimensions, seeds)
def test_lower_exact_upper_for_linear_generators(d, seed):
    torch.manual_seed(seed)
    energy, data = random_gaussian_energy(d), torch.randn(8, d)
    A, b = torch.randn(d, d), torch.randn(d)
    assume(torch.linalg.svdvals(A)[-1] > 1e-2)
    z = sigma_points(d)
    lower, nll, upper = sandwich(energy, linear(A, b), z, data)
    kl = float(
        torch.distributions.kl_divergence(
            MultivariateNormal(b, A @ A.T), MultivariateNormal(energy.mean, energy.covariance)
        )
    )
    assert lower <= nll + 1e-9 * (1 + abs(nll))
    assert nll <= upper + 1e-9 * (1 + abs(upper))
    assert nll - lower == pytest.approx(kl, rel=1e-6, abs=1e-8)  # Eq. 3: the gap is KL(p_g, p_theta)


@settings(max_examples=15)
@given(st.integers(1, 3), seeds)
def test_lower_exact_upper_for_nonlinear_generators(d, seed):
    """The energy is Gaussian, so the NLL is still exact; the error of the Sobol average is far below the gaps."""
    torch.manual_seed(seed)
    energy, data = random_gaussian_energy(d), torch.randn(8, d)
    A = torch.randn(d, d) + 2 * torch.eye(d)
    assume(torch.linalg.svdvals(A)[-1] > 0.1)
    g = bent(A, torch.randn(d), torch.randn(d, d))
    lower, nll, upper = sandwich(energy, g, sobol_normals(d), data)
    assert lower <= nll + 1e-3
    assert nll <= upper + 1e-3


def test_the_sandwich_is_sharp_enough_to_catch_a_wrong_constant():
    """The log-Sobolev constant is attained as p_g moves along the widest axis: nine tenths of it are too little."""
    energy = GaussianEnergy(torch.zeros(2), torch.diag(torch.tensor([4.0, 1.0])))
    g = linear(torch.diag(torch.tensor([2.0, 1.0])), torch.tensor([3.0, 0.0]))
    z, data = sigma_points(2), torch.randn(4, 2)
    lower, nll, upper = sandwich(energy, g, z, data)
    assert nll == pytest.approx(upper)
    gap = bounds.score_gap(energy, g, z)
    assert bounds.upper_bound(torch.tensor(lower), gap, 0.9 * energy.log_sobolev) < nll


@settings(max_examples=20)
@given(dimensions, seeds)
def test_tight_where_the_generator_is_the_model(d, seed):
    torch.manual_seed(seed)
    A, b = torch.randn(d, d), torch.randn(d)
    assume(torch.linalg.svdvals(A)[-1] > 1e-1)
    energy = GaussianEnergy(b, A @ A.T, offset=0.7)
    lower, nll, upper = sandwich(energy, linear(A, b), sigma_points(d), torch.randn(8, d))
    assert lower == pytest.approx(nll, abs=1e-6) and upper == pytest.approx(nll, abs=1e-6)


# -- Theorem 1 -------------------------------------------------------------------------------------------------------

SIDE, BEND, NODES = 2.0, 0.4, 120


def box_generator(z: Tensor) -> Tensor:
    """The normal plane onto the box [0, 2]^2: its density there is smooth, bounded and bounded below."""
    u = torch.special.ndtr(z)
    return SIDE * (u + BEND * torch.sin(2 * math.pi * u) / (2 * math.pi))


def box_log_density(x: Tensor) -> Tensor:
    """log p_g of that generator as a function of x; the bend is inverted by a fixed point that contracts."""
    u = x / SIDE
    for _ in range(60):
        u = x / SIDE - BEND * torch.sin(2 * math.pi * u) / (2 * math.pi)
    return -torch.log(SIDE * (1 + BEND * torch.cos(2 * math.pi * u))).sum(1)


@pytest.mark.parametrize("frequency", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("strength", "eq_14_holds"), [(0.01, False), (0.3, True), (1.0, True), (5.0, True)])
def test_theorem_1_on_a_box(strength, eq_14_holds, frequency):
    """Eq. 13 with M the box's diameter and m = sup - inf of |grad log f|^2; Eq. 15 where Eq. 14 holds."""

    def log_f(x: Tensor) -> Tensor:
        return strength * (
            torch.sin(frequency * math.pi * x[:, 0]) + torch.cos(frequency * math.pi * x[:, 1]) * x[:, 0]
        )

    def energy(x: Tensor) -> Tensor:  # f = exp(-E) / p_g
        return -box_log_density(x) - log_f(x)

    u = torch.cartesian_prod(*2 * [(torch.arange(NODES) + 0.5) / NODES])  # the midpoint rule on the unit square
    z, x = torch.special.ndtri(u), SIDE * u
    log_partition = float(torch.logsumexp(-energy(x), 0) + math.log((SIDE / NODES) ** 2))
    data = x[::37]
    nll = float(energy(data).mean()) + log_partition

    generated = box_generator(z)
    entropy = -bounds.log_density(box_generator, z).mean()
    torch.testing.assert_close(bounds.log_density(box_generator, z), box_log_density(generated))
    lower = bounds.lower_bound(energy(data), energy(generated), entropy)
    gap = bounds.score_gap(energy, box_generator, z)
    torch.testing.assert_close(gap, torch.func.grad(lambda x: log_f(x).sum())(generated).square().sum(1))
    M, m = SIDE * 2**0.5, float(gap.max() - gap.min())

    assert float(lower) <= nll + 1e-6
    assert nll <= float(lower) + M * (float(gap.mean()) + m) ** 0.5 + 1e-6  # Eq. 13
    assert (float(gap.mean()) + m >= 1) == eq_14_holds
    if eq_14_holds:
        assert nll <= float(bounds.upper_bound(lower, gap, M, m)) + 1e-6


# -- Eqs. 18 and 19 --------------------------------------------------------------------------------------------------


def immersion(d: int, D: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d, d + 6), nn.Tanh(), nn.Linear(d + 6, D))


@settings(max_examples=25)
@given(st.integers(1, 5), st.integers(0, 4), seeds)
def test_eq_18_for_tangent_vectors(d, extra, seed):
    """s_1 |u| <= |u J| for u in the range of J, which is everything where D = d."""
    torch.manual_seed(seed)
    g, z = immersion(d, d + extra), torch.randn(4, d)
    u = spectra.jvp(g, z, torch.randn(4, d)) if extra else torch.randn(4, d)
    s1 = spectra.singular_values(g, z)[:, 0]
    assert (s1 * u.norm(dim=1) <= spectra.vjp(g, z, u).norm(dim=1) + 1e-10).all()


def test_eq_18_fails_off_the_tangent_space():
    """The proof takes the smallest eigenvalue of J J', which is 0 where D > d."""
    g, z = immersion(2, 5), torch.randn(3, 2)
    U = torch.linalg.svd(spectra.jacobian(g, z))[0]
    normal = U[:, :, -1]
    s1 = spectra.singular_values(g, z)[:, 0]
    found = spectra.vjp(g, z, normal).norm(dim=1)
    assert (found < 1e-12).all() and (s1 * normal.norm(dim=1) > 1e-3).all()


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(0, 3), seeds)
def test_eq_19_the_mean_over_probes_is_the_squared_norm(d, extra, seed):
    """Summed over the probes e_1, ..., e_d the penalty is its own expectation over v ~ N(0, I)."""
    torch.manual_seed(seed)
    g, z = immersion(d, d + extra), torch.randn(3, d)
    energy = nn.Sequential(nn.Linear(d + extra, 5), nn.Tanh(), nn.Linear(5, 1))
    x, J = g(z), spectra.jacobian(g, z)
    score = bounds.latent_score(g, z, "exact", z)
    gradient = torch.func.grad(lambda x: energy(x).sum())(x)
    whole = torch.einsum("nD,nDd->nd", gradient, J) + score
    total = torch.zeros(3)
    for e in torch.eye(d):
        v = e.expand(3, d)
        total = total + bounds.gradient_penalty(energy, x, spectra.jvp(g, z, v), (score * v).sum(1))
    torch.testing.assert_close(total, whole.square().sum(1))
    if extra == 0:  # Eq. 18 with Eq. 19: s_1^2 |grad log f|^2 <= the penalty's mean
        s1 = spectra.singular_values(g, z)[:, 0]
        gap = bounds.score_gap(lambda x: energy(x).flatten(), g, z)
        assert (s1.square() * gap <= total * (1 + 1e-8)).all()


def test_the_penalty_takes_images():
    """x and J v in any shape, an energy that gives (n, 1)."""
    energy = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softplus(), nn.Flatten(), nn.Linear(8, 1))
    x, Jv = torch.randn(3, 1, 4, 4), torch.randn(3, 1, 4, 4)
    gradient = torch.func.grad(lambda x: energy(x).sum())(x)
    expected = ((gradient * Jv).sum((1, 2, 3)) + torch.ones(3)).square()
    torch.testing.assert_close(bounds.gradient_penalty(energy, x, Jv, torch.ones(3)), expected)


@pytest.mark.parametrize("estimator", ["s1", "exact", "hutchinson"])
def test_the_latent_score_by_finite_differences(estimator):
    g, z = immersion(3, 4), torch.randn(2, 3)
    direction = torch.nn.functional.normalize(torch.randn(2, 3))
    found = bounds.latent_score(g, z, estimator, direction)
    step = 1e-5
    for i in range(3):
        e = step * torch.eye(3)[i]
        high, low = (bounds.base_log_density(t) - bounds.log_volume(g, t, estimator, direction) for t in (z + e, z - e))
        torch.testing.assert_close(found[:, i], (high - low) / (2 * step), rtol=1e-6, atol=1e-7)


@settings(max_examples=20)
@given(dimensions, seeds)
def test_score_gap_of_gaussians(d, seed):
    torch.manual_seed(seed)
    energy, z = random_gaussian_energy(d), torch.randn(5, d)
    A, b = torch.randn(d, d), torch.randn(d)
    assume(torch.linalg.svdvals(A)[-1] > 1e-2)
    x = linear(A, b)(z)
    gradient = (x - energy.mean) @ energy.precision
    score = -torch.linalg.solve(A @ A.T, (x - b).T).T
    expected = (gradient + score).square().sum(1)
    torch.testing.assert_close(bounds.score_gap(energy, linear(A, b), z), expected, rtol=1e-6, atol=1e-6)


def test_score_gap_of_a_bent_generator():
    """A log-normal p_g has a score in closed form: -(1 + log x) / x."""
    z = torch.randn(6, 1)
    x = torch.exp(z)
    energy = GaussianEnergy(torch.zeros(1), torch.eye(1))
    expected = (x - (1 + torch.log(x)) / x).square()[:, 0]
    torch.testing.assert_close(bounds.score_gap(energy, torch.exp, z), expected)


@given(st.floats(0, 10), st.floats(0, 10))
def test_the_hinge(penalty, margin):
    found = float(bounds.hinge(torch.tensor(penalty), margin))
    assert found == pytest.approx(max(penalty - margin, 0), abs=1e-12)
