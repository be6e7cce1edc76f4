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

from ebmbounds import __version__, evaluate
from ebmbounds.data import TOYS, Data, data_digest, training_data
from ebmbounds.distributed import ALONE, Group, joined, own_device, restarts
from ebmbounds.errors import BadInput
from ebmbounds.execution import Advance, captured, compiled, plain
from ebmbounds.experiments import Experiment, experiment, from_config
from ebmbounds.model import Model
from ebmbounds.networks.batch_norm import synchronised
from ebmbounds.run import Run, Spectator, flatten, write_json
from ebmbounds.step import State, Step
from ebmbounds.trainer import Trainer

RUN_KEYS = ("seed", "device", "machine", "data_root", "data_digest", "torch", "version")
"""What config.json holds beside the experiment."""
FREE = {"steps", "on_divergence", "rollbacks", "source"}
"""Settings that may change when a run is resumed."""


@joined()
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

    Under torchrun every process calls it, with the same arguments. Raises `Interrupted` after SIGINT or SIGTERM, the
    state saved."""
    group = Group.current()
    anew = group.every(not resume and not restarts())
    if not anew and not resume:  # processes that died are replaced: go on with what they left, if anything
        run = default_folder(experiment(name, overrides), seed) if run is None else Path(run)
        resume = (run / "config.json").exists()
    if resume:
        if run is None:
            raise BadInput("--resume needs the run folder: name it with --run.")
        folder = Run.open(run) if group.leads else Spectator.open(run)
        config = folder.config
        spec = experiment(name, overrides) if name else experiment_of(config | (overrides or {}))
        if changed := changed_settings(config, spec):
            raise BadInput(
                f"{folder.path} was started with other settings ({', '.join(changed)}): "
                "resume it without overrides (only steps and on_divergence may change), or start a new run."
            )
        seed = config["seed"]
        device, data = config.get("device", "auto") if device == "auto" else device, data or config.get("data_root")
        device = resolve_device(device)
        place = own_device(device)
        session = Session.build(spec, seed, place, data, group)
        current = run_config(spec, seed, device, data, data_digest(session.step.data))
        check_same_origin(folder, config, current)
    else:
        spec = experiment(name, overrides)
        device = resolve_device(device)
        place = own_device(device)
        session = Session.build(spec, seed, place, data, group)
        current = run_config(spec, seed, device, data, data_digest(session.step.data))
        path = Path(run) if run is not None else default_folder(spec, seed)
        folder = Run.create(path, current) if group.leads else Spectator(path)
    schedule = spec.schedule
    with folder.claimed():
        state, best = session.start(folder, seed, place)
        group.align(state)
        if (
            group.leads and resume and int(state["step"]) < schedule.steps
        ):  # from here on it runs on this machine, perhaps another one
            write_json(folder.path / "config.json", current)
        set_up(place, deterministic(spec, place), schedule.threads, schedule.precision)
        trainer = Trainer(
            folder,
            execution(session.step, schedule.compile, place),
            schedule.steps,
            schedule.log_every,
            schedule.checkpoint_every,
            schedule.best_by,
            functools.partial(evaluate.watch, session.step, folder) if group.leads else lambda state: {},
            progress and group.leads,
            rollbacks=schedule.rollbacks if schedule.on_divergence == "rollback" else 0,
            group=group,
        )
        stopped = trainer.train(state, best)
    if stopped is not None:
        raise Interrupted(stopped, folder, int(state["step"]))
    return folder


def check_same_origin(folder: Run, old: dict[str, Any], new: dict[str, Any]) -> None:
    """That a run goes on with the data that it began with; where the program is another, say so."""
    if old.get("data_digest") not in (None, new["data_digest"]):
        raise BadInput(
            f"the {new['dataset']} data are not those that {folder.path} was started with: bring them back, name their "
            "folder with --data, or start a new run."
        )
    for what in ("version", "torch"):
        if old.get(what) not in (None, new[what]):
            name = "ebmbounds" if what == "version" else what
            warnings.warn(
                f"{folder.path} was started with {name} {old[what]} and goes on with {new[what]}: it may end otherwise "
                "than without the interruption.",
                stacklevel=3,
            )


def run_config(
    spec: Experiment, seed: int, device: str, data: Path | str | None, digest: str | None = None
) -> dict[str, Any]:
    """The content of config.json: the experiment, and what it runs on."""
    machine = torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{os.cpu_count()}-core CPU"
    return spec.config() | {
        "seed": seed,
        "device": device,
        "machine": machine,
        "data_root": str(data) if data else None,
        "data_digest": digest,
        "torch": torch.__version__,
        "version": __version__,
    }


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
    def build(
        cls, spec: Experiment, seed: int, device: str, root: Path | str | None, group: Group = ALONE
    ) -> "Session":
        data = training_data(spec.dataset, spec.data, root, device)
        return cls(spec, build_step(spec, data, seed, device, group))

    def start(self, run: Run, seed: int, device: str) -> tuple[State, float]:
        """The state that a run goes on from, its log cut back to there, and the best figure so far."""
        found = run.latest(device)
        if found is None:  # it is new, or ended before its first checkpoint
            state, best = self.step.initial_state(seed, device), math.inf
        else:
            loaded, notes = found
            state = self.restored(loaded, run, seed, device)
            try:
                best = float(notes["best"])
            except (KeyError, TypeError, ValueError):
                raise BadInput(f"{run.checkpoint()} is not from training (it has no best figure).") from None
        run.rewind_log(int(state["step"]))
        return state, best

    def checked(self, loaded: State, run: Run) -> State:
        """A loaded state whose networks fit these; tables without entries, which no file holds, are restored."""
        wanted = {**self.step.initial, "step": torch.tensor(0)}
        if "average" in loaded:
            wanted["average"] = wanted["parameters"]
        if not same_tables(wanted, {key: loaded[key] for key in wanted if key in loaded}):
            raise BadInput(f"{run.checkpoint()} does not fit the settings in {run.path}/config.json.")
        whole = {
            kind: {player: {} for player in tables} | loaded.get(kind, {}) for kind, tables in self.step.initial.items()
        }
        return loaded | whole

    def restored(self, loaded: State, run: Run, seed: int, device: str) -> State:
        """A loaded state in the memory layout of a fresh one, checked against these networks."""
        state = self.step.initial_state(seed, device)
        if not same_tables(state, loaded):
            raise BadInput(f"{run.checkpoint()} does not fit the settings in {run.path}/config.json.")
        theirs = flatten(loaded)
        for name, tensor in flatten(state).items():
            tensor.copy_(theirs[name])
        return state


def same_tables(one: State, other: State) -> bool:
    """Whether two trees hold tensors of the same names, shapes and types."""
    first, second = ({k: (t.shape, t.dtype) for k, t in flatten(tree).items()} for tree in (one, other))
    return first == second


def build_step(spec: Experiment, data: Data, seed: int, device: str, group: Group = ALONE) -> Step:
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
    if group.size > 1 and spec.schedule.sync_batch_norm:
        players = {name: synchronised(module, group) for name, module in players.items()}
    for module in players.values():
        module.to(device)
        if device.startswith("cuda"):  # there convolutions are fastest with the channels innermost
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bf16 = spec.schedule.precision == "bf16" and device.startswith("cuda")
    return Step(spec.objective, players, data, spec.optimizer, bf16, group)


def experiment_of(config: dict[str, Any]) -> Experiment:
    """The experiment of a run folder's config.json."""
    if not isinstance(config, dict) or not isinstance(config.get("seed"), int):
        raise BadInput("config.json does not describe a run of this program (it has no seed).")
    try:
        return from_config({key: value for key, value in config.items() if key not in RUN_KEYS})
    except BadInput as error:
        if config.get("version") in (None, __version__):
            raise
        raise BadInput(f"config.json is from version {config['version']}, this is {__version__}: {error}") from None


