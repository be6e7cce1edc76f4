"""Presets: every one loads and builds, says where it comes from, and comes back from its own config."""

import json
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebmbounds import experiments
from ebmbounds.data import TOYS
from ebmbounds.data.catalog import IMAGE_SETS
from ebmbounds.errors import BadInput
from ebmbounds.experiments import Experiment, Schedule, experiment, from_config
from ebmbounds.networks import NETWORKS
from ebmbounds.objectives import METHODS
from ebmbounds.settings import field_names
from ebmbounds.step import Optimizer

NAMES = experiments.names()


def data_shape(spec: Experiment) -> tuple[int, ...]:
    if spec.dataset in TOYS:
        return TOYS[spec.dataset].shape
    channels, side, _ = IMAGE_SETS[spec.dataset].shape
    side = spec.data.image_size or side
    return channels, side, side


# -- presets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_loads_builds_and_comes_back(name):
    spec = experiment(name)
    assert spec.name == name
    assert spec.source
    with torch.device("meta"):
        shape, latent_dim = data_shape(spec), spec.optimizer.latent_dim
        players = spec.pair.build(shape, latent_dim) | spec.objective.extra_players(shape, latent_dim)
    assert set(spec.objective.losses()) == set(players)
    z = torch.empty(4, spec.optimizer.latent_dim, device="meta")
    x = players["generator"](z)
    assert tuple(x.shape[1:]) == data_shape(spec)
    assert players["energy"](x).shape == (4, 1)
    assert from_config(json.loads(json.dumps(spec.config()))) == spec


@pytest.mark.parametrize("dataset", experiments.datasets())
def test_every_data_set_has_every_method_and_variant(dataset):
    for method, variant in product(METHODS, ("", "@paper", "@code", "@quick")):
        assert f"{dataset}/{method}{variant}" in NAMES


TABLE = {  # the appendix: beta2, learning rate, batch size, steps (MNIST is in epochs), latent dimension
    **dict.fromkeys(sorted(TOYS), (0.9, 2e-4, 200, 150_000, 2)),
    "mnist": (0.9, 2e-4, 64, None, 128),
    "cifar10": (0.999, 5e-5, 64, 200_000, 128),
    "animeface": (0.999, 5e-5, 64, 100_000, 128),
}


@pytest.mark.parametrize("dataset", TABLE)
def test_the_papers_settings_are_those_of_its_table(dataset):
    spec = experiment(f"{dataset}/ebm-bb@paper")
    beta2, rate, batch, steps, latent_dim = TABLE[dataset]
    o = spec.optimizer
    assert (o.beta1, o.beta2, o.lr_energy, o.lr_generator) == (0.0, beta2, rate, rate)
    assert (o.batch_size, o.latent_dim) == (batch, latent_dim)
    assert steps is None or spec.schedule.steps == steps
    # Section 3 and the training details: weight 1, zeta 1, 0.001 / z_dim or, in high dimension, 0.001 / |v|^2.
    assert (spec.objective.entropy_weight, spec.objective.margin) == (1.0, 1.0)
    assert spec.objective.penalty_weight == 0.001
    assert spec.objective.penalty_scale in (("latent_dim",) if latent_dim == 2 else ("latent_dim", "probe"))
    assert spec.objective.entropy_estimator == "s1"
    kind = {"mnist": "mnist-mlp", "cifar10": "dcgan", "animeface": "resnet"}.get(dataset, "toy-mlp")
    assert spec.network == kind


BASELINES = {  # their own settings, as gathered: rates of energy and generator, betas, energy steps, iterations
    "meg": (1e-4, 1e-4, 0.5, 0.9, 5, 100_000),
    "vera": (3e-5, 6e-5, 0.0, 0.9, 1, 200_000),
    "dcgan": (2e-4, 2e-4, 0.5, 0.999, 2, 200_000),
    "sngan": (2e-4, 2e-4, 0.0, 0.9, 5, 100_000),
}


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("variant", ["paper", "code"])
def test_baselines_on_images_have_their_own_settings(name, variant):
    spec = experiment(f"cifar10/{name}@{variant}")
    o = spec.optimizer
    found = (o.lr_energy, o.lr_generator, o.beta1, o.beta2, spec.objective.energy_steps, spec.schedule.steps)
    assert found == BASELINES[name]
    assert (o.batch_size, o.latent_dim, spec.network) == (64, 128, "dcgan")


