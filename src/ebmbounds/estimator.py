"""`EnergyModel`: a density in nats by scikit-learn's manners, from an energy trained on multi-sample bounds."""

import dataclasses
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ebmbounds import bounds, refine
from ebmbounds.data.resident import ResidentRows
from ebmbounds.data.whitening import Whitening
from ebmbounds.errors import BadInput
from ebmbounds.execution import plain
from ebmbounds.model import Model
from ebmbounds.networks.flow import SplineFlow
from ebmbounds.objectives.ebm_bb import EBMBB
from ebmbounds.partition import LogPartition, from_log_weights
from ebmbounds.run import Run
from ebmbounds.step import Optimizer, State, Step
from ebmbounds.trainer import Diverged, Trainer

LEAST_ROWS, MOST_HELD_OUT = 10, 10_000
PARTITION_SAMPLES = 20_000
VALIDATION_SAMPLES = 4_000
"""Samples of the generator for log Z at the end, and at each look at the validation part."""


FLAT = 1e3
"""The width of a parabola that is none."""
QUADRATURE_DIMENSIONS = 3
"""Up to here samples see every corner, and a free energy learns from them; beyond, it corrects the generator."""


@dataclasses.dataclass(frozen=True)
class Correction(EBMBB):
    """The multi-sample game for p(x) proportional to p_g(x) exp(-E(x)): the energy learns what the generator lacks."""

    def model_energy(self, energy: Tensor, log_generator: Tensor) -> Tensor:
        return energy - log_generator


class Bounds(NamedTuple):
    """Of the negative log-likelihood in nats: Eq. 4, the estimate by importance sampling, and Eq. 13 with measured
    constants, all with exact entropy and d = D."""

    lower: float
    estimate: float
    upper: float


