"""From an experiment to a trained run, and from a run folder back to its model."""

import functools
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ebmbounds import __version__, evaluate
from ebmbounds.data import TOYS, data_digest, unread_data
from ebmbounds.distributed import ALONE, Group, joined, own_device, restarts
from ebmbounds.errors import BadInput
from ebmbounds.execution import Advance
from ebmbounds.experiments import Experiment, experiment, from_config
from ebmbounds.machine import deterministic, execution, resolve_device, set_up
from ebmbounds.model import Model
from ebmbounds.pretrained import is_pretrained, opened
from ebmbounds.run import Run, Spectator, write_json
from ebmbounds.session import Session, build_step
from ebmbounds.side_by_side import play, stacked
from ebmbounds.signals import interruptions
from ebmbounds.step import State
from ebmbounds.trainer import Trainer

RUN_KEYS = ("seed", "device", "machine", "data_root", "data_digest", "torch", "version")
"""What config.json holds beside the experiment."""
FREE = {"steps", "checkpoint_every", "watch_fid", "on_divergence", "rollbacks", "source"}
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
    prepared = prepare(name, overrides, run, resume, seed, device, data, group)
    with prepared.folder.claimed():
        state, best = prepared.start()
        stopped = prepared.trainer(prepared.execution(), progress).train(state, best)
    if stopped is not None:
        raise Interrupted(stopped, prepared.folder, int(state["step"]))
    return prepared.folder


def train_side_by_side(
    name: str,
    overrides: dict[str, Any],
    runs: Mapping[int, Path],
    *,
    device: str = "auto",
    data: Path | str | None = None,
    progress: bool = True,
) -> None:
    """Train runs of one experiment, seed -> folder, with one iteration for all of them (see `side_by_side`). Those that
    exist are resumed, and where some are behind they catch up first."""
    if not runs:
        raise BadInput("no run was named to train side by side: give at least one seed and its folder.")
    steps = experiment(name, overrides).schedule.steps
    while True:
        prepared = [
            prepare(name, overrides, path, (path / "config.json").exists(), seed, device, data, side_by_side=True)
            for seed, path in runs.items()
        ]
        with ExitStack() as claims:
            for each in prepared:
                claims.enter_context(each.folder.claimed())
            starts = [each.start() for each in prepared]
            reached = [int(state["step"]) for state, _ in starts]
            first = min(reached)
            if first >= steps:
                return
            goal = min((step for step in reached if step > first), default=steps)
            last = [i for i, step in enumerate(reached) if step == first]
            whole, states = stacked([starts[i][0] for i in last])
            advance = prepared[0].execution(side_by_side=True)
            with interruptions() as interrupted:
                loops = []
                for i, state in zip(last, states, strict=True):
                    trainer = prepared[i].trainer(advance, progress and i == last[0], goal)
                    loops.append(trainer.turns(state, starts[i][1], interrupted))
                stopped = play(loops, lambda advance=advance, whole=whole: advance(whole))  # type: ignore[misc]
        if stopped is not None:
            raise Interrupted(stopped, prepared[last[0]].folder, int(states[0]["step"]))


def prepare(
    name: str,
    overrides: dict[str, Any] | None,
    run: Path | str | None,
    resume: bool,
    seed: int,
    device: str,
    data: Path | str | None,
    group: Group = ALONE,
    side_by_side: bool = False,
) -> "Prepared":
    """Everything that training needs, for a new run or one that is resumed."""
    if not resume:
        spec = experiment(name, overrides)
        device = resolve_device(device)
        place = own_device(device)
        session = Session.build(spec, seed, place, data, group, side_by_side)
        config = run_config(spec, seed, device, data, data_digest(session.step.data))
        path = Path(run) if run is not None else default_folder(spec, seed)
        origin = networks_of(spec, session, place)
        new = Run.create(path, config) if group.leads else Spectator(path)
        return Prepared(session, new, config, place, group, origin)
    if run is None:
        raise BadInput("--resume needs the run folder: name it with --run.")
    folder = Run.open(run) if group.leads else Spectator.open(run)
    old, overrides = folder.config, overrides or {}
    spec = experiment(name, {"init": old.get("init")} | overrides) if name else experiment_of(old | overrides)
    if changed := changed_settings(old, spec):
        raise BadInput(
            f"{folder.path} was started with other settings ({', '.join(changed)}): "
            "resume it without overrides (only steps, checkpoint_every, watch_fid and on_divergence may change), or "
            "start a new run."
        )
    seed = old["seed"]
    device, data = old.get("device", "auto") if device == "auto" else device, data or old.get("data_root")
    device = resolve_device(device)
    place = own_device(device)
    session = Session.build(spec, seed, place, data, group, side_by_side)
    config = run_config(spec, seed, device, data, data_digest(session.step.data))
    check_same_origin(folder, old, config)
    origin = networks_of(spec, session, place) if group.leads and not folder.begun() else None
    return Prepared(session, folder, config, place, group, origin)


