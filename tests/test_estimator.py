"""EnergyModel: scikit-learn's conformance, a density that integrates to one, files, and clear errors."""

import json
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from ebmbounds import BadInput, EnergyModel

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@parametrize_with_checks([EnergyModel(max_steps=20)])
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


def two_blobs(n: int, seed: int) -> np.ndarray:
    """Far from the origin and of unequal scales, so that whitening has work to do."""
    random = np.random.default_rng(seed)
    centre = random.integers(2, size=(n, 1)) * np.array([[40.0, 0.3]])
    return 100 + centre + random.normal(size=(n, 2)) * [4.0, 0.1]


@pytest.fixture(scope="module")
def fitted() -> EnergyModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return EnergyModel(max_steps=200, learning_rate=3e-3, random_state=0).fit(two_blobs(3000, 0))


def test_the_density_integrates_to_one(fitted):
    """Over a box that holds all of it, within the error of log Z."""
    x, y = np.linspace(40, 200, 400), np.linspace(98, 103, 400)
    grid = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    mass = np.exp(fitted.score_samples(grid)).sum() * (x[1] - x[0]) * (y[1] - y[0])
    assert np.log(mass) == pytest.approx(0, abs=5 * fitted.log_partition_.standard_error + 0.005)


def test_it_beats_a_gaussian_and_is_near_the_truth(fitted):
    test = two_blobs(5000, 1)
    gaussian = 0.5 * (np.log(np.linalg.det(np.cov(test.T))) + 2 * np.log(2 * np.pi) + 2)
    truth = np.log(2) + np.log(4.0 * 0.1) + np.log(2 * np.pi) + 1  # the blobs hardly overlap
    assert truth - 0.02 < -fitted.score(test) < truth + 0.15 < gaussian
    assert np.array_equal(fitted.anomaly_scores(test), -fitted.score_samples(test))


def test_samples_are_those_of_the_energy(fitted):
    samples = fitted.sample(4000, random_state=0)
    data = two_blobs(4000, 1)
    assert samples.shape == data.shape and samples.dtype == np.float64
    assert np.allclose(samples.mean(0), data.mean(0), atol=0.1 * data.std(0))
    assert np.allclose(np.cov(samples.T), np.cov(data.T), rtol=0.15, atol=0.15 * np.prod(data.std(0)))
    assert np.array_equal(samples, fitted.sample(4000, random_state=0))


def test_bounds_enclose_the_estimate(fitted):
    test = two_blobs(2000, 1)
    found = fitted.bounds(test)
    assert found.lower - 0.02 <= found.estimate <= found.upper
    assert found.estimate == pytest.approx(-fitted.score(test))
    assert found.estimate - found.lower < 0.5


def test_saved_and_loaded_is_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = EnergyModel.load(tmp_path / "model")
    test = two_blobs(100, 1)
    assert np.array_equal(loaded.score_samples(test), fitted.score_samples(test))
    assert np.array_equal(loaded.sample(10, random_state=0), fitted.sample(10, random_state=0))
    assert loaded.log_partition_ == fitted.log_partition_ and loaded.n_iter_ == fitted.n_iter_
    assert not list(tmp_path.rglob("*.p*k*l*"))
    with pytest.raises(BadInput, match="exists"):
        fitted.save(tmp_path / "model")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"dataset": "moons"}')
    with pytest.raises(BadInput, match="holds no EnergyModel"):
        EnergyModel.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [("settings", {"steps": 3}), ("settings", []), ("fitted", {}), ("fitted", None)],
)
def test_a_damaged_config_is_refused_in_a_sentence(fitted, tmp_path, damage):
    fitted.save(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | dict([damage])))
    with pytest.raises(BadInput, match="no whole EnergyModel"):
        EnergyModel.load(tmp_path / "model")


def test_shaped_rows(double):
    torch.set_default_dtype(torch.float32)
    images = np.random.default_rng(0).normal(size=(60, 2, 3))
    model = EnergyModel(max_steps=10, random_state=0).fit(images)
    assert model.score_samples(images).shape == (60,) and model.sample(5).shape == (5, 2, 3)
    with pytest.raises(BadInput, match="shape"):
        model.score_samples(images[:, :, :2])


def column(values) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    return np.column_stack((rows, values(rows)))


@pytest.mark.parametrize(
    "X, message",
    [
        (column(lambda rows: np.full(50, 3.0)), "column 2 is constant"),
        (column(lambda rows: 2 * rows[:, 0] - 1), "columns 0 and 2 are the same up to scale"),
        (column(lambda rows: np.where(rows[:, 0] > 0, np.nan, 1)), "NaN"),
        (column(lambda rows: np.where(rows[:, 0] > 0, np.inf, 1)), "infinity"),
        (np.random.default_rng(0).normal(size=(9, 2)), "minimum of 10"),
        (np.random.default_rng(0).normal(size=(50, 1)), "minimum of 2"),
        (np.full((50, 2), "a"), "convert string|could not convert"),
    ],
)
def test_rows_without_a_density_are_refused(X, message):
    with pytest.raises(ValueError, match=message):
        EnergyModel(max_steps=10).fit(X)


def test_discrete_columns_are_pointed_out():
    X = column(lambda rows: np.sign(rows[:, 0]))
    with pytest.warns(UserWarning, match="dequantise"):
        EnergyModel(max_steps=10).fit(X)


def test_too_few_steps_are_pointed_out():
    with pytest.warns(ConvergenceWarning, match="max_steps=10"):
        EnergyModel(max_steps=10, random_state=0).fit(two_blobs(200, 0))


def test_an_unfitted_model_says_so():
    with pytest.raises(NotFittedError):
        EnergyModel().sample(3)
