"""FIDs of a method's settings after a few thousand iterations, one configuration after the other:

    python benchmarks/search.py cifar10/wgan-0gp steps=5000 lr_decay_steps=5000 ema=0.999 energy_steps=1 -- \\
        penalty_weight=0.1 penalty_weight=1 penalty_weight=1,lr_energy=1e-4,lr_generator=1e-4

Settings before the `--` are for all; each argument after it is a configuration, its keys joined by commas. Numbers that
differ between configurations are kept in the state, so that one compiled iteration serves them all. For each, every
`checkpoint_every` iterations and at its end, a line of JSON: its settings, the FID of 10,000 samples of the moving
average and of the last weights (features in half precision on a GPU), for both how well energies tell other images
apart and how anisotropic the generator is, milliseconds an iteration, and means of the log since the line before. One
that diverges says so, and the next one begins.
"""

import copy
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ebmbounds.cli.base import parse
from ebmbounds.data.registry import data_root, load_images
from ebmbounds.errors import BadInput
from ebmbounds.execution import Advance
from ebmbounds.experiments import Experiment, experiment
from ebmbounds.image_evaluation import ENERGIES, OOD_SETS, quick_fids
from ebmbounds.image_figures import anisotropy_figures, image_energies, some
from ebmbounds.machine import deterministic, execution, resolve_device, set_up
from ebmbounds.metrics.ood import detection
from ebmbounds.model import Model
from ebmbounds.session import Session
from ebmbounds.step import COUNT, Info, State, Step

SAMPLES = 10_000
LATENTS = 64
RATES = {"lr_energy", "lr_generator", "beta1", "beta2"}
"""The optimiser's settings that may differ; of the method's all may that are numbers with a fraction, but for SIZES."""
SIZES = {"entropy_share"}
"""They decide how large tensors are."""


class Number:
    """A setting that is a tensor. Code that asks whether it is 0 is told that it is not."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __bool__(self) -> bool:
        return True

    def __gt__(self, other: float) -> bool:
        return True

    def __neg__(self) -> Tensor:
        return -self.value

    def __mul__(self, other: Any) -> Any:
        return self.value * other

    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Any:
        return other - self.value

    def __pow__(self, other: Any) -> Any:
        return self.value**other

    def __truediv__(self, other: Any) -> Any:
        return self.value / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.value


class AdjustableStep(Step):
    """A step whose state also holds `settings`: numbers that stand for those of its optimiser and objective."""

    def __init__(self, step: Step) -> None:
        self.__dict__.update(vars(step))

    def __call__(self, state: State) -> tuple[State, Info]:
        rest = dict(state)
        numbers = rest.pop("settings", {})
        adjusted = copy.copy(self)
        adjusted.optimizer = replaced(self.optimizer, numbers)
        adjusted.objective = replaced(self.objective, numbers)
        new, info = Step.__call__(adjusted, rest)
        return new | {key: state[key] for key in state if key == "settings"}, info

    def start(self, settings: dict[str, float], device: str) -> State:
        state = self.initial_state(0, device)
        return state | {"settings": {name: torch.tensor(value, device=device) for name, value in settings.items()}}


def replaced(settings: Any, numbers: dict[str, Tensor]) -> Any:
    """A copy of a settings object with some of its fields as tensors."""
    result = copy.copy(settings)
    for name, value in numbers.items():
        if hasattr(settings, name):
            object.__setattr__(result, name, Number(value))
    return result


def search(
    specs: Sequence[Experiment], measure: Callable[[Model], dict[str, Any]], device: str, root: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Train each from its start, and measure it at every checkpoint and at its end."""
    configs = [spec.config() for spec in specs]
    varied = sorted(key for key in configs[0] if len({config[key] for config in configs}) > 1)
    for key in varied:
        of_method = isinstance(getattr(specs[0].objective, key, None), float) and key not in SIZES
        if key not in RATES and not of_method:
            raise BadInput(f"{key} cannot differ between configurations: search each value of it by itself.")
    base = max(specs, key=lambda spec: spec.optimizer.beta1)  # a first moment is kept for all, or for none
    schedule = base.schedule
    set_up(device, deterministic(base, device), schedule.threads, schedule.precision)
    step = AdjustableStep(Session.build(base, 0, device, root).step)
    advance = execution(step, schedule.compile, device)
    state = step.start({key: configs[0][key] for key in varied}, device)
    for config in configs:
        settings = {key: config[key] for key in varied}
        pytree.tree_map_(lambda old, new: old.copy_(new), state, step.start(settings, device))
        done = 0
        for end in (*range(schedule.checkpoint_every, schedule.steps, schedule.checkpoint_every), schedule.steps):
            half = (done + end) // 2
            run(advance, state, half - done)  # it may compile
            mark = finished_at(device)
            run(advance, state, end - half)
            milliseconds = 1e3 * (finished_at(device) - mark) / (end - half)
            log = means(state)
            row: dict[str, Any] = {"settings": settings, "step": end, "ms": round(milliseconds, 3)}
            if lost := [name for name, value in log.items() if not math.isfinite(value)]:
                yield row | {"diverged": lost}
                break  # the configurations after it are none the worse
            yield row | measure(Model.of(step, state)) | {"log": log}
            done = end


def run(advance: Advance, state: State, iterations: int) -> None:
    for _ in range(iterations):
        advance(state)


def means(state: State) -> dict[str, float]:
    """Of the log, which begins anew."""
    count = float(state["log"][COUNT])
    found = {name: float(total) / count for name, total in state["log"].items() if name != COUNT}
    for total in state["log"].values():
        total.zero_()
    return found


def finished_at(device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure_images(dataset: str, root: Path) -> Callable[[Model], dict[str, Any]]:
    """FIDs, AUROC of the sets that the data set is told apart from, and anisotropy."""
    test = load_images(dataset, "test", root).images
    inside = some(test, ENERGIES)
    others = {name: some(load_images(name, "test", root).images, ENERGIES) for name in OOD_SETS.get(dataset, ())}

    def measure(model: Model) -> dict[str, Any]:
        figures: dict[str, Any] = quick_fids(model, test, SAMPLES)
        for suffix, each in {"": model, "_unaveraged": model.unaveraged}.items():
            if each is not None:
                energies = image_energies(each, inside)
                for name, images in others.items():
                    figures[f"auroc_{name}{suffix}"] = detection(energies, image_energies(each, images)).auroc
                figures[f"anisotropy{suffix}"] = anisotropy_figures(each, LATENTS)[0]["anisotropy"]
        return figures

    return measure


def experiments(name: str, arguments: list[str]) -> list[Experiment]:
    """One for each configuration."""
    shared, configurations = arguments, []
    if "--" in arguments:
        split = arguments.index("--")
        shared, configurations = arguments[:split], arguments[split + 1 :]
    if not configurations:
        raise BadInput("no configuration is named to search: add `-- KEY=VALUE[,KEY=VALUE...] ...`.")
    return [experiment(name, parse(shared) | parse(each.split(","))) for each in configurations]


def main(name: str = "", *arguments: str) -> None:
    specs = experiments(name, list(arguments))
    root, device = data_root(None), resolve_device("auto")
    for row in search(specs, measure_images(specs[0].dataset, root), device, root):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BadInput as error:
        sys.exit(f"error: {error}")
