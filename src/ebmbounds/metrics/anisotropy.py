"""Anisotropy of a generator (Wang and Ponce, 2021; the paper's capacity usage): how unequally the directions
of the latent space move the output. Jacobian -> norms of its columns -> their standard deviation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ebmbounds.errors import BadInput

Generator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Anisotropy:
    """The index C_z, averaged over z."""

    mean: float
    """Mean over the repeats."""
    spread: float
    """Unbiased standard deviation over the repeats."""


@torch.no_grad()
def column_norms(g: Generator, z: Tensor, *, chunk: int = 16) -> Tensor:
    """|J_z e_i| for every z and i: (n, d) from latents (n, d) and a batched generator (n, d) -> (n, ...).

    One forward-mode product a column, `chunk` columns at a time: memory grows with n * chunk. Batch norm runs
    in eval mode, since in train mode every sample would depend on every z of the batch.
    """

    def column_norm(e: Tensor) -> Tensor:
        column = torch.func.jvp(g, (z,), (e.expand_as(z),))[1]
        return column.flatten(1).norm(dim=1)

    basis = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    with _eval_mode(g):
        return torch.func.vmap(column_norm, chunk_size=chunk)(basis).T


def anisotropy(g: Generator, z: Tensor, *, chunk: int = 16) -> Tensor:
    """C_z = std over i of |J_z e_i| (n,), with the unbiased standard deviation."""
    if z.ndim != 2 or z.shape[1] < 2:
        raise BadInput(f"latents of shape {tuple(z.shape)} have no anisotropy: give (n, d) with d of 2 or more.")
    return column_norms(g, z, chunk=chunk).std(dim=1)


def anisotropy_index(
    g: Generator,
    latent_dim: int,
    *,
    samples: int = 64,
    repeats: int = 5,
    chunk: int = 16,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Anisotropy:
    """Mean of C_z over z ~ N(0, I), `samples` of them in each of `repeats` repeats."""
    if repeats < 2:
        raise BadInput(f"{repeats} repeats have no spread: take 2 or more.")
    random = torch.Generator().manual_seed(seed)  # on the CPU, so that every device sees the same z
    means = torch.stack(
        [
            anisotropy(g, torch.randn(samples, latent_dim, generator=random).to(device), chunk=chunk).mean()
            for _ in range(repeats)
        ]
    )
    return Anisotropy(float(means.mean()), float(means.std()))


@contextmanager
def _eval_mode(g: Generator) -> Iterator[None]:
    """Put the modules of g into eval mode, and each back into its own afterwards."""
    training = [module for module in g.modules() if module.training] if isinstance(g, nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
