"""Random numbers as a pure function of (seed, step, stream, row): the counter-based generator Philox4x32-10.

A training step draws its noise from counters instead of from a generator's hidden state. So the only random
state of a run is its step number: resuming is exact, a step can be compiled or captured whole, and several
processes draw together what one would draw alone (each takes its own rows).

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Ten rounds of Philox4x32: four 32-bit words for each counter, held in int64 tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The product of two 32-bit words wraps in a signed int64, but keeps all of its 64 bits.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _WORD) ^ c1 ^ k0,
            p1 & _WORD,
            ((p0 >> 32) & _WORD) ^ c3 ^ k1,
            p0 & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Noise:
    """A source of noise for one step. `noise("z").normal(64, 128)` always gives the same rows for the same
    seed and step; another name gives independent ones."""

    seed: Tensor
    """Scalar int64."""
    step: Tensor
    """Scalar int64."""
    stream: int = 0x811C9DC5
    """A 32-bit word; see `__call__`."""
    first_row: int = 0
    """Global index of this process's first row."""

    def __call__(self, name: str) -> "Noise":
        """The independent stream of that name (hashed by FNV-1a, which a compiler can trace)."""
        stream = self.stream
        for letter in "/" + name:
            stream = ((stream ^ ord(letter)) * 0x01000193) & _WORD
        return replace(self, stream=stream)

    def words(self, rows: int, columns: int) -> Tensor:
        """(rows, columns) int64 tensor of uniform 32-bit words."""
        device = self.step.device
        blocks = -(-columns // 4)
        row = torch.arange(self.first_row, self.first_row + rows, device=device)[:, None]
        block = torch.arange(blocks, device=device)[None, :]
        counter = (
            row + torch.zeros_like(block),
            block + torch.zeros_like(row),
            (self.step & _WORD) + torch.zeros_like(row + block),
            torch.full_like(row + block, self.stream),
        )
        words = philox(counter, (self.seed & _WORD, (self.seed >> 32) & _WORD))
        return torch.stack(words, dim=-1).flatten(1)[:, :columns]

    def uniform(self, rows: int, *shape: int) -> Tensor:
        """Uniform on (0, 1), both ends excluded."""
        return _open_unit(self.words(rows, math.prod(shape))).reshape(rows, *shape)

    def normal(self, rows: int, *shape: int) -> Tensor:
        """Standard normal, by Box and Muller."""
        columns = math.prod(shape)
        u = _open_unit(self.words(rows, columns + columns % 2))
        radius, angle = torch.sqrt(-2 * torch.log(u[:, 0::2])), 2 * math.pi * u[:, 1::2]
        pairs = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
        return pairs.flatten(1)[:, :columns].reshape(rows, *shape)

    def integers(self, high: int, rows: int, *shape: int) -> Tensor:
        """Uniform on 0, ..., high - 1 (high below 2^31; the bias is below high / 2^32)."""
        return ((self.words(rows, math.prod(shape)) * high) >> 32).reshape(rows, *shape)


def _open_unit(words: Tensor) -> Tensor:
    dtype = torch.get_default_dtype()
    # 24 bits fit a float32 exactly; the half step keeps 0 and 1 out, so that log is finite.
    return ((words >> 8).to(dtype) + 0.5) * 2.0**-24


def noise(seed: int, step: int = 0, device: torch.device | str = "cpu") -> Noise:
    """Noise for use outside a training step: evaluation, samples, tests."""
    return Noise(torch.tensor(seed, device=device), torch.tensor(step, device=device))
