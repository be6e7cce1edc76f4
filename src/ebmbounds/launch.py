"""From an experiment to a trained run, and from a run folder back to its model."""

import functools
import math
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ebmbounds import evaluate
from ebmbounds.data import Data, training_data
from ebmbounds.errors import BadInput
from ebmbounds.execution import Advance, captured, compiled, plain
from ebmbounds.experiments import Experiment, experiment, from_config
from ebmbounds.model import Model
from ebmbounds.run import Run, flatten
from ebmbounds.step import State, Step
from ebmbounds.trainer import Trainer

RUN_KEYS = ("seed", "device", "data_root", "torch", "version")
"""What config.json holds beside the experiment."""


def train(
    name: str,
    overrides: dict[str, Any] | None = None,
    *,
    run: Path | str | None = None,
    resume: bool = False,
    seed: int = 0,
    device: str = "auto",
    data: Path | str | None = None,
    progress: bool = True,
) -> Run:
    """Train the experiment `DATASET/METHOD[@VARIANT]` into a run folder, or continue there with `resume`.

    Raises `Interrupted` after SIGINT or SIGTERM, the state saved."""
    if resume:
        if run is None:
            raise BadInput("--resume needs the run folder: name it with --run.")
        folder = Run.open(run)
        config = folder.config
        resumed = experiment_of(config)
        asked = experiment(name, overrides) if name else experiment_of(config | (overrides or {}))
        changed = {k for k, v in asked.config().items() if v != resumed.config().get(k)} - {"steps"}
        if changed:
            raise BadInput(
                f"{folder.path} was started with other settings ({', '.join(sorted(changed))}): "
                "resume it without overrides (only steps may change), or start a new run."
            )
        spec, seed = asked, config["seed"]
        device, data = config.get("device", "auto") if device == "auto" else device, data or config.get("data_root")
        device = resolve_device(device)
        session = Session.build(spec, seed, device, data)
        if folder.checkpoint().exists():
            loaded, notes = folder.load(device=device)
            state, best = session.restored(loaded, folder, seed, device), float(notes["best"])
        else:  # it ended before its first checkpoint
            state, best = session.step.initial_state(seed, device), float("inf")
        folder.rewind_log(int(state["step"]))
    else:
        spec = experiment(name, overrides)
        device = resolve_device(device)
        session = Session.build(spec, seed, device, data)
        path = Path(run) if run is not None else default_folder(spec, seed)
        config = spec.config() | {
            "seed": seed,
            "device": device,
            "data_root": str(data) if data else None,
            "torch": torch.__version__,
        }
        folder = Run.create(path, config)
        state, best = session.step.initial_state(seed, device), float("inf")
    schedule = spec.schedule
    set_up(device, deterministic(spec, device), schedule.threads, schedule.precision)
    trainer = Trainer(
        folder,
        execution(session.step, schedule.compile, device),
        schedule.steps,
        schedule.log_every,
        schedule.checkpoint_every,
        schedule.best_by,
        functools.partial(evaluate.watch, session.step, folder),
        progress,
    )
    stopped = trainer.train(state, best)
    if stopped is not None:
        raise Interrupted(stopped, folder, int(state["step"]))
    return folder


class Interrupted(Exception):
    """Training ended by a signal, its state saved."""

    def __init__(self, signal: int, run: Run, step: int) -> None:
        super().__init__(f"stopped at step {step}, saved; continue with: ebmbounds train --resume --run {run.path}")
        self.signal = signal


