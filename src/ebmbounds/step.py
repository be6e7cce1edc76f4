"""One training iteration as a function from state to (state, info).

The state is a plain tree of tensors: everything that a checkpoint must hold, and nothing else.

    seed, step, tries          scalars: with them the noise of every iteration is determined (see `noise`); `tries`
                               counts how often the run diverged and went back: each draws anew, at half the rates
    parameters[player][name]   buffers[player][name]   second_moment[player][name]   (first_moment where beta1 > 0)
    average[player][name]      exponential moving average of parameters and statistics (buffers), where ema > 0
    log[name]                  sums of the diagnostics since they were last read
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import grad_and_value
from torch.utils import _pytree as pytree

from ebmbounds.distributed import ALONE, Group
from ebmbounds.errors import BadInput
from ebmbounds.game import Game, Network, Skeleton, Tensors, buffers_of, parameters_of
from ebmbounds.noise import Noise
from ebmbounds.objectives.base import Objective
from ebmbounds.settings import Count, Fraction, NonNegative, Positive, Whole

State = dict[str, Any]
Tables = dict[str, Tensors]
Info = dict[str, Tensor]
COUNT = "count"
"""The log's entry for the number of iterations that its sums are over."""
RESEED = 0x9E3779B9
"""Between the seeds of two tries of one run: 2^32 over the golden ratio, far from any small multiple."""


