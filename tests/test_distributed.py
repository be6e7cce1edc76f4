"""Several processes against one: what they compute, how they end, and what they leave."""

import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ebmbounds import evaluate, launch
from ebmbounds.data.toy import TOYS
from ebmbounds.distributed import ALONE, Group, own_device
from ebmbounds.errors import BadInput
from ebmbounds.execution import Advance, compiled, plain
from ebmbounds.networks import SplineFlow, ToyMLP
from ebmbounds.networks.batch_norm import written_out
from ebmbounds.objectives import DCGAN, EBM0GP, EBMBB, MEG, SNGAN, VERA, WGAN0GP
from ebmbounds.run import Run, flatten
from ebmbounds.step import Optimizer, Step

TOY = ToyMLP(width=8)
FLOW = SplineFlow(flow_layers=2, flow_width=8, spline_bins=4, width=8, fourier_features=4)
METHODS: dict[str, tuple[Any, Any]] = {
    "ebm-bb": (EBMBB(margin=0.01, reuse_entropy=True), TOY),
    "ebm-bb, multi-sample": (EBMBB(entropy_estimator="multi-sample", importance_samples=10, margin=0.0), FLOW),
    "ebm-0gp": (EBM0GP(), TOY),
    "wgan-0gp": (WGAN0GP(), TOY),
    "meg": (MEG(critic_width=8), TOY),
    "vera": (VERA(importance_samples=3), TOY),
    "dcgan": (DCGAN(), TOY),
    "sngan": (SNGAN(energy_steps=2), ToyMLP(width=8, spectral_norm=True)),
}
Tensors = dict[str, Tensor]


# -- a gang of processes ---------------------------------------------------------------------------------------------


