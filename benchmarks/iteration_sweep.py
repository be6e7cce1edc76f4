"""Milliseconds of one captured iteration over settings, on a GPU:
`python benchmarks/iteration_sweep.py cifar10/ebm-bb batch_size=64 batch_size=128 batch_size=64,lobpcg_steps=4 ...`.

Each argument after an experiment's name is one configuration, several keys joined by commas; further names start
further experiments. All are compiled side by side, one process each, then timed one after the other on the idle GPU."""

import json
import multiprocessing
import sys

import torch

from ebmbounds.bench import arithmetic, matrix_product, ours, stand_in, timed
from ebmbounds.execution import captured
from ebmbounds.experiments import experiment
from ebmbounds.machine import set_up
from ebmbounds.session import build_step


def measure(name, overrides, compiled, turn, results) -> None:
    """One configuration: ready, then timed when its turn comes."""
    spec = experiment(name, overrides)
    set_up("cuda", bool(spec.schedule.deterministic), 0, spec.schedule.precision)
    data = stand_in(spec, "cuda")
    flop = arithmetic(build_step(spec, data, 0, "cuda"), "cuda")
    advance = ours(spec, data, "cuda", captured)
    for _ in range(5):
        advance()
    compiled.release()
    turn.acquire()
    (timing,) = timed({"captured": lambda: advance}, "cuda", flop, blocks=5, seconds=2.0)
    memory = torch.cuda.max_memory_allocated() / 1e9  # of all that was made, not only of these iterations
    results.put({"experiment": name, **overrides, **vars(timing), "memory": memory, "gflop": flop / 1e9})


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    compiled, results = context.Semaphore(0), context.Queue()
    workers = []
    for argument in sys.argv[1:]:
        if "=" not in argument:
            name = argument
            continue
        turn = context.Semaphore(0)
        overrides = dict(pair.split("=", 1) for pair in argument.split(","))
        worker = context.Process(target=measure, args=(name, overrides, compiled, turn, results))
        worker.start()
        workers.append((worker, turn))
    for _ in workers:
        compiled.acquire()
    print(json.dumps({"compiled": len(workers)}), flush=True)
    print(json.dumps({"bf16 matrix product, TFLOP/s": matrix_product()}), flush=True)
    for worker, turn in workers:
        turn.release()
        print(json.dumps(results.get()), flush=True)
        worker.join()