def networks_of(spec: Experiment, session: Session, device: str) -> Model | None:
    """The trained pair that a run is to start from, if its setting `init` names one."""
    init = spec.schedule.init
    if init is None:
        return None
    _, model = load(init, device=device)
    session.check_networks(model, init)
    return model


@dataclass(frozen=True)
class Prepared:
    """A run that is about to be trained."""

    session: Session
    folder: Run
    config: dict[str, Any]
    """What config.json is to hold."""
    place: str
    """The device of this process."""
    group: Group
    origin: Model | None
    """The networks that a new run starts from, if not from those that its seed draws."""

    def start(self) -> tuple[State, float]:
        """The state to go on from, and the best figure so far."""
        state, best = self.session.start(self.folder, self.config["seed"], self.place)
        if self.origin is not None:
            self.session.begin_with(state, self.origin)
        self.group.align(state)
        to_do = int(state["step"]) < self.session.experiment.schedule.steps
        if self.group.leads and to_do and self.folder.config != self.config:  # it goes on here, on another machine
            write_json(self.folder.path / "config.json", self.config)
        return state, best

    def execution(self, side_by_side: bool = False) -> Advance:
        schedule = self.session.experiment.schedule
        set_up(self.place, deterministic(self.session.experiment, self.place), schedule.threads, schedule.precision)
        return execution(self.session.step, schedule.compile, self.place, side_by_side)

    def trainer(self, advance: Advance, progress: bool, steps: int | None = None) -> Trainer:
        """`steps`: where to end, if not at the experiment's last one."""
        schedule, leads = self.session.experiment.schedule, self.group.leads
        return Trainer(
            self.folder,
            advance,
            steps or schedule.steps,
            schedule.log_every,
            schedule.checkpoint_every,
            schedule.best_by,
            functools.partial(evaluate.watch, self.session.step, self.folder) if leads else lambda state: {},
            progress and leads,
            rollbacks=schedule.rollbacks if schedule.on_divergence == "rollback" else 0,
            group=self.group,
        )


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
    spec: Experiment,
    seed: int,
    device: str,
    data: Path | str | None,
    digest: str | None = None,
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
    """The settings in which a run folder's config.json differs from an experiment. The number of steps, when to save,
    what to watch and what to do about divergence may, and where the settings come from is a remark."""
    theirs = experiment_of(config).config()
    return sorted({key for key, value in spec.config().items() if value != theirs.get(key)} - FREE)


def load(run: Path | str | Run, checkpoint: str = "last", device: str = "cpu") -> tuple[Session, Model]:
    """The session and the model of a run folder, or of `DATASET/METHOD@pretrained`; no data set is read."""
    folder = opened(run)
    config = folder.config
    spec = experiment_of(config)
    state, _ = folder.load(checkpoint, device)
    state = pytree.tree_map(lambda t: t.float() if t.dtype == torch.half else t, state)  # as `export` stores weights
    with torch.device("meta"):  # the tensors are the checkpoint's: no memory is taken for what it does not hold
        session = Session(spec, build_step(spec, unread_data(spec.dataset, spec.data), config["seed"], "meta"))
    return session, Model.of(session.step, session.checked(state, folder))


def default_folder(spec: Experiment, seed: int) -> Path:
    return Path("runs") / f"{spec.name.replace('/', '-')}-seed{seed}"


def evaluate_run(
    run: Path | str | Run, checkpoint: str = "last", device: str = "auto", **options: Any
) -> dict[str, Any]:
    """Evaluate a run's checkpoint: metrics.json and pictures in its folder, the figures returned."""
    folder = opened(run)
    if not isinstance(run, Run) and is_pretrained(run):  # its figures are those that its card states
        raise BadInput(f"{run} is not written to: evaluate a copy of the folder {folder.path}.")
    toy = folder.config.get("dataset") in TOYS
    device = "cpu" if toy else resolve_device(device)
    session, model = load(folder, checkpoint, device)
    if toy:  # as in training; image metrics keep every core busy
        torch.set_num_threads(session.experiment.schedule.threads or 1)
    return evaluate.evaluate(folder, session, model, **options)
