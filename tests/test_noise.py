"""Counter-based noise: against an independent reference, as distributions, and as a function of its counters."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ebmbounds.noise import Noise, mix, noise, squares

words64 = st.integers(0, 2**64 - 1)


def signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def reference_squares32(counter: int, key: int) -> int:
    """Widynski (2020), Figure 1, in Python's integers."""
    mask = 2**64 - 1
    x = y = counter * key & mask
    z = y + key & mask
    for add in (y, z, y):
        x = x * x + add & mask
        x = (x >> 32) | (x << 32) & mask
    return (x * x + z & mask) >> 32


def reference_fmix64(k: int) -> int:
    """MurmurHash3.cpp (Appleby), in Python's integers."""
    mask = 2**64 - 1
    k ^= k >> 33
    k = k * 0xFF51AFD7ED558CCD & mask
    k ^= k >> 33
    k = k * 0xC4CEB9FE1A85EC53 & mask
    return k ^ (k >> 33)


@settings(max_examples=500)
@given(words64, words64)
def test_squares_is_widynskis(counter, key):
    found = squares(torch.tensor(signed(counter)), torch.tensor(signed(key)))
    assert int(found) == reference_squares32(counter, key)


@settings(max_examples=500)
@given(words64)
def test_mix_is_murmurs_finaliser(word):
    assert int(mix(torch.tensor(signed(word)))) == signed(reference_fmix64(word))


def reference_words(source: Noise, rows: int, columns: int) -> list[list[int]]:
    """The words of a source by the references: a keyed counter over (step, row, column)."""
    key = reference_fmix64(((int(source.seed) << 32) + source.stream) % 2**64) | 1
    start = int(source.step) << 32
    return [[reference_squares32(start + (source.rank * rows + i) * columns + j, key) for j in range(columns)]
            for i in range(rows)]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**40 + 3, -5])
@pytest.mark.parametrize("step", [0, 123_456])
def test_words_are_those_of_the_references(seed, step):
    source = noise(seed, step)("some stream")
    assert source.words(4, 3).tolist() == reference_words(source, 4, 3)


def test_compiled_words_are_the_same():
    def draw(seed, step):
        return Noise(seed, step)("a")("b").words(50, 3)

    options = {"realize_opcount_threshold": 10}  # as in `execution.compile_whole`
    fast = torch.compile(draw, fullgraph=True, options=options)
    for seed, step in ((0, 0), (3, 10_000_000), (2**31, 1)):
        counters = torch.tensor(seed), torch.tensor(step)
        assert torch.equal(fast(*counters), draw(*counters))


# -- distributions: each p-value is of one fixed draw, and would be below 1e-3 by chance once in a thousand ----------


def test_uniform(double):
    u = noise(0)("u").uniform(100_000, 1).flatten()
    assert u.min() > 0 and u.max() < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (2, 5)])
def test_normal(double, shape):
    """Odd widths too, where the last pair of Box and Muller is cut."""
    x = noise(0)("x").normal(20_000, *shape)
    assert x.shape == (20_000, *shape)
    assert stats.kstest(x.flatten().numpy(), "norm").pvalue > 1e-3


def test_normal_columns_are_independent(double):
    x, y = noise(0).normal(100_000, 2).T
    for f in (lambda t: t, lambda t: t.square() - 1):  # also in size: Box and Muller shares a radius
        correlation = float((f(x) * f(y)).mean() / (f(x).std() * f(y).std()))
        assert abs(correlation) < 4 / 100_000**0.5


def test_normal_is_finite_in_float32_at_the_ends_of_the_words(monkeypatch):
    ends = torch.tensor([[0, 2**32 - 1], [2**32 - 1, 0], [0, 0], [2**32 - 1, 2**32 - 1]])
    monkeypatch.setattr(Noise, "words", lambda self, rows, columns: ends)
    assert noise(0).normal(4, 2).isfinite().all()
    u = noise(0).uniform(4, 2)
    assert u.min() > 0 and u.max() < 1


@pytest.mark.parametrize("high", [1, 2, 7, 1000])
def test_integers(high):
    k = noise(0)("k").integers(high, 50_000, 1).flatten()
    counts = torch.bincount(k, minlength=high)
    assert len(counts) == high
    if high > 1:
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_integers_reach_both_ends_of_a_large_range():
    high = 2**31 - 1
    k = noise(0).integers(high, 10_000, 1)
    assert 0 <= k.min() < high / 1000 and high * 0.999 < k.max() < high


# -- a function of its counters -------------------------------------------------------------------------------------


@given(st.integers(0, 5), st.integers(1, 20), st.sampled_from(["uniform", "normal", "integers"]))
def test_rows_of_one_process_are_a_part_of_the_whole(rank, rows, kind):
    """So N processes, each with its rows, draw what one would draw alone."""
    whole = noise(3, step=17)("z")
    part = Noise(whole.seed, whole.step, whole.stream, rank)

    def draw(source: Noise, n: int) -> torch.Tensor:
        return source.integers(10, n, 3) if kind == "integers" else getattr(source, kind)(n, 3)

    assert torch.equal(draw(part, rows), draw(whole, (rank + 1) * rows)[rank * rows :])
    assert torch.equal(draw(part.common(), rows), draw(whole, rows))


def test_streams_names_seeds_and_steps_differ():
    draws = {
        (seed, step, name): tuple(noise(seed, step)(name).words(2, 2).flatten().tolist())
        for seed in (0, 1, 2, 2**31)
        for step in (0, 1, 2, 1000)
        for name in ("z", "v", "data", "turn 0", "turn 1")
    }
    assert len(set(draws.values())) == len(draws)
    assert noise(0)("a")("b").words(2, 2).tolist() != noise(0)("b")("a").words(2, 2).tolist()
    assert noise(0)("ab").words(2, 2).tolist() != noise(0)("a")("b").words(2, 2).tolist()


def test_the_same_counters_give_the_same_noise():
    assert torch.equal(noise(5, 6)("z").normal(10, 3), noise(5, 6)("z").normal(10, 3))


@pytest.mark.parametrize("other", [noise(0, 1)("z"), noise(1, 0)("z"), noise(0, 0)("v")], ids=["step", "seed", "name"])
def test_neighbouring_sources_are_independent(double, other):
    x, y = noise(0, 0)("z").normal(100_000, 1).flatten(), other.normal(100_000, 1).flatten()
    assert abs(float((x * y).mean())) < 4 / 100_000**0.5


def test_the_default_type_decides_the_precision(double):
    assert noise(0).normal(1, 1).dtype == torch.float64
    torch.set_default_dtype(torch.float32)
    assert noise(0).normal(1, 1).dtype == torch.float32
