"""Damaged and hostile input to every reader: an answer or one sentence, in bounded memory, and nothing else."""

import json
import random
import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from targets import CONFIG, RUN, SCRATCH, TARGETS

from ebmbounds.run import Run

MEMORY = 2**19
"""Kilobytes by which the process may grow."""


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A few bits flipped, pieces cut out, put in, overwritten or repeated."""
    for _ in range(chance.randint(1, 6)):
        at, piece = chance.randint(0, len(data)), chance.randbytes(chance.randint(0, 8))
        head, tail = data[:at], data[at:]
        match chance.choice(("flip", "cut", "insert", "overwrite", "repeat")):
            case "flip":
                data = head + bytes(byte ^ 1 << chance.randint(0, 7) for byte in tail[:1]) + tail[1:]
            case "cut":
                data = head + tail[len(piece) ** 3 :]
            case "insert":
                data = head + piece + tail
            case "overwrite":
                data = head + piece + tail[len(piece) :]
            case "repeat":
                data = head + tail[:40] * 3 + tail
    return data


@pytest.fixture(autouse=True)
def bounded_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY


@pytest.mark.parametrize("name", TARGETS)
def test_the_good_files_are_accepted(name):
    target = TARGETS[name]
    assert target(target.seeds[0])


@pytest.mark.parametrize("cases", [200, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_gives_an_answer_or_a_sentence(name, cases):
    target = TARGETS[name]
    for case in range(cases):
        chance = random.Random(case)
        try:
            target(damaged(chance.choice(target.seeds), chance))
        except Exception as error:
            raise AssertionError(f"case {case} of {name}") from error


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["none", "1e999", "-1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
keys = st.sampled_from(sorted(json.loads(CONFIG))) | st.text(max_size=8)


@pytest.mark.parametrize("name", ["config", "run"])
@settings(max_examples=200)
@given(changes=st.dictionaries(keys, values, max_size=3), dropped=st.sets(keys, max_size=3))
def test_a_config_of_other_values_gives_an_answer_or_a_sentence(name, changes, dropped):
    config = {key: value for key, value in (json.loads(CONFIG) | changes).items() if key not in dropped}
    TARGETS[name](b"\0" * (name == "run") + json.dumps(config).encode())


@settings(max_examples=200)
@given(st.lists(st.tuples(keys, values | st.text(max_size=12)), max_size=3))
def test_any_override_gives_an_answer_or_a_sentence(pairs):
    TARGETS["overrides"](
        "\n".join(["25gaussians/ebm-bb", *(f"{key}={value}" for key, value in pairs)]).encode("utf-8", "replace")
    )


def test_networks_without_end_take_no_memory():
    """A config that claims more than its checkpoint holds is refused before memory is taken for it."""
    for claim in ({"width": 2**16}, {"width": 2**40}, {"depth": 10**9}, {"latent_dim": 10**9}, {"batch_size": 10**12}):
        TARGETS["run"](b"\0" + json.dumps(json.loads(CONFIG) | claim).encode())


names = st.sampled_from(
    ["parameters", "energy", "generator", "buffers", "step", "average", "1.weight", "log", "seed", ""]
)
trees = st.recursive(
    st.builds(
        torch.zeros, st.lists(st.integers(0, 3), max_size=3), dtype=st.sampled_from([torch.float32, torch.int64])
    ),
    lambda inner: st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.dictionaries(names, trees, max_size=4), st.booleans())
def test_a_checkpoint_of_another_form_gives_an_answer_or_a_sentence(tree, amends):
    """With a checksum that is right."""
    stranger = Run(SCRATCH / "stranger")
    stranger.save((RUN.load()[0] if amends else {}) | tree, best=0.0)
    TARGETS["run"](b"\1" + stranger.checkpoint().read_bytes())
