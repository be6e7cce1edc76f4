"""Seconds until the explorer has answered with a new grid of 64 samples and their energies: the pretrained CIFAR-10
pair, on the CPU.

python benchmarks/explorer.py
"""

import os
import time

import torch
from starlette.testclient import TestClient

from ebmbounds.explore import Explorer
from ebmbounds.explore.server import application

explorer = Explorer.open("cifar10/ebm-bb@pretrained", "last", "cpu", None)
client = TestClient(application(explorer), "http://127.0.0.1")
client.get("/api/samples?seed=0")
wall, busy = [], []
for seed in range(1, 10):
    start, cpu = time.perf_counter(), time.process_time()
    assert len(client.get(f"/api/samples?seed={seed}").json()) == 64
    wall.append(time.perf_counter() - start)
    busy.append(time.process_time() - cpu)
print(f"{explorer.name}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, torch {torch.__version__}")
print(f"a grid of 64: median {sorted(wall)[4]:.2f} s, fastest {min(wall):.2f} s, slowest {max(wall):.2f} s")
print(f"CPU seconds of all threads: median {sorted(busy)[4]:.2f}")
