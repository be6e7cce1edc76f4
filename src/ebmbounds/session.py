"""An experiment made: its data, its networks and their step; and the states of its runs, checked against them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ebmbounds.data import Data, training_data
from ebmbounds.distributed import ALONE, Group
from ebmbounds.errors import BadInput
from ebmbounds.experiments import Experiment
from ebmbounds.model import PAIR, Model
from ebmbounds.networks.batch_norm import written_out
from ebmbounds.run import Run, flatten
from ebmbounds.step import State, Step, averaged_tables


@dataclass(frozen=True)
class Session:
    """An experiment with its data and networks made."""

    experiment: Experiment
    step: Step

    @classmethod
    def build(
        cls,
        spec: Experiment,
        seed: int,
        device: str,
        root: Path | str | None,
        group: Group = ALONE,
        side_by_side: bool = False,
    ) -> "Session":
        data = training_data(spec.dataset, spec.data, root, device)
        return cls(spec, build_step(spec, data, seed, device, group, side_by_side))

    def start(self, run: Run, seed: int, device: str) -> tuple[State, float]:
        """The state that a run goes on from, its log cut back to there, and the best figure so far."""
        found = run.latest(device)
        if found is None:  # it is new, or ended before its first checkpoint
            state, best = self.step.initial_state(seed, device), math.inf
        else:
            loaded, notes = found
            try:
                best = float(notes["best"])
            except (KeyError, TypeError, ValueError):
                raise BadInput(f"{run.checkpoint()} is not from training (it has no best figure).") from None
            state = self.restored(loaded, run, seed, device)
        run.rewind_log(int(state["step"]))
        return state, best

    def check_networks(self, model: Model, source: str) -> None:
        """That a trained pair has the shapes of this experiment's."""
        ours = {kind: of_pair(self.step.initial[kind]) for kind in self.step.initial}
        if not same_tables(ours, model.tables()):
            raise BadInput(
                f"the networks of {source} are not those of {self.experiment.name}: start from a run with the same "
                "network, of the same size, for data of the same shape."
            )

    def begin_with(self, state: State, model: Model) -> None:
        """Put a trained pair in the place of a fresh state's own, also where a moving average begins."""
        theirs = flatten(model.tables())
        ours = flatten({kind: of_pair(state[kind]) for kind in model.tables()})
        for name, tensor in ours.items():
            tensor.copy_(theirs[name])
        if "average" in state:
            beginning = flatten(averaged_tables(state))
            for name, tensor in flatten(state["average"]).items():
                tensor.copy_(beginning[name])

    def checked(self, loaded: State, run: Run) -> State:
        """The part of a loaded state that a model is made of, which must fit these networks; tables without entries,
        which no file holds, are restored."""
        wanted = {**self.step.initial, "step": torch.tensor(0)}
        if "average" in loaded:
            wanted["average"] = averaged_tables(self.step.initial)
        ours, theirs = ({key: of_pair(tree[key]) for key in wanted if key in tree} for tree in (wanted, loaded))
        if not same_tables(ours, theirs):
            raise BadInput(f"{run.checkpoint()} does not fit the settings in {run.path}/config.json.")
        return theirs | {kind: {player: {} for player in PAIR} | theirs.get(kind, {}) for kind in self.step.initial}

    def restored(self, loaded: State, run: Run, seed: int, device: str) -> State:
        """A loaded state in the memory layout of a fresh one, checked against these networks."""
        state = self.step.initial_state(seed, device)
        if not same_tables(state, loaded):
            raise BadInput(f"{run.checkpoint()} does not fit the settings in {run.path}/config.json.")
        theirs = flatten(loaded)
        for name, tensor in flatten(state).items():
            tensor.copy_(theirs[name])
        return state


def of_pair(tables: Any) -> Any:
    """Without those of players that only training has."""
    return {player: tables[player] for player in PAIR if player in tables} if isinstance(tables, dict) else tables


def same_tables(one: State, other: State) -> bool:
    """Whether two trees hold tensors of the same names, shapes and types."""
    first, second = ({k: (t.shape, t.dtype) for k, t in flatten(tree).items()} for tree in (one, other))
    return first == second


def build_step(
    spec: Experiment, data: Data, seed: int, device: str, group: Group = ALONE, side_by_side: bool = False
) -> Step:
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
    if side_by_side or (group.size > 1 and spec.schedule.sync_batch_norm):
        players = {name: written_out(module, group) for name, module in players.items()}
    for module in players.values():
        module.to(device)
        if device.startswith("cuda"):  # there convolutions are fastest with the channels innermost
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    bf16 = spec.schedule.precision == "bf16" and device.startswith("cuda")
    return Step(spec.objective, players, data, spec.optimizer, bf16, group)
