"""The iteration as an update: Adam against torch's own, buffers, averages; compiled against plain."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ebmbounds.data.toy import TOYS
from ebmbounds.errors import BadInput
from ebmbounds.execution import BatchNormWithoutCudnn, compiled, plain
from ebmbounds.experiments import experiment
from ebmbounds.game import Network, Skeleton, buffers_of, parameters_of
from ebmbounds.model import Model
from ebmbounds.networks import ToyMLP
from ebmbounds.noise import noise
from ebmbounds.objectives import EBMBB, WGAN0GP, Objective
from ebmbounds.step import COUNT, Optimizer, State, Step, averaged_tables

DATA = TOYS["moons"]


@dataclass(frozen=True)
class Fit(Objective):
    """One player that fits |x|^2 by least squares: an ordinary problem for an ordinary optimiser."""

    def losses(self):
        return {"energy": self.loss}

    def loss(self, game, x, source, shared):
        return least_squares(game.energy(x), x), {}


def least_squares(found: Tensor, x: Tensor) -> Tensor:
    return (found.flatten() - x.square().sum(1)).square().mean()


def toy_step(objective: Objective | None = None, network: ToyMLP | None = None, **optimizer) -> Step:
    torch.manual_seed(0)
    players = (network or ToyMLP(width=8)).build((2,), 2)
    return Step(objective or EBMBB(), players, DATA, Optimizer(**{"batch_size": 16} | optimizer))


def leaves(state: State) -> list[Tensor]:
    return pytree.tree_leaves(state)


# -- Adam ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.0, 0.9), (0.0, 0.999), (0.5, 0.9), (0.9, 0.999)])
def test_adam_is_torchs(double, betas, weight_decay):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    settings = Optimizer(
        lr_energy=0.01, beta1=betas[0], beta2=betas[1], epsilon=1e-6, weight_decay=weight_decay, batch_size=32
    )
    step = Step(Fit(), {"energy": module}, DATA, settings)
    state = step.initial_state(seed=2)
    assert ("first_moment" in state) == (betas[0] > 0)
    theirs = torch.optim.Adam(module.parameters(), lr=0.01, betas=betas, eps=1e-6, weight_decay=weight_decay)
    for i in range(12):
        x = DATA.draw(noise(2, step=i)("turn 0")("data"), 32)
        theirs.zero_grad()
        loss = least_squares(module(x), x)
        loss.backward()
        theirs.step()
        state, info = step(state)
        torch.testing.assert_close(info["loss_energy"], loss.detach())
        for name, p in module.named_parameters():
            torch.testing.assert_close(state["parameters"]["energy"][name], p.detach(), rtol=1e-10, atol=1e-12)
    assert int(state["step"]) == 12


def test_several_energy_turns_are_several_updates_of_adam(double):
    torch.manual_seed(1)
    module = nn.Linear(2, 1)
    step = Step(Fit(energy_steps=3), {"energy": module}, DATA, Optimizer(lr_energy=0.01, beta1=0.5, batch_size=32))
    state = step.initial_state(seed=2)
    theirs = torch.optim.Adam(module.parameters(), lr=0.01, betas=(0.5, 0.9), eps=1e-6)
    for i in range(4):
        state, _ = step(state)
        for turn in range(3):
            x = DATA.draw(noise(2, step=i)(f"turn {turn}")("data"), 32)
            theirs.zero_grad()
            least_squares(module(x), x).backward()
            theirs.step()
    torch.testing.assert_close(state["parameters"]["energy"]["weight"], module.weight.detach())


def test_each_player_has_its_rate():
    """With beta1 = 0 the first update is lr * sign(gradient): its size is the rate."""
    step = toy_step(lr_energy=1e-2, lr_generator=1e-4, epsilon=1e-12)
    state = step.initial_state(seed=0)
    new, _ = step(state)
    for player, rate in (("energy", 1e-2), ("generator", 1e-4)):
        moved = new["parameters"][player]["3.weight"] - state["parameters"][player]["3.weight"]
        assert float(moved.abs().max()) == pytest.approx(rate, rel=1e-2)


def test_a_generator_of_rate_0_stays_and_takes_no_turn():
    step = toy_step(lr_generator=0.0)
    state = step.initial_state(seed=0)
    new, info = step(state)
    for kind in ("parameters", "second_moment"):
        assert all(new[kind]["generator"][name] is p for name, p in state[kind]["generator"].items())
    moved = new["parameters"]["energy"]["3.weight"] - state["parameters"]["energy"]["3.weight"]
    assert float(moved.abs().max()) > 0
    assert "loss_generator" not in info


def test_an_energy_without_a_rate_is_refused():
    with pytest.raises(BadInput, match=r"lr_energy=0\.0 .*above 0"):
        experiment("moons/ebm-bb", {"lr_energy": 0.0})


@pytest.mark.parametrize(
    ("hold", "iteration", "share"),
    [
        (0, 0, 1.0),
        (0, 1, 0.75),
        (0, 3, 0.25),
        (0, 4, 0.0),
        (0, 6, 0.0),
        (2, 0, 1.0),
        (2, 2, 1.0),
        (2, 3, 0.5),
        (2, 6, 0.0),
    ],
)
def test_rates_fall_on_a_line_to_zero(double, hold, iteration, share):
    """The update is that share of the one at a constant rate."""
    constant, falling = toy_step(Fit()), toy_step(Fit(), lr_hold_steps=hold, lr_decay_steps=4)
    state = constant.initial_state(seed=0) | {"step": torch.tensor(iteration)}
    before = state["parameters"]["energy"]
    whole, part = (step(state)[0]["parameters"]["energy"] for step in (constant, falling))
    for name, p in before.items():
        torch.testing.assert_close(part[name] - p, share * (whole[name] - p), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("decay", [0, 4])
def test_rates_that_would_never_fall_are_refused(decay):
    with pytest.raises(BadInput, match=f"lr_hold_steps=4.*it is {decay}"):
        Optimizer(lr_hold_steps=4, lr_decay_steps=decay)


# -- state -----------------------------------------------------------------------------------------------------------


def test_batch_norm_takes_the_batch_and_updates_its_buffers(double):
    """One generator call in each player's turn: two updates of the running mean, as torch makes them."""
    step = toy_step(WGAN0GP())
    state = step.initial_state(seed=0)
    torch.manual_seed(0)
    generator = ToyMLP(width=8).build((2,), 2)["generator"].train()
    for turn in range(2):
        generator(noise(0)(f"turn {turn}")("z").normal(16, 2))
    new, _ = step(state)
    expected = dict(generator.named_buffers())
    assert expected["2.num_batches_tracked"] == 2
    assert set(new["buffers"]["generator"]) == set(expected) and new["buffers"]["energy"] == {}
    for name, value in expected.items():
        torch.testing.assert_close(new["buffers"]["generator"][name], value)


