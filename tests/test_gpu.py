"""On a GPU: the captured iteration against the plain one in float64, with NCCL too, and a deterministic run resumed."""

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from ebmbounds import launch
from ebmbounds.bench import stand_in
from ebmbounds.distributed import ALONE, Group
from ebmbounds.execution import captured, plain
from ebmbounds.experiments import experiment
from ebmbounds.machine import set_up
from ebmbounds.objectives import METHODS
from ebmbounds.run import Run, flatten
from ebmbounds.side_by_side import stacked

pytestmark = pytest.mark.gpu
STEPS = 50
EXPERIMENTS = ["25gaussians/ebm-bb@quick", "stackedmnist/ebm-bb@quick", *(f"cifar10/{name}@quick" for name in METHODS)]


def state_after(name: str, device: str, way, group: Group = ALONE, **overrides: object):
    """The state after some steps, on random pixels of the data set's shape."""
    spec = experiment(name, {"compile": "auto", "precision": "fp32", **overrides})
    set_up(device, False, 1, "fp32")
    data = stand_in(spec, device)
    step = launch.build_step(spec, data, 0, device, group)
    state = step.initial_state(0, device)
    advance = way(step)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the step could not be")
        for _ in range(STEPS):
            advance(state)
    return pytree.tree_map(lambda t: t.cpu(), state)


def assert_captured_is_plain(name: str, group: Group = ALONE, **overrides: object) -> None:
    """Sums taken in another order grow apart from step to step, to 1e-7 at most here; an error is far larger."""
    reference = flatten(state_after(name, "cpu", plain, group, **overrides))
    for way in (plain, captured):
        for key, value in flatten(state_after(name, "cuda", way, group, **overrides)).items():
            torch.testing.assert_close(value, reference[key], rtol=1e-6, atol=1e-7, msg=lambda m, key=key: key + m)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_captured_is_plain(double, name):
    assert_captured_is_plain(name)


def test_exact_entropy_of_many_dimensions_is_captured(double):
    """Its factorisations must not wait for the host."""
    assert_captured_is_plain("cifar10/ebm-bb@quick", entropy_estimator="exact", latent_dim=16, entropy_share=0.125)


def test_a_step_in_bf16_is_captured():
    """In the precision of training on images, whose layouts differ from those of double precision: the compiler must
    not have been told of others. Without fallback, which would only be slow."""
    spec = experiment("cifar10/ebm-bb@quick", {"compile": "auto", "precision": "bf16"})
    set_up("cuda", False, 1, "bf16")
    step = launch.build_step(spec, stand_in(spec, "cuda"), 0, "cuda")
    weights = {}
    for way in (plain, partial(captured, fallback=False)):
        state = step.initial_state(0, "cuda")
        start = torch.cat([p.flatten().clone() for p in flatten(state["parameters"]).values()])
        advance = way(step)
        for _ in range(5):
            advance(state)
        weights[way] = torch.cat([p.flatten() for p in flatten(state["parameters"]).values()])
    ours, theirs = weights.values()
    assert (ours - theirs).norm() <= 0.3 * (
        theirs - start
    ).norm()  # Adam makes much of the last digit of a small gradient


def test_exchanges_by_nccl_are_captured_with_the_step(double):
    """Every process needs a GPU of its own, so one process plays the first of two here: its sums are over itself alone,
    and go through NCCL (Gloo on the CPU) all the same, those of batch norm included."""
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert_captured_is_plain("stackedmnist/ebm-bb@quick", Group(rank=0, size=2))
    finally:
        dist.destroy_process_group()


def test_stacked_states_are_captured_too(double):
    """Three seeds side by side on the GPU, against each of them alone and plain on the CPU."""
    spec = experiment("stackedmnist/ebm-bb@quick", {"precision": "fp32"})
    set_up("cuda", False, 1, "fp32")
    data = stand_in(spec, "cuda")
    steps = [launch.build_step(spec, data, seed, "cuda", side_by_side=True) for seed in range(3)]
    whole, views = stacked([step.initial_state(seed, "cuda") for seed, step in enumerate(steps)])
    advance = captured(torch.func.vmap(steps[0]), fallback=False)
    for _ in range(STEPS):
        advance(whole)
    for seed, view in enumerate(views):
        step = launch.build_step(spec, stand_in(spec, "cpu"), seed, "cpu")
        state = step.initial_state(seed)
        for _ in range(STEPS):
            plain(step)(state)
        for key, value in flatten(view).items():
            torch.testing.assert_close(value.cpu(), flatten(state)[key], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["25gaussians/ebm-bb@quick", "cifar10/ebm-bb@quick"])
def test_a_deterministic_run_resumed_is_uninterrupted(tmp_path, real_data, name):
    overrides = {"deterministic": True, "compile": "auto", "steps": 40, "checkpoint_every": 20, "log_every": 10}
    options = {"device": "cuda", "data": real_data, "progress": False}
    whole = launch.train(name, overrides, run=tmp_path / "whole", **options)
    launch.train(name, overrides | {"steps": 20}, run=tmp_path / "run", **options)
    resumed = launch.train(name, overrides, run=tmp_path / "run", resume=True, **options)
    ours, theirs = (flatten(Run(run.path).load()[0]) for run in (resumed, whole))
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