def changed_settings(config: dict[str, Any], spec: Experiment) -> list[str]:
    """The settings in which a run folder's config.json differs from an experiment. The number of steps and what to do
    about divergence may, and where the settings come from is a remark."""
    theirs = experiment_of(config).config()
    return sorted({key for key, value in spec.config().items() if value != theirs.get(key)} - FREE)


def load(
    run: Path | str | Run, checkpoint: str = "last", device: str = "cpu", data: Path | str | None = None
) -> tuple[Session, Model]:
    """The session and the model of a run folder."""
    folder = run if isinstance(run, Run) else Run.open(run)
    config = folder.config
    spec, seed = experiment_of(config), config["seed"]
    state, _ = folder.load(checkpoint, device)
    data_set = training_data(spec.dataset, spec.data, data or config.get("data_root"), device)
    with torch.device("meta"):  # no memory is taken for networks that the checkpoint does not hold
        Session(spec, build_step(spec, data_set, seed, "meta")).checked(state, folder)
    session = Session(spec, build_step(spec, data_set, seed, device))
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
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
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
    alone = step.group.size == 1
    if device.startswith("cuda"):
        return captured(step, fallback=alone)
    if choice == "auto" and len(step.data.shape) > 1:
        return plain(step)  # on a CPU convolutions take most of the time, and compiling them many minutes
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not step.group.every(bool(compiler)):
        warnings.warn("no C++ compiler was found: the step runs plain, several times slower.", stacklevel=2)
        return plain(step)
    return compiled(step, fallback=alone)


def evaluate_run(
    run: Path | str | Run, checkpoint: str = "last", device: str = "auto", **options: Any
) -> dict[str, Any]:
    """Evaluate a run's checkpoint: metrics.json and pictures in its folder, the figures returned."""
    folder = run if isinstance(run, Run) else Run.open(run)
    toy = folder.config.get("dataset") in TOYS
    device = "cpu" if toy else resolve_device(device)
    session, model = load(folder, checkpoint, device, options.get("root"))
    if toy:  # as in training; image metrics keep every core busy
        torch.set_num_threads(session.experiment.schedule.threads or 1)
    return evaluate.evaluate(folder, session, model, **options)
