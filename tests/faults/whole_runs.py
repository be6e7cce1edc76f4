"""Runs small enough to be trained many times, and what must agree between two of them."""

import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ebmbounds import evaluate, launch, machine
from ebmbounds.run import Run, flatten

TOY = "moons/ebm-bb@paper"
IMAGES = "folder/ebm-bb"
QUICK = {"steps": 30, "log_every": 3, "checkpoint_every": 7, "compile": "off"}
SETTINGS = {
    TOY: QUICK
    | {
        "width": 8,
        "batch_size": 16,
        "batch_norm": True,  # so that there are buffers
        "beta1": 0.5,  # and first moments
        "ema": 0.9,  # and averages
    },
    IMAGES: QUICK | {"channels": 16, "batch_size": 4, "latent_dim": 3, "best_by": "nll"},
}


def quick_watch(step, run, state) -> dict[str, float]:
    """A figure that goes up and down, in place of quadratures and pictures."""
    return {"nll": math.sin(int(state["step"]))}


def train(path: Path, name: str = TOY, **options) -> Run:
    overrides = SETTINGS[name] | options.pop("overrides", {})
    return launch.train(name, overrides, run=path, progress=False, **{"device": "cpu"} | options)


def write_images(folder: Path, count: int = 6) -> Path:
    folder.mkdir()
    for i in range(count):
        pixels = np.random.default_rng(i).integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def content(run: Run) -> dict:
    """Everything that must agree: states bit for bit, notes, records but for their timing."""
    records = [{k: v for k, v in record.items() if k != "ms"} for record in run.records()]
    states = {}
    for name in ("last", "best"):
        state, notes = run.load(name)
        states[name] = {key: (t.dtype, t.shape, t.numpy().tobytes()) for key, t in flatten(state).items()}, notes
    return {"records": records, "config": run.config, **states}


def saved_step(run: Run, name: str = "last") -> int:
    return int(run.load(name)[0]["step"])


# -- processes that end, by SIGKILL or otherwise, at a chosen moment ---------------------------------------------------


def child(path: Path, deadly=None, *arguments, **options) -> None:
    torch.set_num_threads(1)
    evaluate.watch = quick_watch
    if deadly is not None:
        deadly(*arguments)
    train(path, resume=(path / "config.json").exists(), **options)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_step(step: int, way: str = "plain") -> None:
    """In the middle of an iteration's update of the state."""
    execution = getattr(machine, way)

    def dying(iteration, **options):
        go = execution(iteration, **options)

        def advance(state):
            if int(state["step"]) == step:
                state["parameters"]["energy"]["1.weight"].fill_(7.0)
                die()
            go(state)

        return advance

    setattr(machine, way, dying)


def die_at_checkpoint(count: int, moment: str) -> None:
    """While the count-th `last` is written: with half of its content, before it takes its name, or right after."""
    replace, seen = os.replace, []

    def dying(source, target):
        if Path(target).name == "last.safetensors":
            seen.append(target)
        here = len(seen) == count and Path(target).name == "last.safetensors"
        if here and moment == "half":
            Path(source).write_bytes(Path(source).read_bytes()[:100])
            die()
        if here and moment == "before":
            die()
        replace(source, target)
        if here:
            die()

    os.replace = dying


def die_in_the_log(count: int) -> None:
    """With half a line written."""
    log, seen = Run.log, []

    def dying(self, record):
        seen.append(record)
        if len(seen) == count:
            with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record)[:20])
            die()
        log(self, record)

    Run.log = dying
