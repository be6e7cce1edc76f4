"""Timings of one iteration: plain, compiled, captured, and the research formulation, side by side in one run."""

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import flop_registry

from ebmbounds.data import TOYS, Data, ResidentImages
from ebmbounds.data.registry import image_set
from ebmbounds.execution import captured, compiled, plain
from ebmbounds.experiments import Experiment, experiment
from ebmbounds.machine import set_up
from ebmbounds.noise import noise
from ebmbounds.rewriting import merge_equal_nodes
from ebmbounds.session import build_step
from ebmbounds.step import Step

RESEARCH = Path(__file__).parents[2] / "benchmarks" / "research_step.py"
"""Only in a checkout: it is for comparison and not part of the package."""


Make = Callable[[], Callable[[], Any]]
"""Makes ready, and gives a call for one iteration."""


@dataclass(frozen=True)
class Timing:
    way: str
    milliseconds: float
    """An iteration, median of several blocks."""
    kernels: int | None
    """Launched on the GPU in one iteration."""
    memory: float | None
    """Peak GPU memory in GB."""
    tflops: float | None
    """Reached TFLOP/s: the arithmetic of `arithmetic`, whatever else the way computes twice."""
    setup: float
    """Seconds until the first iteration was done: compile and capture."""


def bench(name: str, overrides: dict[str, Any], device: str, blocks: int = 5, seconds: float = 2.0) -> list[Timing]:
    """Time every way that the device and the method have. Speed does not depend on what the pixels show, so images are
    random ones of the data set's shape."""
    spec = experiment(name, overrides)
    data = stand_in(spec, device)
    set_up(device, bool(spec.schedule.deterministic), spec.schedule.threads, spec.schedule.precision)
    ways: dict[str, Make] = {}
    if spec.method == "ebm-bb" and RESEARCH.is_file():
        ways["research"] = lambda: research(spec, data, device)
    executions = {"plain": plain, "compiled": compiled} | ({"captured": captured} if device != "cpu" else {})
    for way, execution in executions.items():
        ways[way] = lambda execution=execution: ours(spec, data, device, execution)  # type: ignore[misc]
    flop = None if device == "cpu" else arithmetic(build_step(spec, data, 0, device), device)
    return timed(ways, device, flop, blocks, seconds)


def stand_in(spec: Experiment, device: str) -> Data:
    if spec.dataset in TOYS:
        return TOYS[spec.dataset]
    shape = image_set(spec.dataset).shape
    images = torch.randint(0, 256, (50_000, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ResidentImages(images.to(device), spec.data.flip)


def ours(spec: Experiment, data: Data, device: str, execution: Callable[..., Any]) -> Callable[[], None]:
    step = build_step(spec, data, 0, device)
    state = step.initial_state(0, device)
    advance = execution(step)
    return lambda: advance(state)


def research(spec: Experiment, data: Data, device: str) -> Callable[[], Any]:
    loader = importlib.util.spec_from_file_location("research_step", RESEARCH)
    assert loader is not None and loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    players = {name: net.to(device) for name, net in spec.pair.build(data.shape, spec.optimizer.latent_dim).items()}
    source = noise(0, device=device)
    batch = lambda: data.draw(source, spec.optimizer.batch_size)  # noqa: E731
    steps = getattr(spec.objective, "lobpcg_steps", 2)
    return module.research_step(players["energy"], players["generator"], batch, spec.optimizer.latent_dim, steps)


def arithmetic(step: Step, device: str) -> float:
    """Floating-point operations of the convolutions and matrix products of one iteration, each counted once."""
    state = {key: value for key, value in step.initial_state(0, device).items() if key != "log"}
    with torch.no_grad():
        graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(state).graph
    graph.eliminate_dead_code()
    merge_equal_nodes(graph)
    graph.eliminate_dead_code()
    total = 0.0
    for node in graph.nodes:
        count = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if count is not None:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
            total += count(*args, **kwargs, out_val=node.meta["val"])
    return total


def matrix_product(size: int = 8192) -> float:
    """TFLOP/s of a bf16 matrix product on this GPU: what arithmetic can reach here."""
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    (timing,) = timed({"product": lambda: lambda: a @ b}, "cuda", 2 * size**3, blocks=5, seconds=1.0)
    assert timing.tflops is not None
    return timing.tflops


def timed(ways: dict[str, Make], device: str, flop: float | None, blocks: int, seconds: float) -> list[Timing]:
    """Each way for so many seconds, in blocks in which they take turns: a machine that slows down slows all alike."""
    readied = {way: ready(make, device) for way, make in ways.items()}
    counts = {
        way: max(3, int(seconds / blocks / max(block(advance, 1, device), 1e-4)))
        for way, (advance, _, _) in readied.items()
    }
    rounds = [
        {way: block(advance, counts[way], device) for way, (advance, _, _) in readied.items()} for _ in range(blocks)
    ]
    timings = []
    for way, (advance, memory, setup) in readied.items():
        median = statistics.median(times[way] for times in rounds)
        tflops = None if flop is None or way == "research" else flop / median / 1e12
        kernels = None if device == "cpu" else kernels_of(advance)
        timings.append(Timing(way, 1e3 * median, kernels, memory, tflops, setup))
    return timings


def ready(make: Make, device: str) -> tuple[Callable[[], Any], float | None, float]:
    """A way that has run a few times, its peak memory in GB, and the seconds that took."""
    cuda = device != "cpu"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    start = time.perf_counter()
    advance = make()
    block(advance, 5, device)  # compile, capture, and let libraries choose their kernels
    setup = time.perf_counter() - start
    return advance, (torch.cuda.max_memory_allocated() - before) / 1e9 if cuda else None, setup


def block(advance: Callable[[], Any], count: int, device: str) -> float:
    """Seconds of a call, the mean of so many."""
    start = time.perf_counter()
    for _ in range(count):
        advance()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def kernels_of(advance: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        advance()
        torch.cuda.synchronize()
    return sum(event.count for event in profiler.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)