@pytest.mark.parametrize("name", [name for name in NAMES if "/sngan" in name])
def test_sngan_has_its_norm_and_its_rates_end_with_the_run(name):
    spec = experiment(name)
    assert spec.pair.spectral_norm
    assert spec.optimizer.lr_decay_steps == spec.schedule.steps


def test_no_key_belongs_to_two_parts():
    """Keys are flat: each must have one home, with every network and method."""
    for network, method in product(NETWORKS.values(), METHODS.values()):
        kinds = (network, method, Optimizer, Schedule, experiments.DataSettings)
        keys = [key for kind in kinds for key in field_names(kind)] + ["dataset", "method", "variant", "network"]
        assert len(keys) == len(set(keys))


def test_the_promised_keys_exist():
    """design.md, names that stay put."""
    known = set(experiment("25gaussians/ebm-bb").config())
    promised = """steps batch_size latent_dim lr_energy lr_generator entropy_weight penalty_weight margin lobpcg_steps
    entropy_estimator precision deterministic"""
    assert set(promised.split()) <= known


# -- names and overrides ---------------------------------------------------------------------------------------------


def test_overrides_win_and_are_checked():
    spec = experiment("25gaussians/ebm-bb@paper", {"steps": "7", "penalty_weight": 0, "width": "12"})
    assert spec.schedule.steps == 7 and spec.objective.penalty_weight == 0 and spec.pair.width == 12
    assert experiment("25gaussians/ebm-bb").name == "25gaussians/ebm-bb"


def test_another_network_brings_its_own_keys():
    assert experiment("mnist/ebm-bb", {"network": "toy-mlp", "width": 9}).pair.width == 9
    with pytest.raises(BadInput, match="width"):
        experiment("mnist/ebm-bb", {"width": 9})


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("25gaussians", {}, "DATASET/METHOD"),
        ("25gausians/ebm-bb", {}, "'25gaussians'"),
        ("25gaussians/emb-bb", {}, "'ebm-bb'"),
        ("25gaussians/shared", {}, "unknown method 'shared'"),
        ("25gaussians/ebm-bb@qick", {}, "'quick'"),
        ("25gaussians/ebm-bb", {"lr_enrgy": "1"}, "'lr_energy'"),
        ("25gaussians/wgan-0gp", {"entropy_weight": "1"}, "entropy_weight"),
        ("25gaussians/ebm-bb", {"entropy_estimator": "svd"}, "s1, exact, hutchinson"),
        ("25gaussians/ebm-bb", {"network": "resnt"}, "'resnet'"),
        ("25gaussians/ebm-bb", {"batch_size": "0"}, "at least 1"),
        ("25gaussians/ebm-bb", {"source": "mine"}, "source"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(name, overrides, says):
    with pytest.raises(BadInput) as caught:
        experiment(name, overrides)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


KEYS = sorted(experiment("25gaussians/ebm-bb").config())
texts = st.text(max_size=12) | st.sampled_from(["0", "1", "-1", "1e-3", "nan", "1e400", "true", "none", "resnet", "s1"])


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), texts, max_size=3))
def test_any_overrides_give_an_experiment_or_a_refusal(overrides):
    try:
        spec = experiment("25gaussians/ebm-bb", overrides)
    except BadInput:
        return
    assert from_config(json.loads(json.dumps(spec.config()))) == spec


@settings(max_examples=300)
@given(
    st.text(max_size=20)
    | st.sampled_from(NAMES).flatmap(lambda n: st.integers(0, 20).map(lambda i: n[:i] + n[i + 1 :]))
)
def test_any_name_gives_an_experiment_or_a_refusal(name):
    try:
        assert isinstance(experiment(name), Experiment)
    except BadInput as error:
        assert str(error)


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300)
@given(st.sampled_from(KEYS), anything)
def test_a_config_with_any_value_gives_an_experiment_or_a_refusal(key, value):
    config = experiment("25gaussians/ebm-bb").config() | {key: value}
    try:
        assert isinstance(from_config(config), Experiment)
    except BadInput as error:
        assert str(error)


@settings(max_examples=100)
@given(anything)
def test_a_foreign_config_is_refused(config):
    with pytest.raises(BadInput):
        from_config(config)
