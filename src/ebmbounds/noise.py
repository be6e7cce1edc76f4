"""Random numbers as a pure function of (seed, stream, step, row): the counter-based generator Squares.

A training step draws its noise from counters instead of from a generator's hidden state. So the only random
state of a run is its step number: resuming is exact, a step can be compiled or captured whole, and several
processes draw together what one would draw alone (each takes its own rows).

Widynski: Squares: a fast counter-based RNG (2020). Chosen over Philox because it takes a fifth of the
operations, which a compiled step pays for in compile time.
"""

import math

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def squares(counter: Tensor, key: Tensor) -> Tensor:
    """Four rounds of squaring and half-word rotation: a uniform 32-bit word for each counter. All tensors are int64,
    whose products wrap as the method needs."""
    y = counter * key
    z = y + key
    x = _swap_halves(y * y + y)
    x = _swap_halves(x * x + z)
    x = _swap_halves(x * x + y)
    return ((x * x + z) >> 32) & _WORD


def _swap_halves(x: Tensor) -> Tensor:
    return ((x >> 32) & _WORD) | (x << 32)


def mix(x: Tensor) -> Tensor:
    """MurmurHash3's finaliser: a bijection of 64-bit words that spreads every bit."""
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * -0xAE502812AA7333
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * -0x3B314601E57A13AD
    return x ^ ((x >> 33) & 0x7FFFFFFF)


class Noise:
    """A source of noise for one step. `noise("z").normal(64, 128)` always gives the same rows for the same
    seed and step; another name gives independent ones."""

    def __init__(self, seed: Tensor, step: Tensor, stream: int = 0x811C9DC5, rank: int = 0) -> None:
        """seed and step are int64 scalars, `stream` is a 32-bit word (see `__call__`), and `rank` the number of this
        process: where every one asks for n rows, this one gets rows rank * n, ..., (rank + 1) * n - 1 of them all."""
        self.seed, self.step, self.stream, self.rank = seed, step, stream, rank

    def __call__(self, name: str) -> "Noise":
        """The independent stream of that name (hashed by FNV-1a, which a compiler can trace)."""
        stream = self.stream
        for letter in "/" + name:
            stream = ((stream ^ ord(letter)) * 0x01000193) & _WORD
        return Noise(self.seed, self.step, stream, self.rank)

    def common(self) -> "Noise":
        """The same stream with the same rows for every process."""
        return Noise(self.seed, self.step, self.stream)

    def words(self, rows: int, columns: int) -> Tensor:
        """(rows, columns) int64 tensor of uniform 32-bit words."""
        device = self.step.device
        row = torch.arange(self.rank * rows, (self.rank + 1) * rows, device=device)[:, None]
        counter = (self.step << 32) + row * columns + torch.arange(columns, device=device)
        key = mix((self.seed << 32) + self.stream) | 1
        return squares(counter, key)

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
    # 23 bits and the half step fit a float32 exactly; the half step keeps 0 and 1 out, so that log is finite.
    return ((words >> 9).to(dtype) + 0.5) * 2.0**-23


def noise(seed: int, step: int = 0, device: torch.device | str = "cpu") -> Noise:
    """Noise for use outside a training step: evaluation, samples, tests."""
    return Noise(torch.tensor(seed, device=device), torch.tensor(step, device=device))