def test_frozen_networks_use_the_statistics_and_leave_them():
    step = toy_step()
    state, _ = step(step.initial_state(seed=0))
    game = step.game(state["parameters"], state["buffers"], state["buffers"])
    before = [t.clone() for t in leaves(state)]
    z = torch.randn(5, 2)
    alone = torch.cat([game.generator.frozen(z[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(game.generator.frozen(z), alone)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), before, strict=True))


@dataclass(frozen=True)
class Prepared(WGAN0GP):
    """Runs the generator in train mode before the first turn."""

    def prepare(self, game, source):
        return game.generator(game.latents(source))


def test_preparing_in_train_mode_leaves_the_given_state_alone():
    step = toy_step(Prepared())
    state = step.initial_state(seed=0)
    before = [t.clone() for t in leaves(state)]
    step(state)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), before, strict=True))


def test_the_moving_average(double):
    step = toy_step(ema=0.9)
    state = step.initial_state(seed=0)
    expected = averaged_tables(state)
    for _ in range(5):
        state, _ = step(state)
        expected = pytree.tree_map(lambda a, p: 0.9 * a + 0.1 * p, expected, averaged_tables(state))
    for a, b in zip(leaves(state["average"]), leaves(expected), strict=True):
        torch.testing.assert_close(a, b)
    # It is what a model is made of; the networks as they are come with it.
    model = Model.of(step, state)
    assert model.unaveraged is not None
    for given, tables in ((model, state["average"]), (model.unaveraged, averaged_tables(state))):
        for network, player in ((given.energy_network, "energy"), (given.generator_network, "generator")):
            for name in state["parameters"][player]:
                assert torch.equal(network.parameters[name], tables[player][name])
    assert "average" not in toy_step(ema=0.0).initial_state(seed=0)