class Data(Protocol):
    """What the trainer needs of a data set."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""

    def draw(self, noise: Noise, n: int) -> Tensor:
        """A training batch (n, *shape), as a pure function of the noise."""


@dataclass(frozen=True)
class Optimizer:
    """Adam, with a learning rate for each player."""

    lr_energy: Positive = 2e-4
    lr_generator: NonNegative = 2e-4
    """0: the generator stays as it is, and its turn is left out; so do extra players that learn at its rate."""
    lr_decay_steps: Whole = 0
    """The iteration at which all rates, falling on a straight line, reach 0; 0 keeps them constant."""
    lr_hold_steps: Whole = 0
    """The iteration from which they fall; until then they are whole."""
    beta1: Fraction = 0.0
    """0 in the paper: no first moment is then kept."""
    beta2: Fraction = 0.9
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.0
    ema: Fraction = 0.0
    """Decay, an iteration, of the moving average of the networks that evaluation uses; 0 turns it off."""
    batch_size: Count = 200
    latent_dim: Count = 2

    def __post_init__(self) -> None:
        if self.lr_hold_steps >= max(self.lr_decay_steps, 1):
            raise BadInput(
                f"lr_hold_steps={self.lr_hold_steps}: rates that are to fall from there on need an lr_decay_steps "
                f"above it, and it is {self.lr_decay_steps}."
            )

    def rate(self, player: str) -> float:
        return self.lr_energy if player == "energy" else self.lr_generator


class Step:
    """The iteration for a given objective, set of players and data. Calling it is pure: state -> (state, info)."""

    def __init__(
        self,
        objective: Objective,
        players: dict[str, nn.Module],
        data: Data,
        optimizer: Optimizer,
        bf16: bool = False,
        group: Group = ALONE,
    ) -> None:
        self.objective, self.data, self.optimizer, self.bf16 = objective, data, optimizer, bf16
        self.group, self.rows = group, group.part("batch_size", optimizer.batch_size)
        self.skeletons = {name: Skeleton.of(module) for name, module in players.items()}
        self.initial = {
            "parameters": {name: parameters_of(module) for name, module in players.items()},
            "buffers": {name: buffers_of(module) for name, module in players.items()},
        }

    def initial_state(self, seed: int, device: torch.device | str = "cpu") -> State:
        parameters = self.initial["parameters"]
        zeros = {name: {k: torch.zeros_like(p) for k, p in tensors.items()} for name, tensors in parameters.items()}
        state: State = {
            "seed": torch.tensor(seed),
            "step": torch.tensor(0),
            "tries": torch.tensor(0),
            **self.initial,
            "second_moment": zeros,
        }
        if self.optimizer.beta1 > 0:
            state["first_moment"] = zeros
        if self.optimizer.ema > 0:
            state["average"] = averaged_tables(self.initial)
        state = pytree.tree_map(lambda t: t.to(device, copy=True), state)
        _, info = self(state)  # a dry iteration tells which diagnostics there are
        # One entry each, not none: compiled code drops updates of a float64 scalar without dimensions (torch 2.13).
        state["log"] = {name: torch.zeros_like(info["loss_energy"]).reshape(1) for name in (*info, COUNT)}
        return state

    def __call__(self, state: State) -> tuple[State, Info]:
        noise = Noise(state["seed"] + RESEED * state["tries"], state["step"], rank=self.group.rank)
        new = {key: dict(value) if isinstance(value, dict) else value for key, value in state.items()}
        frozen = state["buffers"]
        own = pytree.tree_map(torch.clone, frozen)  # train mode updates buffers, which are then no part of the state
        shared = self.objective.prepare(self.game(new["parameters"], own, frozen), noise("prepare"))
        info: Info = {}
        turns = [player for player in self.objective.turns() if self.rate(player) > 0]
        for turn, player in enumerate(turns):
            mine = noise(f"turn {turn}")
            if player == "energy" or turn == 0:  # the others see the batch of the energy's last turn
                x = self.data.draw(mine("data"), self.rows)
            loss = self.objective.losses()[player]

            def run(parameters: Tensors, buffers: Tables) -> Any:
                game = self.game({**new["parameters"], player: parameters}, buffers, frozen)  # noqa: B023
                value, details = loss(game, x, mine, shared)  # noqa: B023
                return value, (details, buffers)

            # Train mode updates buffers in place: hand it copies, and take them back.
            buffers = pytree.tree_map(torch.clone, new["buffers"])
            gradient, (value, (details, buffers)) = grad_and_value(run, has_aux=True)(
                new["parameters"][player], buffers
            )
            details = {f"loss_{player}": value.detach(), **details}
            gradient, details, new["buffers"] = self.averaged(gradient, details, new["buffers"], buffers)
            info |= details
            count = state["step"] * turns.count(player) + turns[: turn + 1].count(player)
            self.adam(new, player, gradient, count)
        if "average" in state:
            new["average"] = pytree.tree_map(
                lambda value, average: torch.lerp(value, average, self.optimizer.ema),
                averaged_tables(new),
                state["average"],
            )
        new["step"] = state["step"] + 1
        return new, info

    def rate(self, player: str) -> float:
        """What a player learns at before any fall; one whose rate is 0 takes no turn."""
        return self.objective.rates().get(player, self.optimizer.rate(player))

    def game(self, parameters: Tables, buffers: Tables, frozen: Tables) -> Game:
        networks = {
            name: Network(skeleton, parameters[name], buffers[name], frozen[name], self.bf16)
            for name, skeleton in self.skeletons.items()
        }
        return Game(networks, self.rows, self.optimizer.latent_dim, self.group)

    def averaged(self, gradient: Tensors, info: Info, old: Tables, new: Tables) -> tuple[Tensors, Info, Tables]:
        """Gradient, diagnostics and new buffers as means over processes: one exchange for each turn. Of the buffers it
        is the changes that are averaged, so that those which never change stay as they are, bit for bit."""
        if self.group.size == 1:
            return gradient, info, new
        changes = {
            player: {name: b - old[player][name] for name, b in table.items() if b.is_floating_point()}
            for player, table in new.items()
        }
        gradient, info, changes = self.group.average((gradient, info, changes))
        buffers = {
            player: table | {name: old[player][name] + change for name, change in changes[player].items()}
            for player, table in new.items()
        }
        return gradient, info, buffers

    def adam(self, new: State, player: str, gradient: Tensors, count: Tensor) -> None:
        """Adam's update number `count` of one player's part of the new state."""
        o = self.optimizer
        rate: Tensor | float = self.rate(player)
        if o.lr_decay_steps:
            falling = (new["step"] - o.lr_hold_steps) / (o.lr_decay_steps - o.lr_hold_steps)
            rate = rate * (1 - falling).clamp(0, 1)
        rate = rate * 0.5 ** new["tries"]
        parameters: Tensors = {}
        second: Tensors = {}
        first: Tensors = {}
        for name, p in new["parameters"][player].items():
            g = gradient[name] + o.weight_decay * p if o.weight_decay else gradient[name]
            second[name] = o.beta2 * new["second_moment"][player][name] + (1 - o.beta2) * g * g
            m = g
            if o.beta1 > 0:
                first[name] = o.beta1 * new["first_moment"][player][name] + (1 - o.beta1) * g
                m = first[name] / (1 - o.beta1**count)
            scale = (second[name] / (1 - o.beta2**count)).sqrt() + o.epsilon
            parameters[name] = p - rate * m / scale
        new["parameters"][player], new["second_moment"][player] = parameters, second
        if o.beta1 > 0:
            new["first_moment"][player] = first


def averaged_tables(state: State) -> Tables:
    """What a moving average is kept of: parameters, and statistics that go with them (batch norm's)."""
    return {
        player: {**table, **{name: b for name, b in state["buffers"][player].items() if b.is_floating_point()}}
        for player, table in state["parameters"].items()
    }
