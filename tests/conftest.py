"""What all tests share: one thread, torch left as it was found, and reasons for what cannot run here."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The same examples in every run: a failure can be repeated, and none comes and goes.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")

torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))


@pytest.fixture(autouse=True)
def torch_as_it_was():
    """Undo what a test, or the training that it starts, sets for the whole process."""
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    threads, generator = torch.get_num_threads(), torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)
    torch.set_num_threads(threads)
    torch.set_rng_state(generator)


@pytest.fixture
def double():
    """float64 as the default for one test."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def real_data() -> Path:
    root = os.environ.get("EBMBOUNDS_DATA")
    if not root:
        pytest.skip("EBMBOUNDS_DATA does not name a folder with the real data sets")
    return Path(root)
