"""The batch-200 toy step, plain and compiled, on one core in one run: milliseconds of each and their ratio.

    python benchmarks/toy_step.py [ITERATIONS] [EXPERIMENT]

Medians over rounds in which the two take turns, so that a busy machine slows both alike.
"""

import statistics
import sys
import time

import torch

from ebmbounds.execution import Advance, compiled, plain
from ebmbounds.experiments import experiment
from ebmbounds.session import Session
from ebmbounds.step import State

ROUNDS = 5


def milliseconds(advance: Advance, state: State, iterations: int) -> float:
    start = time.perf_counter()
    for _ in range(iterations):
        advance(state)
    return 1e3 * (time.perf_counter() - start) / iterations


def main(iterations: int = 200, name: str = "25gaussians/ebm-bb@paper") -> None:
    torch.set_num_threads(1)
    step = Session.build(experiment(name), seed=0, device="cpu", root=None).step
    slow, fast = plain(step), compiled(step)
    states = step.initial_state(seed=0), step.initial_state(seed=0)
    slow(states[0])
    compiling = milliseconds(fast, states[1], 1)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        times[0].append(milliseconds(slow, states[0], max(iterations // 10, 1)))
        times[1].append(milliseconds(fast, states[1], iterations))
    before, after = map(statistics.median, times)
    print(f"{name}, batch {step.optimizer.batch_size}, torch {torch.__version__}, one thread")
    print(f"plain {before:.1f} ms, compiled {after:.2f} ms, ratio {before / after:.1f}")
    print(f"first call of the compiled step: {compiling / 1e3:.0f} s")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*map(int, arguments[:1]), *arguments[1:])