@dataclass(frozen=True)
class Session:
    """An experiment with its data and networks made."""

    experiment: Experiment
    step: Step

    @classmethod
    def build(cls, spec: Experiment, seed: int, device: str, root: Path | str | None) -> "Session":
        data = training_data(spec.dataset, spec.data, root, device)
        return cls(spec, build_step(spec, data, seed, device))

    def checked(self, loaded: State, run: Run) -> State:
        """A loaded state whose networks fit these; tables without entries, which no file holds, are restored."""
        state = loaded | {kind: loaded.get(kind, {}) for kind in self.step.initial}
        for kind, tables in self.step.initial.items():
            for player, table in tables.items():
                theirs = state[kind].setdefault(player, {})
                if {k: t.shape for k, t in table.items()} != {k: t.shape for k, t in theirs.items()}:
                    raise BadInput(f"{run.checkpoint()} does not fit the settings in {run.path}/config.json.")
        return state

    def restored(self, loaded: State, run: Run, seed: int, device: str) -> State:
        """A loaded state in the memory layout of a fresh one, checked against these networks."""
        state = self.step.initial_state(seed, device)
        mine, theirs = flatten(state), flatten(loaded)
        if {k: t.shape for k, t in mine.items()} != {k: t.shape for k, t in theirs.items()}:
            raise BadInput(f"{run.checkpoint()} does not fit the settings in {run.path}/config.json.")
        for name, tensor in mine.items():
            tensor.copy_(theirs[name])
        return state


def build_step(spec: Experiment, data: Data, seed: int, device: str) -> Step:
    """The iteration of an experiment on a given data set, its networks drawn by the seed."""
    latent_dim = spec.optimizer.latent_dim
    if latent_dim > math.prod(data.shape):
        raise BadInput(
            f"latent_dim={latent_dim} is above the data's dimension {math.prod(data.shape)}: the generator's Jacobian "
            f"would lose rank; use at most {math.prod(data.shape)}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        players = spec.pair.build(data.shape, latent_dim) | spec.objective.extra_players(data.shape, latent_dim)
    for module in players.values():
        module.to(device)
        if device.startswith("cuda"):  # there convolutions are fastest with the channels innermost
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Step(spec.objective, players, data, spec.optimizer, bf16=spec.schedule.precision == "bf16")


def experiment_of(config: dict[str, Any]) -> Experiment:
    """The experiment of a run folder's config.json."""
    if not isinstance(config, dict) or not isinstance(config.get("seed"), int):
        raise BadInput("config.json does not describe a run of this program (it has no seed).")
    return from_config({key: value for key, value in config.items() if key not in RUN_KEYS})


def load(
    run: Path | str | Run, checkpoint: str = "last", device: str = "cpu", data: Path | str | None = None
) -> tuple[Session, Model]:
    """The session and the model of a run folder."""
    folder = run if isinstance(run, Run) else Run.open(run)
    config = folder.config
    session = Session.build(experiment_of(config), config["seed"], device, data or config.get("data_root"))
    state, _ = folder.load(checkpoint, device)
    return session, Model.of(session.step, session.checked(state, folder))


def default_folder(spec: Experiment, seed: int) -> Path:
    return Path("runs") / f"{spec.name.replace('/', '-')}-seed{seed}"


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
    torch.use_deterministic_algorithms(deterministic)
    if device == "cpu":
        torch.set_num_threads(threads or 1)
    else:
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.benchmark = not deterministic


def execution(step: Step, choice: str, device: str) -> Advance:
    """How the step runs: one CUDA graph on a GPU, compiled on a CPU with a compiler, else plain."""
    if choice == "off":
        return plain(step)
    if device.startswith("cuda"):
        return captured(step)
    if choice == "auto" and len(step.data.shape) > 1:
        return plain(step)  # on a CPU convolutions take most of the time, and compiling them many minutes
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        warnings.warn("no C++ compiler was found: the step runs plain, several times slower.", stacklevel=2)
        return plain(step)
    return compiled(step)


def evaluate_run(
    run: Path | str | Run, checkpoint: str = "last", device: str = "auto", **options: Any
) -> dict[str, Any]:
    """Evaluate a run's checkpoint: metrics.json and pictures in its folder, the figures returned."""
    folder = run if isinstance(run, Run) else Run.open(run)
    session, model = load(folder, checkpoint, resolve_device(device), options.get("root"))
    return evaluate.evaluate(folder, session, model, **options)