def test_an_averaged_generator_has_statistics_of_its_own(double):
    """What it gives sample by sample is what it gives for a large batch, whose statistics batch norm takes in train
    mode. Statistics averaged along with the weights are those of others."""
    step = toy_step(ema=0.9, lr_generator=0.03)
    state = step.initial_state(seed=0)
    for _ in range(20):
        state, _ = step(state)
    own = Model.of(step, state).generator_network
    along = Network(own.skeleton, own.parameters, own.buffers | buffers_in(state["average"]["generator"], own))
    z = noise(1).normal(8192, 2)
    with torch.no_grad():
        batch = Network(own.skeleton, own.parameters, {name: b.clone() for name, b in own.buffers.items()})(z)
        apart, far = ((network.frozen(z) - batch).norm() / batch.norm() for network in (own, along))
    assert apart < 0.03 < 0.1 < far


def test_statistics_are_the_means_over_batches(double):
    """Of a layer used twice too, whose weight a table of parameters has once."""
    layer = nn.Linear(3, 3)
    module = nn.Sequential(layer, nn.BatchNorm1d(3), layer)
    x = torch.randn(6, 3)
    given = Network(Skeleton.of(module), parameters_of(module), buffers_of(module))
    buffers = given.with_own_statistics(x.split(2)).buffers
    torch.testing.assert_close(buffers["1.running_mean"], layer(x).mean(0).detach())
    variances = torch.stack([layer(part).var(0) for part in x.split(2)])
    torch.testing.assert_close(buffers["1.running_var"], variances.mean(0).detach())
    assert torch.equal(given.buffers["1.running_mean"], torch.zeros(3))  # left alone


def buffers_in(table, network):
    return {name: table[name] for name in network.buffers if name in table}


def test_the_initial_state_is_that_of_the_modules():
    step = toy_step()
    one, two = step.initial_state(seed=0), step.initial_state(seed=1)
    assert int(one["step"]) == 0 and int(two["seed"]) == 1
    torch.manual_seed(0)
    for player, module in ToyMLP(width=8).build((2,), 2).items():
        for name, p in module.named_parameters():
            assert torch.equal(one["parameters"][player][name], p)
            assert torch.equal(two["parameters"][player][name], p)
    assert not any(t.any() for t in leaves(one["log"]))
    one["parameters"]["energy"]["1.weight"].zero_()  # states share no memory with each other
    assert two["parameters"]["energy"]["1.weight"].any()


def test_in_place_is_the_same_update_with_the_diagnostics_summed():
    step = toy_step()
    state, pure = step.initial_state(seed=0), step.initial_state(seed=0)
    addresses = [t.data_ptr() for t in leaves(state)]
    advance, sums = plain(step), {}
    for _ in range(3):
        advance(state)
        pure, info = step({key: value for key, value in pure.items() if key != "log"})
        sums = {name: sums.get(name, 0) + value for name, value in info.items()}
    assert [t.data_ptr() for t in leaves(state)] == addresses
    for part in pure:
        for a, b in zip(leaves(state[part]), leaves(pure[part]), strict=True):
            assert torch.equal(a, b)
    assert float(state["log"].pop(COUNT)) == 3
    assert set(state["log"]) == set(sums)
    for name, total in state["log"].items():
        torch.testing.assert_close(total, sums[name].reshape(1))


