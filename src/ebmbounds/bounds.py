"""The paper's equations, one function each. Shapes: n samples, latent dimension d, data dimension D.

The generator g pushes z ~ N(0, I_d) to x = g(z) ~ p_g; the energy E defines p(x) = exp(-E(x)) / Z. The lower and
the upper bound enclose the negative log-likelihood L = E_data[E(x)] + log Z (Eq. 2) where d = D. For d < D the
density p_g lives on the generator's manifold, and the same figures are no bounds of a density on R^D.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ebmbounds import spectra
from ebmbounds.spectra import Generator

Energy = Callable[[Tensor], Tensor]
EntropyEstimator = Literal["s1", "exact", "hutchinson"]


def base_log_density(z: Tensor) -> Tensor:
    """log p_0(z) of the standard normal, (n,)."""
    return -0.5 * z.square().sum(1) - z.shape[1] / 2 * math.log(2 * math.pi)


def base_entropy(d: int) -> float:
    """H[p_0] = d/2 (1 + log 2 pi)."""
    return d / 2 * (1 + math.log(2 * math.pi))


def log_volume(g: Generator, z: Tensor, estimator: EntropyEstimator, direction: Tensor) -> Tensor:
    """Half log det J^T J, (n,), or what stands for it.

    s1: the bound d log s_1 of Eq. 10, s_1 = |J v| along the given direction v (n, d), which LOBPCG has found;
    exact: half log det J^T J itself; hutchinson: (d/2) log(E|J v|^2 / d) with the direction as probe, an upper
    bound in expectation.
    """
    d = z.shape[1]
    if estimator == "s1":
        size = spectra.jvp(g, z, direction).flatten(1).square().sum(1)
        return d / 2 * torch.log(size)
    if estimator == "exact":
        return spectra.half_logdet(g, z)
    return spectra.hutchinson_half_logdet(g, z, direction[None])


def log_density(g: Generator, z: Tensor) -> Tensor:
    """log p_g(g(z)) on the manifold that g spans (Eq. 8), (n,)."""
    return base_log_density(z) - spectra.half_logdet(g, z)


def entropy(g: Generator, z: Tensor) -> Tensor:
    """H[p_g] (Eq. 9), estimated on the samples z."""
    return base_entropy(z.shape[1]) + spectra.half_logdet(g, z).mean()


def entropy_lower_bound(g: Generator, z: Tensor, steps: int, start: Tensor | None = None) -> Tensor:
    """H[p_0] + E[d log s_1(z)] <= H[p_g] (Eq. 10), by the paper's LOBPCG. With few steps s_1 is over-estimated, and the
    bound no longer guaranteed."""
    s, _ = spectra.smallest_singular_value(g, z, steps, start, preconditioner_steps=0)
    return base_entropy(z.shape[1]) + z.shape[1] * torch.log(s).mean()


def lower_bound(energy_data: Tensor, energy_generated: Tensor, entropy: Tensor) -> Tensor:
    """E_data[E(x)] - E_{p_g}[E(x)] + H[p_g] <= L (Eq. 4); with a lower bound of the entropy, Eq. 11."""
    return energy_data.mean() - energy_generated.mean() + entropy


def log_partition_lower(log_weights: Tensor) -> Tensor:
    """log 1/K sum_k w_k <= log Z in expectation, from the logarithms (K,) of w = exp(-E(x)) / q(x) at samples of q.

    K = 1 with q = p_g is Eq. 3; it rises to log Z with K (Burda et al. 2016)."""
    return torch.logsumexp(log_weights, 0) - math.log(len(log_weights))


def log_partition_upper(own: Tensor, log_weights: Tensor) -> Tensor:
    """E log 1/(K+1) (w(x) + sum_k w_k) >= log Z, where x is a sample of p(x) = exp(-E(x)) / Z: `own` (n,) holds log w
    at n of them, and `log_weights` (K,) at samples of q. It falls to log Z with K."""
    return torch.logaddexp(own, torch.logsumexp(log_weights, 0)).mean() - math.log(len(log_weights) + 1)


def effective_samples(log_weights: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2: to how many samples of the model weighted ones amount."""
    return 1 / torch.softmax(log_weights, 0).square().sum()


