"""What a run runs on: its device, torch's settings for the whole process, and the way its iteration is executed."""

import os
import shutil
import warnings

import torch

from ebmbounds.errors import BadInput
from ebmbounds.execution import Advance, captured, compiled, plain
from ebmbounds.experiments import Experiment
from ebmbounds.step import Step


def resolve_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise BadInput(f"--device {device!r} is no device: use cpu, cuda or cuda:N.") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"--device {device} was asked for, but this machine has no usable GPU: use --device cpu.")
    if kind not in ("cpu", "cuda"):
        raise BadInput(f"--device {device!r} is not supported: use cpu, cuda or cuda:N.")
    return device


def deterministic(spec: Experiment, device: str) -> bool:
    chosen = spec.schedule.deterministic
    return device == "cpu" if chosen is None else chosen


def set_up(device: str, deterministic: bool, threads: int, precision: str) -> None:
    """Process-wide settings of torch that a run depends on."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
    torch.use_deterministic_algorithms(deterministic)
    if device == "cpu":
        torch.set_num_threads(threads or 1)
    else:
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.benchmark = not deterministic


def execution(step: Step, choice: str, device: str, side_by_side: bool = False) -> Advance:
    """How the step runs: one CUDA graph on a GPU, compiled on a CPU with a compiler, else plain; `side_by_side`: for
    states that are stacked."""
    call = torch.func.vmap(step) if side_by_side else step
    if choice == "off":
        return plain(call)
    alone = step.group.size == 1
    if device.startswith("cuda"):
        return captured(call, fallback=alone)
    if choice == "auto" and len(step.data.shape) > 1:
        return plain(call)  # on a CPU convolutions take most of the time, and compiling them many minutes
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not step.group.every(bool(compiler)):
        warnings.warn("no C++ compiler was found: the step runs plain, several times slower.", stacklevel=2)
        return plain(call)
    return compiled(call, fallback=alone)