def together(folder: Path, size: int, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """task(*arguments) on so many processes, joined as under torchrun; what each returned, in order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "ebmbounds.launch"])  # each process is then a fork, in no time
    port = free_port()
    gang = [context.Process(target=member, args=(folder, rank, size, port, task, arguments)) for rank in range(size)]
    for process in gang:
        process.start()
    for process in gang:
        process.join(600)  # compiling takes minutes
    assert [process.exitcode for process in gang] == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def member(folder: Path, rank: int, size: int, port: int, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.save(task(*arguments), folder / f"{rank}.pt")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def in_one_group(task: Callable[[Group], Any]) -> Any:
    dist.init_process_group("gloo")
    found = task(Group.current())
    dist.destroy_process_group()
    return found


def assert_same(found: Tensors, wanted: Tensors, slack: float) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=slack, atol=slack, msg=lambda m, n=name: f"{n}: {m}")


def assert_replicated(states: list[Tensors]) -> None:
    for state in states[1:]:
        assert {k: v.tolist() for k, v in state.items()} == {k: v.tolist() for k, v in states[0].items()}


# -- what they compute -----------------------------------------------------------------------------------------------


def trained(
    group: Group, methods: dict[str, tuple[Any, Any]], sync: bool = True, way: Callable[[Step], Advance] = plain
) -> dict[str, Tensors]:
    """States, with their sums of diagnostics, after three steps of each method."""
    found = {}
    for name, (objective, network) in methods.items():
        torch.manual_seed(0)
        players = network.build((2,), 2) | objective.extra_players((2,), 2)
        if sync and group.size > 1:
            players = {player: written_out(module, group) for player, module in players.items()}
        # A large epsilon, so that Adam does not blow up the rounding errors of gradients that are zero.
        settings = Optimizer(batch_size=16, lr_energy=0.01, lr_generator=0.01, beta1=0.5, epsilon=1e-2)
        step = Step(objective, players, TOYS["moons"], settings, group=group)
        state, advance = step.initial_state(seed=3), way(step)
        for _ in range(3):
            advance(state)
        found[name] = flatten(state)
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> Callable[[int], list[dict[str, Tensors]]]:
    """For a number of processes, what each of them holds in the end."""

    @functools.cache
    def of(size: int) -> list[dict[str, Tensors]]:
        if size == 1:
            return [trained(ALONE, METHODS)]
        task = functools.partial(trained, methods=METHODS)
        return together(tmp_path_factory.mktemp("gang"), size, in_one_group, task)

    return of


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_processes_compute_what_one_does_with_the_whole_batch(double, outcomes, size, method):
    """Parameters, moments, running statistics and diagnostics; and every process holds the same, bit for bit."""
    alone, several = outcomes(1)[0][method], [each[method] for each in outcomes(size)]
    assert_replicated(several)
    assert_same(several[0], alone, 1e-8)


@pytest.mark.long
def test_compiled_processes_compute_the_same(double, outcomes, tmp_path):
    task = functools.partial(
        trained, methods={"ebm-bb": METHODS["ebm-bb"]}, way=functools.partial(compiled, fallback=False)
    )
    several = [each["ebm-bb"] for each in together(tmp_path, 2, in_one_group, task)]
    assert_replicated(several)
    assert_same(several[0], outcomes(1)[0]["ebm-bb"], 1e-8)


def hinge_of_mean(group: Group) -> Tensor:
    """Gradients of [mean of c p - 1]_+ at p = 1 where c is 0, 2, 4, ...: some parts below the hinge, some above."""
    c = torch.tensor(2.0 * group.rank)
    gradient = torch.func.grad(lambda p: torch.relu(group.mean(c * p) - 0.5))(torch.tensor(1.0))
    return group.average({"p": gradient})["p"]


def test_the_hinge_takes_the_mean_of_all(tmp_path):
    assert [float(each) for each in together(tmp_path, 3, in_one_group, hinge_of_mean)] == [2.0, 2.0, 2.0]


def normalised(norm: nn.Module, x: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensors]:
    """This process's rows of y and of a loss's gradient in x, and the buffers, after two calls."""
    norm = written_out(norm, group).train() if group.size > 1 else norm.train()
    rows = x.chunk(group.size)[group.rank].requires_grad_()
    for scale in (1.0, 3.0):
        y = norm(scale * rows)
    y.pow(3).sum().backward()
    assert rows.grad is not None
    return y.detach(), rows.grad, dict(norm.named_buffers())


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(3), (6, 3)),
        (nn.BatchNorm2d(3, momentum=None, affine=False), (4, 3, 2, 2)),
        (nn.BatchNorm1d(2, track_running_stats=False), (4, 2, 5)),
    ],
    ids=["rows", "images", "sequences"],
)
def test_batch_norm_is_torchs_on_the_whole_batch(double, tmp_path, norm, shape):
    x = 1e4 + torch.randn(shape) if shape == (6, 3) else torch.randn(shape)  # far from zero digits are easily lost
    norm = norm.double()
    parts = together(tmp_path, 2, in_one_group, functools.partial(normalised, norm, x))
    y, gradient, buffers = normalised(norm, x, ALONE)
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), y)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient, rtol=1e-6, atol=1e-8)
    for part in parts:
        torch.testing.assert_close(part[2], buffers)


def test_local_statistics_leave_one_state_too(double, tmp_path):
    """Without synchronisation processes normalise otherwise, yet agree on parameters and running statistics."""
    methods = {"ebm-bb": METHODS["ebm-bb"]}
    several = together(tmp_path, 2, in_one_group, functools.partial(trained, methods=methods, sync=False))
    assert_replicated([each["ebm-bb"] for each in several])
    alone, name = trained(ALONE, methods)["ebm-bb"], "parameters/generator/0.weight"
    assert not torch.allclose(several[0]["ebm-bb"][name], alone[name], rtol=1e-8)


def answers(group: Group) -> list[int | None]:
    calls = 0

    def ask() -> int | None:
        nonlocal calls
        calls += 1
        return 15 if group.rank == 1 and calls >= 3 else None

    question = group.agreed(ask)
    return [question() for _ in range(5)]


def test_all_learn_at_the_same_call_that_one_is_to_stop(tmp_path):
    assert together(tmp_path, 2, in_one_group, answers) == [[None, None, None, 15, 15]] * 2


# -- what is refused -------------------------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(BadInput, match="batch_size=10 does not divide by the 4 processes: use a multiple of 4"):
        Step(WGAN0GP(), TOY.build((2,), 2), TOYS["moons"], Optimizer(batch_size=10), group=Group(0, 4))


@pytest.mark.parametrize(("device", "message"), [("cuda:1", "names one GPU"), ("cuda", "finds no GPU of its own")])
def test_each_process_needs_a_gpu_of_its_own(monkeypatch, device, message):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BadInput, match=message):
        own_device(device)


# -- runs ------------------------------------------------------------------------------------------------------------

SETTINGS = {"width": 8, "batch_size": 12, "compile": "off", "log_every": 2, "checkpoint_every": 4}


def run(path: Path, steps: int, resume: bool = False, event: Callable[[Any], None] | None = None, **more: Any) -> Any:
    """Train without the figures along the way; `event` sees the state before each step. The step it was stopped at."""
    evaluate.watch = lambda *_: {}
    ways = launch.execution

    def execution(*arguments: Any) -> Callable[[Any], None]:
        advance = ways(*arguments)

        def eventful(state: Any) -> None:
            if event is not None:
                event(state)
            advance(state)

        return eventful

    launch.execution = execution
    settings = SETTINGS | {"steps": steps} | more
    try:
        launch.train("25gaussians/wgan-0gp", settings, run=path, resume=resume, device="cpu", progress=False)
    except launch.Interrupted as error:
        return str(error)


@pytest.fixture
def launch_as_it_was(monkeypatch):
    for room, name in ((evaluate, "watch"), (launch, "execution")):
        monkeypatch.setattr(room, name, getattr(room, name))


def saved(path: Path) -> Tensors:
    return flatten(Run.open(path).load()[0])


def assert_ended_as(path: Path, reference: Path) -> None:
    """The state of another run to rounding, and a log with every line once."""
    assert_same(saved(path), saved(reference), 1e-6)
    assert [record["step"] for record in Run(path).records()] == [2, 4, 6, 8, 10, 12]


def test_a_run_may_change_its_number_of_processes(double, launch_as_it_was, tmp_path):
    """Two, one and four in turn end where one alone does, and the log has every line once."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, 12)
    together(tmp_path, 2, run, parts, 4)
    run(parts, 8, True)
    together(tmp_path, 4, run, parts, 12, True)
    assert_ended_as(parts, whole)


def tell_the_second(state: Any) -> None:
    if int(state["step"]) == 5 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_to_one_stops_all_at_the_same_step(tmp_path):
    first, second = together(tmp_path, 2, run, tmp_path / "run", 100, False, tell_the_second)
    assert first == second and "stopped at step" in first
    assert f"at step {int(saved(tmp_path / 'run')['step'])}," in first


def diverge_once(state: Any) -> None:
    if int(state["step"]) == 5 and not int(state["tries"]):
        state["parameters"]["energy"]["1.bias"].fill_(float("nan"))


def rolled_back(path: Path) -> Tensors:
    held: dict[str, Any] = {}

    def event(state: Any) -> None:
        held.update(state)
        diverge_once(state)

    run(path, 12, event=event, on_divergence="rollback")
    return flatten(held)


def test_all_go_back_together_from_divergence(tmp_path):
    states = together(tmp_path, 2, rolled_back, tmp_path / "run")
    assert_replicated(states)
    assert int(states[0]["tries"]) == 1 and int(states[0]["step"]) == 12


SCRIPT = """
import os, signal, sys, torch
from pathlib import Path
torch.set_default_dtype(torch.float64)
sys.path.insert(0, sys.argv[2])
from test_distributed import run

def die_once(state):
    first_try = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if int(state["step"]) == 6 and os.environ["RANK"] == "1" and first_try:
        Path(sys.argv[1], "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)

run(Path(sys.argv[1], "run"), 12, event=die_once, batch_norm=False)
"""


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_death_ends_the_job_soon_and_the_run_goes_on(double, launch_as_it_was, tmp_path, restarts):
    """By hand, or by itself with torchrun's restarts: from the checkpoint at step 4 to where one process ends."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command += [f"--max-restarts={restarts}", str(tmp_path / "script.py"), str(tmp_path), str(Path(__file__).parent)]
    job = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert "lost the others" in job.stderr and "--resume" in job.stderr
    if restarts:
        assert job.returncode == 0, job.stderr
    else:
        assert job.returncode == 1
        assert time.time() - (tmp_path / "died").stat().st_mtime < 30
        assert int(saved(tmp_path / "run")["step"]) == 4
        run(tmp_path / "run", 12, True, batch_norm=False)
    run(tmp_path / "whole", 12, batch_norm=False)
    assert_ended_as(tmp_path / "run", tmp_path / "whole")