class EnergyModel(DensityMixin, BaseEstimator):
    """A density of rows of numbers (n, D), or of anything that flattens to such, D from 2 to about 64.

    Rows are whitened. The energy plays the multi-sample game of EBM-BB with an invertible generator, on all rows but a
    validation part, which decides when to stop and, at the end, how much weight the energy and the generator get:
    log p(x) = -a E(x) + b log p_g(x) - log Z. Up to three dimensions the game is played for b = 0, and the energy does
    the work. Beyond, where samples of the generator say little about an energy that is far from it, it is played for
    b = 1: the generator learns from the rows, and the energy corrects its density.

    Fitted: `log_partition_` (log Z with standard error and effective samples), `weights_` (a and b), `n_iter_`,
    `converged_`, `validation_nll_` (before the weights are set, one entry a look).
    """

    def __init__(
        self,
        max_steps: int = 2000,
        *,
        batch_size: int = 500,
        importance_samples: int = 1000,
        learning_rate: float = 2e-3,
        validation_fraction: float = 0.1,
        patience: int = 12,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.importance_samples = importance_samples
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> "EnergyModel":
        X = np.asarray(X) if not hasattr(X, "shape") else X
        self.row_shape_ = tuple(X.shape[1:]) if len(X.shape) > 2 else None
        X = validate_data(self, self._flat(X), dtype=np.float64, ensure_min_samples=LEAST_ROWS, ensure_min_features=2)
        random = check_random_state(self.random_state)
        self._seed = int(random.randint(2**31 - 1))
        held_out = min(max(round(self.validation_fraction * len(X)), 1), MOST_HELD_OUT)
        order = random.permutation(len(X))
        training, validation = X[order[held_out:]], X[order[:held_out]]
        self.whitening_ = Whitening.fit(training)
        rows, held = (torch.tensor(self.whitening_.apply(part)) for part in (training, validation))
        step = self._step(ResidentRows(rows.float()))
        state, self.n_iter_, self.converged_ = self._train(step, held)
        self._model = Model.of(step, state).double()
        self._calibrate(held)
        return self

    def _step(self, data: ResidentRows) -> Step:
        D = data.shape[0]
        game, parabola, data_share, defensive = (
            (EBMBB, 1.5, 0.5, 0.2) if D <= QUADRATURE_DIMENSIONS else (Correction, FLAT, 1.0, 0.05)
        )
        objective = game(
            entropy_estimator="multi-sample",
            importance_samples=self.importance_samples,
            penalty_weight=0.0,
            data_share=data_share,
            defensive_share=defensive,
        )
        # Sharp features are affordable in the plane; in many dimensions they would fit single rows.
        pair = SplineFlow(fourier_frequency=float(np.clip(16 / D, 1, 8)), parabola_scale=parabola)
        optimizer = Optimizer(
            lr_energy=self.learning_rate,
            lr_generator=self.learning_rate,
            lr_decay_steps=self.max_steps,
            beta1=0.9,
            beta2=0.99,
            ema=0.99,
            batch_size=min(self.batch_size, len(data.rows)),
            latent_dim=D,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return Step(objective, pair.build((D,), D), data, optimizer)

    @property
    def _played_weights(self) -> tuple[float, float]:
        """a and b as the game is played."""
        return (1.0, 0.0) if self.n_features_in_ <= QUADRATURE_DIMENSIONS else (1.0, 1.0)

    def _train(self, step: Step, held: Tensor) -> tuple[State, int, bool]:
        """The state with the best validation figure, how long training took, and whether more would hardly help."""
        state = step.initial_state(self._seed)
        self.validation_nll_: list[float] = []

        def watch(state: State) -> dict[str, float]:
            model = Model.of(step, state)
            nll, _ = Weighing(model, held.float(), VALIDATION_SAMPLES, seed=1).nll(self._played_weights)
            self.validation_nll_.append(nll - self.whitening_.log_det)
            return {"nll": nll}

        every = max(self.max_steps // 80, 10)
        with tempfile.TemporaryDirectory() as folder:
            run = Run.create(Path(folder) / "fit", {})
            trainer = Trainer(
                run, plain(step), self.max_steps, every, every, "nll", watch, self.verbose, patience=self.patience
            )
            try:
                if trainer.train(state) is not None:
                    raise KeyboardInterrupt
            except Diverged as error:
                warnings.warn(f"{error}", ConvergenceWarning, stacklevel=3)
            best, _ = run.load("best")
        steps = int(state["step"])
        recent = self.validation_nll_[-self.patience :]
        converged = steps < self.max_steps or (len(recent) == self.patience and recent[0] - min(recent) < 0.05)
        if not converged:
            warnings.warn(
                f"EnergyModel has not converged in max_steps={self.max_steps}: the validation part still improves; "
                "raise max_steps.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return best, steps, converged

    def _calibrate(self, held: Tensor) -> None:
        """Both weights and log Z by maximum likelihood on the validation part: a convex problem, as in any exponential
        family, here with two statistics."""
        weighing = Weighing(self._model, held, PARTITION_SAMPLES, self._seed)
        # Two numbers from a hundred rows are safe; from fewer they would be the rows' noise.
        found = weighing.best(self._played_weights) if len(held) >= 100 else self._played_weights
        self.weights_ = found
        self.log_partition_: LogPartition = weighing.nll(found)[1]
        if self.log_partition_.effective_samples < 100:
            warnings.warn(
                f"log Z rests on {self.log_partition_.effective_samples:.0f} effective samples: scores are right up to "
                "a constant that is uncertain.",
                ConvergenceWarning,
                stacklevel=3,
            )

    # -- the density -------------------------------------------------------------------------------------------------

    def energy(self, X: Any) -> np.ndarray:
        """a E(x) - b log p_g(x), (n,): -log p(x) up to the constant `log_partition_` and the whitening's."""
        with torch.no_grad():
            return torch.cat([self._energy(part) for part in self._whitened(X).split(1000)]).numpy()

    def _energy(self, u: Tensor) -> Tensor:
        """The same at whitened rows."""
        a, b = self.weights_
        energy = a * self._model.energy(u)
        return energy - b * self._model.generator_log_density(u) if b else energy

    def score_samples(self, X: Any) -> np.ndarray:
        """log p(x) in nats, (n,)."""
        return -self.energy(X) - self.log_partition_.value + self.whitening_.log_det

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log p(x) in nats."""
        return float(self.score_samples(X).mean())

    def anomaly_scores(self, X: Any) -> np.ndarray:
        """-log p(x), (n,): larger is stranger."""
        return -self.score_samples(X)

    def sample(self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> np.ndarray:
        """Rows of the model: the generator's, resampled with weights exp(-E(x)) / p_g(x)."""
        check_is_fitted(self)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        U = refine.importance_resampled(self._model, n_samples, seed, energy=self._energy)
        X = self.whitening_.invert(U.numpy())
        return X.reshape(n_samples, *self.row_shape_) if self.row_shape_ else X

    def bounds(self, X: Any, samples: int = 2000) -> Bounds:
        """Lower bound, estimate and upper bound of the negative log-likelihood of X."""
        energies = torch.tensor(self.energy(X))
        x, log_p = self._model.sample_with_density(samples, self._seed + 1)

        def log_f(x: Tensor) -> Tensor:
            return self._energy(x) + self._model.generator_log_density(x)

        gap = torch.func.grad(lambda x: log_f(x).sum())(x).square().sum(1)
        lower = bounds.lower_bound(energies, self._energy(x).detach(), -log_p.mean())
        upper = bounds.upper_bound(lower, gap, float(torch.cdist(x, x).max()), float(gap.max() - gap.min()), root=True)
        shift = self.whitening_.log_det
        estimate = float(energies.mean()) + self.log_partition_.value
        return Bounds(float(lower) - shift, estimate - shift, float(upper) - shift)

    def _whitened(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, self._flat(X), dtype=np.float64, reset=False)
        return torch.tensor(self.whitening_.apply(X))

    def _flat(self, X: Any) -> Any:
        shape = self.row_shape_
        if shape is None:
            return X
        X = np.asarray(X)
        if X.shape[1:] != shape:
            raise BadInput(f"the model was fitted to arrays of shape (n, {', '.join(map(str, shape))}), not {X.shape}.")
        return X.reshape(len(X), -1)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """A new folder: config.json, and the tensors as safetensors. No pickles."""
        check_is_fitted(self)
        settings = self.get_params() | {"random_state": None}
        fitted = {
            "seed": self._seed,
            "weights": self.weights_,
            "log_partition": dataclasses.asdict(self.log_partition_),
            "n_features_in": self.n_features_in_,
            "row_shape": self.row_shape_,
            "n_iter": self.n_iter_,
            "converged": self.converged_,
            "validation_nll": self.validation_nll_,
        }
        run = Run.create(path, {"estimator": type(self).__name__, "settings": settings, "fitted": fitted})
        whitening = {name: torch.tensor(value) for name, value in dataclasses.asdict(self.whitening_).items()}
        run.save({"model": self._model.tables(), "whitening": whitening})

    @classmethod
    def load(cls, path: Path | str) -> "EnergyModel":
        run = Run.open(path)
        config = run.config
        if not isinstance(config, dict) or config.get("estimator") != cls.__name__:
            raise BadInput(f"{run.path} holds no {cls.__name__}: name a folder that its `save` made.")
        state, _ = run.load()
        try:
            return cls._restored(config["settings"], config["fitted"], state)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"{run.path} is no whole {cls.__name__} ({error!r}): save it again.") from None

    @classmethod
    def _restored(cls, settings: dict[str, Any], fitted: dict[str, Any], state: State) -> "EnergyModel":
        model = cls(**settings)
        model._seed, model.weights_ = fitted["seed"], tuple(fitted["weights"])
        model.log_partition_ = LogPartition(**fitted["log_partition"])
        model.n_features_in_, model.n_iter_ = fitted["n_features_in"], fitted["n_iter"]
        model.row_shape_ = tuple(fitted["row_shape"]) if fitted["row_shape"] else None
        model.converged_, model.validation_nll_ = fitted["converged"], fitted["validation_nll"]
        model.whitening_ = Whitening(**{name: t.numpy() for name, t in state["whitening"].items()})
        step = model._step(ResidentRows(torch.zeros(1, model.n_features_in_)))
        model._model = Model.of(step, {**state["model"], "step": torch.tensor(model.n_iter_)})
        return model


class Weighing:
    """The negative log-likelihood of rows under exp(-a E(x)) p_g(x)^b / Z, for any weights (a, b)."""

    def __init__(self, model: Model, rows: Tensor, samples: int, seed: int) -> None:
        with torch.no_grad():
            x, self.log_generator = (t.double() for t in model.sample_with_density(samples, seed))
            self.energies = model.energies(x.to(rows.dtype)).double()
            log_generator = torch.cat([model.generator_log_density(part) for part in rows.split(1000)])
            self.means = np.array([float(model.energies(rows).double().mean()), -float(log_generator.double().mean())])

    def nll(self, weights: tuple[float, float]) -> tuple[float, LogPartition]:
        a, b = map(float, weights)
        log_Z = from_log_weights(-a * self.energies + (b - 1) * self.log_generator)
        return float(np.array([a, b]) @ self.means) + log_Z.value, log_Z

    def best(self, start: tuple[float, float]) -> tuple[float, float]:
        a, b = minimize(lambda weights: self.nll(weights)[0], np.array(start), bounds=[(0, 2), (0, 1)]).x
        return float(a), float(b)
