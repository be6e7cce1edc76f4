"""What every method must do, on every pair of networks; then what each one's losses are."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ebmbounds import bounds, spectra
from ebmbounds.data.toy import TOYS
from ebmbounds.errors import BadInput
from ebmbounds.execution import compiled, plain
from ebmbounds.networks import DCGAN, MNISTMLP, ResNet, ToyMLP
from ebmbounds.noise import Noise, noise
from ebmbounds.objectives import EBM0GP, EBMBB, METHODS, SNGAN, WGAN0GP, Objective, method
from ebmbounds.run import Run, flatten
from ebmbounds.settings import field_names
from ebmbounds.step import Optimizer, State, Step

PAIRS = {
    "toy-mlp": (ToyMLP(width=8), (2,)),
    "tiny toy-mlp": (ToyMLP(width=4, depth=1, batch_norm=False), (2,)),
    "toy-mlp without batch norm": (ToyMLP(width=8, depth=3, batch_norm=False, scaled_energy=True), (2,)),
    "mnist-mlp": (MNISTMLP(shrink=16), (1, 28, 28)),
    "dcgan": (DCGAN(channels=16), (3, 32, 32)),
    "resnet 32": (ResNet(channels=32), (1, 32, 32)),
    "resnet 64 with batch norm": (ResNet(channels=32, energy_batch_norm=True), (3, 64, 64)),
}


@dataclass(frozen=True)
class UniformData:
    shape: tuple[int, ...]

    def draw(self, source: Noise, n: int) -> Tensor:
        return 2 * source.uniform(n, *self.shape) - 1


def make_step(objective: Objective, pair="toy-mlp", batch_size=4, latent_dim=2, players=None, **optimizer) -> Step:
    networks, shape = PAIRS[pair]
    torch.manual_seed(0)
    players = players or dataclasses.replace(networks, spectral_norm=isinstance(objective, SNGAN)).build(
        shape, latent_dim
    )
    players |= objective.extra_players(shape, latent_dim)
    optimizer = Optimizer(batch_size=batch_size, latent_dim=latent_dim, **optimizer)
    return Step(objective, players, UniformData(shape), optimizer)


def game_of(step: Step, state: State):
    """The players at a state, with buffers of their own for train mode to update."""
    buffers = pytree.tree_map(torch.clone, state["buffers"])
    return step.game(state["parameters"], buffers, state["buffers"])


def tensors_of(tree: State) -> list[Tensor]:
    return [t for value in tree.values() for t in (tensors_of(value) if isinstance(value, dict) else [value])]


def equal(a: State, b: State) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors_of(a), tensors_of(b), strict=True))


# -- conformance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", METHODS)
def test_an_iteration_is_finite_on_every_pair(name, pair):
    step = make_step(method(name)(), pair)
    state = step.initial_state(seed=0)
    for _ in range(2):
        state, info = step(state)
        assert all(value.isfinite() for value in info.values()), info
        assert all(t.isfinite().all() for t in tensors_of(state))


TURNS = [(name, player) for name, kind in METHODS.items() for player in kind().losses()]


@pytest.mark.parametrize(("name", "player"), TURNS)
def test_a_turn_moves_its_player_alone(name, player):
    """Each loss by itself: with its turn alone, the other players' parameters and moments stay as they were."""
    objective = method(name)()

    class Alone(type(objective)):
        def losses(self):
            return {player: super().losses()[player]}

    step = make_step(objective)
    state = step.initial_state(seed=0)
    alone = make_step(Alone(**dataclasses.asdict(objective)))
    new, info = alone(state)
    assert {key for key in info if key.startswith("loss_")} == {f"loss_{player}"}
    for part in ("parameters", "second_moment"):
        for other in step.skeletons:
            assert equal(new[part][other], state[part][other]) == (other != player), (part, other)


