"""Weak scaling: the time of an iteration of N processes together, over that of N which train apart at the same time.

    torchrun --nproc-per-node=2 benchmarks/weak_scaling.py [EXPERIMENT] [ITERATIONS] [off|on]

Every process has the experiment's batch size, so together they train with N times as many rows; the last argument
compiles. Medians over rounds in which the ways take turns, so that a busy machine slows all alike. There the time on
the clock is mostly waiting for a core; the time of the process itself is what the exchanges take to compute.
"""

import dataclasses
import os
import statistics
import sys
import time

import torch

from ebmbounds.distributed import Group, joined
from ebmbounds.execution import Advance, compiled, plain
from ebmbounds.experiments import Experiment, experiment
from ebmbounds.session import Session
from ebmbounds.step import State, Step

ROUNDS = 7


def variants(spec: Experiment, group: Group) -> dict[str, Step]:
    """Apart, and together with the statistics of batch norm synchronised and local."""
    rows = dataclasses.replace(spec.optimizer, batch_size=spec.optimizer.batch_size * group.size)
    local = dataclasses.replace(spec.schedule, sync_batch_norm=False)
    together = dataclasses.replace(spec, optimizer=rows)
    return {
        "apart": Session.build(spec, 0, "cpu", None).step,
        "together": Session.build(together, 0, "cpu", None, group).step,
        "together, local batch norm": Session.build(
            dataclasses.replace(together, schedule=local), 0, "cpu", None, group
        ).step,
    }


def milliseconds(advance: Advance, state: State, iterations: int) -> torch.Tensor:
    """Of an iteration, on the clock and of this process."""
    start = time.perf_counter(), time.process_time()
    for _ in range(iterations):
        advance(state)
    end = time.perf_counter(), time.process_time()
    return 1e3 * (torch.tensor(end, dtype=torch.float64) - torch.tensor(start, dtype=torch.float64)) / iterations


@joined()
def main(name: str = "25gaussians/ebm-bb@paper", iterations: str = "50", compile: str = "off") -> None:
    torch.set_num_threads(1)
    group = Group.current()
    steps = variants(experiment(name), group)
    ways = {label: (compiled if compile == "on" else plain)(step) for label, step in steps.items()}
    states = {label: step.initial_state(seed=0) for label, step in steps.items()}
    times: dict[str, list[list[float]]] = {label: [] for label in ways}
    for _ in range(ROUNDS + 1):  # the first one compiles and warms up
        for label, advance in ways.items():
            group.every(True)  # all begin together
            times[label].append(group.mean(milliseconds(advance, states[label], int(iterations))).tolist())
    if not group.leads:
        return
    medians = {label: list(map(statistics.median, zip(*taken[1:], strict=True))) for label, taken in times.items()}
    rows = steps["apart"].optimizer.batch_size
    print(f"{name}, {rows} rows each, {group.size} processes, torch {torch.__version__}, compile {compile}")
    for label, (clock, process) in medians.items():
        ratios = clock / medians["apart"][0], process / medians["apart"][1]
        print(
            f"{label}: {clock:.1f} ms on the clock ({ratios[0]:.2f}), {process:.1f} ms of a process ({ratios[1]:.2f})"
        )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main(*sys.argv[1:])
