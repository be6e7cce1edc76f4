"""Seconds until the explorer has answered with a new grid of 64 samples and their energies: the CIFAR-10 networks of
the paper (DCGAN, 512 channels), untrained, on the CPU. Speed does not depend on what they have learnt.

python benchmarks/explorer.py
"""

import os
import time
from pathlib import Path

import torch
from starlette.testclient import TestClient

from ebmbounds.bench import stand_in
from ebmbounds.experiments import experiment
from ebmbounds.explore import Explorer
from ebmbounds.explore.server import application
from ebmbounds.launch import Session, build_step
from ebmbounds.model import Model
from ebmbounds.run import Run

spec = experiment("cifar10/ebm-bb")
step = build_step(spec, stand_in(spec, "cpu"), 0, "cpu")
model = Model.of(step, step.initial_state(0, "cpu"))
client = TestClient(application(Explorer("untrained", Session(spec, step), model, Run(Path()))), "http://127.0.0.1")
client.get("/api/samples?seed=0")
wall, busy = [], []
for seed in range(1, 10):
    start, cpu = time.perf_counter(), time.process_time()
    assert len(client.get(f"/api/samples?seed={seed}").json()) == 64
    wall.append(time.perf_counter() - start)
    busy.append(time.process_time() - cpu)
print(f"{spec.pair}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, torch {torch.__version__}")
print(f"a grid of 64: median {sorted(wall)[4]:.2f} s, fastest {min(wall):.2f} s, slowest {max(wall):.2f} s")
print(f"CPU seconds of all threads: median {sorted(busy)[4]:.2f}")