@pytest.mark.parametrize("name", METHODS)
def test_diagnostics_are_detached_scalars(name):
    """Called outside a step, with parameters that ask for gradients: the loss has a graph, its diagnostics none."""
    objective = method(name)()
    step = make_step(objective)
    state = step.initial_state(seed=0)
    for t in tensors_of(state["parameters"]):
        t.requires_grad_()
    x = step.data.draw(noise(0)("data"), 4)
    for loss in objective.losses().values():
        value, info = loss(game_of(step, state), x, noise(0), objective.prepare(game_of(step, state), noise(0)))
        assert value.shape == () and value.requires_grad
        for name_of_figure, figure in info.items():
            assert figure.shape == () and not figure.requires_grad, name_of_figure


@pytest.mark.parametrize("name", METHODS)
def test_an_iteration_is_a_pure_function_of_the_state(name):
    step = make_step(method(name)())
    state = step.initial_state(seed=3)
    before = [t.clone() for t in tensors_of(state)]
    one, one_info = step(state)
    torch.manual_seed(99)  # nothing hangs on the global generator
    two, two_info = step(state)
    assert equal(one, two) and equal(one_info, two_info)
    assert all(torch.equal(x, y) for x, y in zip(tensors_of(state), before, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_and_the_step_decide(name):
    step = make_step(method(name)())
    state = step.initial_state(seed=3)
    first, _ = step(state)
    for change in ({"seed": torch.tensor(4)}, {"step": torch.tensor(1)}):
        other, _ = step(state | change)
        assert not equal(first["parameters"], other["parameters"])


@pytest.mark.parametrize("name", METHODS)
def test_energy_steps_are_turns(name):
    objective = method(name)(energy_steps=3)
    _, *others = objective.losses()
    assert objective.turns() == ["energy", "energy", "energy", *others]
    step = make_step(objective)
    new, _ = step(step.initial_state(seed=0))
    assert all(t.isfinite().all() for t in tensors_of(new))


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    """Bit for bit, with everything that a state can hold: both moments, an average, falling rates."""
    step = make_step(method(name)(), beta1=0.5, ema=0.9, lr_decay_steps=10)
    advance = plain(step)
    whole, state = step.initial_state(seed=1), step.initial_state(seed=1)
    for _ in range(4):
        advance(whole)
    for _ in range(2):
        advance(state)
    run = Run.create(tmp_path / "run", {})
    run.save(state)
    resumed = step.initial_state(seed=1)
    for key, tensor in flatten(run.load()[0]).items():
        flatten(resumed)[key].copy_(tensor)
    for _ in range(2):
        advance(resumed)
    assert equal(whole, resumed)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ebm-bb"])
def test_compiled_is_plain(name, double, monkeypatch):
    """The whole iteration is recorded as one graph, which gives what the plain one gives. Code is generated from such a
    graph for EBM-BB (test_step.py) and on a GPU (test_gpu.py): that takes a minute for each."""
    monkeypatch.setattr(torch._inductor, "compile", lambda recorded, tensors, options: recorded)
    step = make_step(method(name)(), "tiny toy-mlp")
    fast, slow = step.initial_state(seed=0), step.initial_state(seed=0)
    advance = compiled(step, fallback=False)
    for _ in range(3):
        advance(fast)
        plain(step)(slow)
    for a, b in zip(tensors_of(fast), tensors_of(slow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_an_unknown_method_is_named_with_the_closest():
    with pytest.raises(BadInput, match=r"'ebm-b'.*ebm-bb"):
        method("ebm-b")


# -- EBM-BB ----------------------------------------------------------------------------------------------------------


def energy_loss(objective: Objective, step: Step, state: State, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return objective.losses()["energy"](game_of(step, state), x, noise(5), None)


def test_without_a_penalty_the_energy_plays_eq_5_alone(double):
    objective = EBMBB(penalty_weight=0.0)
    step = make_step(objective, batch_size=16)
    state, x = step.initial_state(seed=0), torch.randn(16, 2)
    loss, _ = energy_loss(objective, step, state, x)
    game = game_of(step, state)
    z = game.latents(noise(5)("z"))
    assert torch.equal(loss, game.energy(x).mean() - game.energy(game.generator(z)).mean())


@pytest.mark.parametrize("scale", ["latent_dim", "probe", "one"])
@pytest.mark.parametrize("margin", [0.0, 1.0])
@pytest.mark.parametrize("estimator", ["s1", "exact", "hutchinson"])
def test_the_upper_bound_of_the_energy_is_eq_20(double, estimator, margin, scale):
    """Put together here from bounds and explicit Jacobians."""
    objective = EBMBB(penalty_weight=3.0, penalty_scale=scale, margin=margin, entropy_estimator=estimator)
    step = make_step(objective, batch_size=16)
    state, x = step.initial_state(seed=0), torch.randn(16, 2)
    loss, info = energy_loss(objective, step, state, x)

    game, source = game_of(step, state), noise(5)
    z, v = source("z").normal(16, 2), source("v").normal(16, 2)
    direction = spectra.lobpcg(game.generator.frozen, z, 2, v) if estimator == "s1" else v
    generated = game.generator(z)
    gradient = torch.func.grad(lambda x: game.energy(x).sum())(generated)
    J = spectra.jacobian(game.generator.frozen, z)
    volume = bounds.log_volume(game.generator.frozen, z, estimator, direction)
    score = bounds.latent_score(game.generator.frozen, z, estimator, direction)
    squares = ((torch.einsum("nD,nDd->nd", gradient, J) + score) * v).sum(1).square()
    divisor = {"latent_dim": torch.tensor(2.0), "probe": v.square().sum(1), "one": torch.tensor(1.0)}[scale]
    penalty = 3.0 * (squares / divisor).mean()
    contrast = game.energy(x).mean() - game.energy(generated).mean()
    assert penalty > margin
    torch.testing.assert_close(loss, contrast + penalty - margin)
    torch.testing.assert_close(info["penalty"], penalty.detach())
    torch.testing.assert_close(info["lower_bound"], (contrast + volume.mean() + bounds.base_entropy(2)).detach())
    holds = (squares * torch.exp(-volume)).mean() >= 1  # Eq. 14 with d = 2
    assert bool(info["eq14_holds"]) == bool(holds)


def test_a_tempered_energy_is_one_at_temperature_1_times_t(double):
    """E at temperature T is E/T at 1: of the squares of slopes T^2 as much, the same bound."""
    tempered, plain_one = EBMBB(entropy_weight=0.1, tempered=True, margin=0.0), EBMBB(entropy_weight=0.1, margin=0.0)
    step = make_step(tempered, batch_size=16)
    state, x = step.initial_state(seed=0), torch.randn(16, 2)
    _, info = energy_loss(tempered, step, state, x)
    last = [name for name in state["parameters"]["energy"]][-2:]  # the last layer is linear
    for name in last:
        state["parameters"]["energy"][name] = state["parameters"]["energy"][name] / 0.1
    _, scaled = energy_loss(plain_one, step, state, x)
    torch.testing.assert_close(info["energy_data"], 0.1 * scaled["energy_data"])
    torch.testing.assert_close(info["penalty"], 0.1**2 * scaled["penalty"])
    torch.testing.assert_close(info["lower_bound"], scaled["lower_bound"])
    assert info["eq14_holds"] == scaled["eq14_holds"]


def test_a_temperature_of_0_is_refused():
    with pytest.raises(BadInput, match=r"entropy_weight=0.0.*positive"):
        EBMBB(tempered=True, entropy_weight=0.0)


def test_slopes_in_all_directions_are_added_to_the_penalty(double):
    along, everywhere = EBMBB(margin=0.0), EBMBB(margin=0.0, slope_weight=2.0)
    step = make_step(along, batch_size=16)
    state, x = step.initial_state(seed=0), torch.randn(16, 2)
    loss, info = energy_loss(along, step, state, x)
    more, details = energy_loss(everywhere, step, state, x)
    game = game_of(step, state)
    generated = game.generator(noise(5)("z").normal(16, 2))
    slopes = torch.func.grad(lambda x: game.energy(x).sum())(generated)
    torch.testing.assert_close(more - loss, 2.0 * slopes.square().sum(1).mean())
    torch.testing.assert_close(details["penalty"] - info["penalty"], 2.0 * slopes.square().sum(1).mean().detach())


def test_below_the_margin_the_penalty_has_no_say(double):
    objective = EBMBB(penalty_weight=1e-9, margin=1.0)
    step = make_step(objective, batch_size=16)
    state, x = step.initial_state(seed=0), torch.randn(16, 2)
    without = energy_loss(EBMBB(penalty_weight=0.0), step, state, x)[0]
    assert torch.equal(energy_loss(objective, step, state, x)[0], without)


@pytest.mark.parametrize("estimator", ["s1", "exact", "hutchinson"])
@pytest.mark.parametrize("kind", [EBMBB, EBM0GP])
def test_the_generator_minimises_the_negative_of_the_lower_bound(double, kind, estimator):
    objective = kind(entropy_weight=0.7, entropy_estimator=estimator)
    step = make_step(objective, batch_size=16)
    state = step.initial_state(seed=0)
    game, source = game_of(step, state), noise(5)
    loss, info = objective.losses()["generator"](game, torch.randn(16, 2), source, None)
    z, v = source("z").normal(16, 2), source("v").normal(16, 2)
    direction = spectra.lobpcg(game.generator.frozen, z, objective.lobpcg_steps, v) if estimator == "s1" else v
    volume = bounds.log_volume(game.generator.frozen, z, estimator, direction).mean()
    energy = game.energy(game.generator(source("generated").normal(16, 2))).mean()
    torch.testing.assert_close(loss, energy - 0.7 * volume)
    torch.testing.assert_close(info["entropy"], (volume + 1 + math.log(2 * math.pi)).detach())


@pytest.mark.parametrize("estimator", ["s1", "exact", "hutchinson"])
def test_entropy_alone_spreads_the_generator(estimator):
    """A constant energy leaves H[p_g] to be maximised: the exact entropy must grow under each estimator."""
    energy = nn.Sequential(nn.Flatten(), nn.Linear(2, 1))
    nn.init.zeros_(energy[1].weight)
    generator = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    objective = EBMBB(penalty_weight=0.0, entropy_estimator=estimator)
    step = make_step(
        objective, players={"energy": energy, "generator": generator}, batch_size=64, lr_generator=1e-2, lr_energy=1e-12
    )
    state = step.initial_state(seed=0)
    z = noise(7).normal(200, 2)

    def entropy() -> float:
        return float(bounds.entropy(game_of(step, state).generator.frozen, z))

    before = entropy()
    for _ in range(20):
        state, _ = step(state)
    assert entropy() > before + 0.5


def test_reused_entropy_is_one_estimate_for_both_players(monkeypatch):
    calls = []
    lobpcg = spectra.lobpcg
    monkeypatch.setattr(spectra, "lobpcg", lambda *args: calls.append(1) or lobpcg(*args))
    for reuse, expected in ((True, 1), (False, 2)):
        step = make_step(EBMBB(reuse_entropy=reuse))
        state = step.initial_state(seed=0)
        calls.clear()
        step(state)
        assert len(calls) == expected


@pytest.mark.parametrize("kind", [EBMBB, EBM0GP])
def test_a_share_of_a_batch_has_the_entropy_and_the_slopes_of_a_smaller_one(double, kind):
    """Its latents are the first of the batch's, without batch norm no sample asks for the others, and the contrast is
    still the whole batch's."""
    at_samples = {"margin": 0.0, "slope_weight": 2.0} if kind is EBMBB else {}
    taken_there = {"entropy", "s1", "penalty"} if kind is EBMBB else {"entropy"}
    share, few, whole = (
        make_step(kind(entropy_share=share, **at_samples), "tiny toy-mlp", batch_size)
        for share, batch_size in ((0.25, 16), (1.0, 4), (1.0, 16))
    )
    state, x = share.initial_state(seed=0), torch.randn(16, 2)
    for player in share.objective.losses():
        (loss, info), (_, info_of_few), (loss_of_whole, info_of_whole) = (
            step.objective.losses()[player](game_of(step, state), x[: step.rows], noise(5), None)
            for step in (share, few, whole)
        )
        for name in taken_there & info.keys():
            torch.testing.assert_close(info[name], info_of_few[name])
            assert info[name] != info_of_whole[name]
        for name, sign in (("entropy", 1), ("penalty", -1)):
            if name in info:
                loss, loss_of_whole = loss + sign * info[name], loss_of_whole + sign * info_of_whole[name]
        torch.testing.assert_close(loss, loss_of_whole)


# -- the gradient penalties of EBM-0GP and WGAN-0GP ------------------------------------------------------------------


class Bowl(nn.Module):
    """E(x) = k |x|^2 / 2, whose gradient is k x."""

    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.tensor(k))

    def forward(self, x: Tensor) -> Tensor:
        return self.k * x.flatten(1).square().sum(1, keepdim=True) / 2


@pytest.mark.parametrize("shape", [(2,), (3, 32, 32)])
def test_the_penalties_on_a_quadratic_energy(double, shape):
    """EBM-0GP: weight * k^2 mean|x|^2 on data; WGAN-0GP: the same at random points between data and samples."""
    pair = "toy-mlp" if len(shape) == 1 else "dcgan"
    players = {"energy": Bowl(1.5), "generator": PAIRS[pair][0].build(shape, 2)["generator"]}
    source, x = noise(5), noise(6).normal(16, *shape)
    for objective in (EBM0GP(penalty_weight=0.3), WGAN0GP(penalty_weight=0.3)):
        step = make_step(objective, pair, batch_size=16, players=players)
        game = game_of(step, step.initial_state(seed=0))
        loss, info = objective.losses()["energy"](game, x, source, None)
        generated = game.generator(source("z").normal(16, 2))
        at = x
        if isinstance(objective, WGAN0GP):
            t = source("t").uniform(16, 1)
            at = ((1 - t) * x.flatten(1) + t * generated.flatten(1)).reshape(x.shape)
        penalty = 0.3 * 1.5**2 * at.flatten(1).square().sum(1).mean()
        contrast = 1.5 / 2 * (x.flatten(1).square().sum(1).mean() - generated.flatten(1).square().sum(1).mean())
        torch.testing.assert_close(info["penalty"], penalty.detach())
        torch.testing.assert_close(loss, contrast + penalty)


@pytest.mark.parametrize("pair", ["toy-mlp", "dcgan", "resnet 64 with batch norm"])
def test_the_squared_gradient_and_its_derivative(double, pair):
    settings, shape = PAIRS[pair]
    torch.manual_seed(0)
    module = settings.build(shape, 2)["energy"].eval()
    parameters, x = dict(module.named_parameters()), noise(6).normal(4, *shape)

    def straight(energy: bounds.Energy, x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: energy(x).sum())(x).flatten(1).square().sum(1)

    def derivatives(square) -> tuple[Tensor, tuple]:
        def total(parameters, x):
            each = square(lambda x: torch.func.functional_call(module, parameters, (x,)), x)
            return each.sum(), each

        return torch.func.grad(total, argnums=(0, 1), has_aux=True)(parameters, x)

    torch.testing.assert_close(derivatives(bounds.squared_gradient), derivatives(straight))


def test_wgan_generators_see_the_energy_alone(double):
    objective = WGAN0GP()
    step = make_step(objective, batch_size=16)
    game = game_of(step, step.initial_state(seed=0))
    loss, info = objective.losses()["generator"](game, torch.randn(16, 2), noise(5), None)
    torch.testing.assert_close(loss, game.energy(game.generator(noise(5)("z").normal(16, 2))).mean())
    assert info == {}


# -- they learn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_energy_learns_to_tell_data_from_samples(name):
    """A few steps of the energy lower its own loss on fresh batches."""
    kind = method(name)
    objective = kind(penalty_weight=1e-3) if "penalty_weight" in field_names(kind) else kind()
    torch.manual_seed(0)
    players = ToyMLP(width=16, batch_norm=False).build((2,), 2) | objective.extra_players((2,), 2)
    optimizer = Optimizer(lr_energy=1e-2, lr_generator=1e-12, batch_size=64)
    step = Step(objective, players, TOYS["8gaussians"], optimizer)
    state = step.initial_state(seed=0)
    losses = []
    for _ in range(30):
        state, info = step(state)
        losses.append(float(info["loss_energy"]))
    assert sum(losses[-5:]) < sum(losses[:5])
