"""Where the time of a captured iteration goes: `python benchmarks/iteration_gpu.py EXPERIMENT [KEY=VALUE]...`."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile

from ebmbounds.bench import ours, stand_in
from ebmbounds.execution import captured
from ebmbounds.experiments import experiment
from ebmbounds.machine import set_up

name, *overrides = sys.argv[1:]
spec = experiment(name, dict(item.split("=", 1) for item in overrides))
set_up("cuda", False, 0, spec.schedule.precision)
advance = ours(spec, stand_in(spec, "cuda"), "cuda", captured)
for _ in range(10):
    advance()
with profile(activities=[ProfilerActivity.CUDA]) as profiler:
    for _ in range(10):
        advance()
    torch.cuda.synchronize()
print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=45, max_name_column_width=90))