def score_gap(energy: Energy, g: Generator, z: Tensor) -> Tensor:
    """|grad_x E(x) + grad_x log p_g(x)|^2 at x = g(z), (n,), exactly; d = D only.

    This is |grad_x log f|^2 of Theorem 1 with f = exp(-E) / p_g."""
    score_z = torch.func.grad(lambda z: log_density(g, z).sum())(z)
    x = g(z)
    J = spectra.jacobian(g, z)
    score_x = torch.linalg.solve(J.transpose(1, 2), score_z)  # grad_z = J^T grad_x
    gradient = torch.func.grad(lambda x: energy(x).sum())(x)
    return (gradient.flatten(1) + score_x).square().sum(1)


def gradient_penalty(energy: Energy, x: Tensor, Jv: Tensor, score_v: Tensor) -> Tensor:
    """(grad_x E(x) J v + grad_z log p_g(g(z)) v)^2, (n,): one Hutchinson probe v ~ N(0, I_d) of Eq. 19.

    x = g(z) in the shape of the data, Jv the same, score_v (n,) the product of `latent_score` and v. Its mean over
    v is s_1^2 times an upper bound of |grad_x log f|^2, by Eq. 18, for gradients along the manifold.
    """
    slope = spectra.jvp(energy, x, Jv)
    return (slope.flatten() + score_v).square()


def squared_gradient(energy: Energy, x: Tensor) -> Tensor:
    """|grad_x E(x)|^2, (n,), and its derivative.

    With v = grad_x E held constant, grad_x E . v has the value |grad_x E|^2 and half its derivative. A directional
    derivative is differentiated by ordinary backward passes, while libraries are slow at twice that of a convolution
    with a stride, which the gradient's own square would take."""
    v = torch.func.grad(lambda x: energy(x).sum())(x).detach()
    return 2 * spectra.jvp(energy, x, v).flatten() - v.flatten(1).square().sum(1)


def latent_score(
    g: Generator, z: Tensor, estimator: EntropyEstimator, direction: Tensor, weight: float = 1.0
) -> Tensor:
    """grad_z log p_g(g(z)) = -z - grad_z log-volume, (n, d), with log p_g by Eq. 8 and the log-volume by an estimator.

    It is taken as the gradient of -weight * mean(log-volume), scaled back: where a generator's loss has that same term
    for the same z, a compiler finds the two backward passes equal and takes one."""

    def entropy_loss(z: Tensor) -> Tensor:
        return -weight * log_volume(g, z, estimator, direction).mean()

    return -z + torch.func.grad(entropy_loss)(z) * (z.shape[0] / weight)


def hinge(penalty: Tensor, margin: float) -> Tensor:
    """[penalty - zeta]_+ (Eq. 20), the form in which the upper bound is trained; no bound itself."""
    return torch.relu(penalty - margin)


def upper_bound(lower: Tensor, gap: Tensor, M: float, m: float = 0.0, root: bool = False) -> Tensor:
    """L <= lower + M (E|grad_x log f|^2 + m) (Eq. 15, p = 2), from `lower_bound` with exact entropy and `score_gap`.

    Theorem 1 gives the constants on a bounded convex support: M its diameter, m = sup - inf of |grad log f|^2, where
    E|grad log f|^2 + m >= 1 (Eq. 14). `root` takes the bracket's square root, as Eq. 13 does, which needs no such
    condition and is then the tighter one. Where p(x) satisfies a log-Sobolev inequality, as a Gaussian does,
    M = lambda_max(Cov) / 2 and m = 0 hold without either.
    """
    bracket = gap.mean() + m
    return lower + M * (bracket.sqrt() if root else bracket)