# -- compiled --------------------------------------------------------------------------------------------------------


def test_compiled_is_plain(double):
    """In float64 over 50 steps of EBM-BB, batch norm included. A compiler may add in another order, and each step
    amplifies the difference; 1e-9 leaves room for that, while an error of any kind is many orders larger. The networks
    are shallow because a compiler's time goes by the length of the code: a minute here, ten seconds from its cache."""
    network, objective = ToyMLP(width=4, depth=1), EBMBB(lobpcg_steps=1)
    step = toy_step(objective, network, batch_size=8, lr_energy=1e-3, lr_generator=1e-3)
    fast, slow = step.initial_state(seed=0), step.initial_state(seed=0)
    advance_fast, advance_slow = compiled(step), plain(step)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the step could not be")
        for _ in range(50):
            advance_fast(fast)
    for _ in range(50):
        advance_slow(slow)
    for a, b in zip(leaves(fast), leaves(slow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_process_compiles_any_number_of_steps():
    """Each has code of its own, though all are written by the same lines."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the step could not be")
        for k in (1.0, 2.0, 3.0):
            state = {"x": torch.zeros(2), "log": {COUNT: torch.zeros(1)}}
            compiled(lambda state, k=k: ({"x": state["x"] + k}, {}))(state)
            assert torch.equal(state["x"], torch.full((2,), k))


def test_recording_does_without_cudnn_for_batch_norm_alone():
    """Convolutions recorded without it would have other layouts than those compiled, and views of them would fail."""
    seen = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen[func.name()] = torch.backends.cudnn.enabled
            return func(*args, **(kwargs or {}))

    with BatchNormWithoutCudnn(), Watch():
        nn.BatchNorm2d(3)(nn.Conv2d(3, 3, 1)(torch.randn(2, 3, 4, 4)))
    assert seen["aten::convolution"] and not seen["aten::native_batch_norm"]


@pytest.mark.parametrize("size", [1, 2, 100_000])
def test_a_compiled_step_keeps_the_data_it_was_made_with(size):
    """And does not take those of another one that differs in nothing else, from the compiler's cache."""
    for k in (1.0, 2.0):
        data = torch.full((size,), k)
        state = {"x": torch.zeros(size), "log": {COUNT: torch.zeros(1)}}
        compiled(lambda state, data=data: ({"x": state["x"] + data}, {}), fallback=False)(state)
        assert torch.equal(state["x"], data)


@pytest.mark.parametrize("fails", ["at once", "when called"])
def test_without_a_compiler_the_step_runs_plain_with_one_warning(monkeypatch, fails):
    def broken(recorded, tensors, options):
        if fails == "at once":
            raise RuntimeError("no compiler here\nwith a long trace")

        def call(*tensors):
            raise RuntimeError("no compiler here\nwith a long trace")

        return call

    monkeypatch.setattr(torch._inductor, "compile", broken)
    step = toy_step()
    state, expected = step.initial_state(seed=0), step.initial_state(seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        advance = compiled(step)
        for _ in range(3):
            advance(state)
    messages = [str(w.message) for w in caught if "could not be compiled" in str(w.message)]
    assert len(messages) == 1 and "no compiler here" in messages[0] and "trace" not in messages[0]
    advance = plain(step)
    for _ in range(3):
        advance(expected)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), leaves(expected), strict=True))


def test_an_error_of_the_step_itself_is_not_swallowed(monkeypatch):
    """Falling back does not help where the plain step fails too: its error comes through."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def broken(state):
        raise KeyError("a bug")

    with pytest.warns(match="could not be compiled"), pytest.raises(KeyError, match="a bug"):
        compiled(broken)({"log": {}})
