"""The entropy of a generator by every estimator that the paper compares, on the same latents."""

import torch
from torch import Tensor

from ebmbounds import bounds, spectra
from ebmbounds.spectra import Generator


@torch.no_grad()
def entropy_estimates(g: Generator, z: Tensor, start: Tensor, probes: Tensor, lobpcg_steps: int) -> dict[str, float]:
    """H[p_g] in nats at latents z (n, d): exact (Eq. 9), its bound by the exact smallest singular value (Eq. 10)
    and by a few steps of LOBPCG from a start (n, d), and Hutchinson's estimate from probes (k, n, d).

    bound_exact_s1 <= exact <= hutchinson, the last in expectation; bound_few_steps is never below bound_exact_s1.
    """
    d = z.shape[1]
    base = bounds.base_entropy(d)
    values = spectra.singular_values(g, z)
    few = spectra.smallest_singular_value(g, z, lobpcg_steps, start, preconditioner_steps=0)[0]  # as in training
    return {
        "exact": base + float(values.log().sum(1).mean()),
        "bound_exact_s1": base + d * float(values[:, 0].log().mean()),
        "bound_few_steps": base + d * float(few.log().mean()),
        "hutchinson": base + float(spectra.hutchinson_half_logdet(g, z, probes).mean()),
    }
