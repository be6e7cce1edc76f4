"""EnergyModel beside other densities, in nats, on the same rows and the same time: the tables of docs/density.md.

    python benchmarks/density.py moons wine chain-20 --steps 500 --seeds 0 1 --json density.json

EnergyModel is fitted first, with no settings but `--steps`. A neural spline flow (zuko) then trains for as many CPU
seconds; a kernel density estimate chooses its bandwidth, and a Gaussian mixture its components, in no more than that.
All get the same whitened rows and one thread. Isolation Forest has no density and only ranks anomalies.

Anomalies: the rows of one class, which is left out of the fit, or, without classes, test rows whose columns are
permuted one by one. AUROC is theirs against the test rows, by -log p.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import ShuffleSplit, cross_val_score, train_test_split
from sklearn.neighbors import KernelDensity

from ebmbounds import EnergyModel
from ebmbounds.data.toy import TOYS, Gaussians
from ebmbounds.data.whitening import Whitening
from ebmbounds.metrics.toy import good_samples, modes_found
from ebmbounds.noise import noise

REAL = ("wine", "breast-cancer", "diabetes", "digits")
KNOWN = ("mixture-10", "mixture-50", "chain-10", "chain-20", "chain-50")
ANOMALOUS = {"wine": 2, "breast-cancer": 0, "digits": 9}
"""The class left out: the smallest of wine, malignant tumours, nines."""
BANDWIDTHS = np.geomspace(1.5, 0.005, 16)
COMPONENTS = (1, 2, 3, 5, 8, 12, 18, 25, 35, 50)


@dataclass(frozen=True)
class Rows:
    train: np.ndarray
    test: np.ndarray
    anomalies: np.ndarray
    entropy: float | None
    """-E log p of the test rows under the true density (of toy data its entropy), where that is known."""


def rows(name: str, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    if name in TOYS:
        toy = TOYS[name]
        X = toy.draw(noise(seed), 20_000).double().numpy()
        return Rows(X[:10_000], X[10_000:], shuffled(X[10_000:], random), toy.entropy())
    if name in KNOWN:
        kind, D = name.split("-")
        X, log_p = GENERATED[kind](10_000, int(D), random)
        return Rows(X[:5000], X[5000:], shuffled(X[5000:], random), -float(log_p[5000:].mean()))
    load = getattr(datasets, f"load_{name.replace('-', '_')}")
    X, y = load(return_X_y=True, **({"scaled": False} if name == "diabetes" else {}))
    X = dequantised(X, random)
    if name not in ANOMALOUS:
        train, test = train_test_split(X, test_size=0.3, random_state=seed)
        return Rows(train, test, shuffled(test, random), None)
    strange = y == ANOMALOUS[name]
    train, test = train_test_split(X[~strange], test_size=0.3, random_state=seed)
    return Rows(train, test, X[strange], None)


def dequantised(X: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """With uniform noise as wide as the smallest step of each column, so that every column has a density."""
    steps = [np.diff(np.unique(column)).min(initial=np.inf) for column in X.T]
    return X + random.uniform(size=X.shape) * [step if np.isfinite(step) else 1.0 for step in steps]


def shuffled(X: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Every column as before, but independent of the others."""
    return np.column_stack([random.permutation(column) for column in X.T])


def mixture(n: int, D: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Five equal Gaussians with random centres, and scales from 0.3 to 1 along random axes."""
    centres = 1.5 * random.normal(size=(5, D))
    axes = np.linalg.qr(random.normal(size=(5, D, D)))[0] * random.uniform(0.3, 1, size=(5, 1, D))
    which = random.integers(5, size=n)
    X = centres[which] + np.einsum("nij,nj->ni", axes[which], random.normal(size=(n, D)))
    Z = np.linalg.solve(axes[:, None], (X - centres[:, None])[..., None])[..., 0]
    log_p = -0.5 * (Z**2).sum(-1) - np.log(np.abs(np.linalg.det(axes)))[:, None] - D / 2 * np.log(2 * np.pi)
    return X, np.logaddexp.reduce(log_p, 0) - np.log(5)


def chain(n: int, D: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """x_1 normal, x_i = 1.5 sin(2 x_(i-1)) + 0.4 times a normal number: curved, and far from any Gaussian."""
    E = random.normal(size=(n, D)) * np.array([1.0, *[0.4] * (D - 1)])
    X = E.copy()
    for before, i in pairwise(range(D)):
        X[:, i] += 1.5 * np.sin(2 * X[:, before])
    log_p = -0.5 * (E[:, 0] ** 2 + (E[:, 1:] ** 2).sum(1) / 0.16) - (D - 1) * np.log(0.4) - D / 2 * np.log(2 * np.pi)
    return X, log_p


GENERATED: dict[str, Callable[[int, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]] = {
    "mixture": mixture,
    "chain": chain,
}


class Density(Protocol):
    def score_samples(self, X: np.ndarray) -> np.ndarray: ...


class NeuralSplineFlow:
    """zuko's NSF, 4 transforms of 16 bins, by Adam for so many CPU seconds; the best state on a tenth of the rows."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds, self.seed = seconds, seed

    def fit(self, X: np.ndarray) -> "NeuralSplineFlow":
        import zuko

        torch.manual_seed(self.seed)
        rows = torch.tensor(X, dtype=torch.float32)[torch.randperm(len(X))]
        held, rows = rows[: len(X) // 10], rows[len(X) // 10 :]
        self.flow = zuko.flows.NSF(X.shape[1], transforms=4, bins=16, hidden_features=(64, 64))
        adam = torch.optim.Adam(self.flow.parameters(), lr=2e-3)
        start, best, step = time.process_time(), float("inf"), 0
        state = self.flow.state_dict()
        while (spent := (time.process_time() - start) / self.seconds) < 1:
            adam.param_groups[0]["lr"] = 2e-3 * (1 - spent)
            adam.zero_grad()
            (-self.flow().log_prob(rows[torch.randint(len(rows), (500,))]).mean()).backward()
            adam.step()
            step += 1
            if step % 25 == 0:
                with torch.no_grad():
                    nll = -float(self.flow().log_prob(held).mean())
                if nll < best:
                    best, state = nll, {name: t.clone() for name, t in self.flow.state_dict().items()}
        self.flow.load_state_dict(state)
        return self

    @torch.no_grad()
    def score_samples(self, X: np.ndarray) -> np.ndarray:
        return self.flow().log_prob(torch.tensor(X, dtype=torch.float32)).double().numpy()


def kernels(X: np.ndarray, seconds: float, seed: int) -> Density:
    """Bandwidth by three random splits, from wide to narrow, until it gets worse or the time is over."""
    splits = ShuffleSplit(3, test_size=min(len(X) // 5, 1000), random_state=seed)
    candidates = (KernelDensity(bandwidth=h, rtol=1e-4) for h in BANDWIDTHS)
    scored = ((-cross_val_score(model, X, cv=splits).mean(), model) for model in candidates)
    return first_minimum(scored, seconds).fit(X)


def gaussians(X: np.ndarray, seconds: float, seed: int) -> Density:
    """Components by BIC, from few to many."""
    fits = (GaussianMixture(k, random_state=seed, reg_covar=1e-5).fit(X) for k in COMPONENTS if k < len(X) / 5)
    return first_minimum(((model.bic(X), model) for model in fits), seconds)


def first_minimum(scored: Iterator, seconds: float):
    """The model with the least loss, of those that the time allows; two losses above it end the search."""
    start, (least, best), worse = time.process_time(), next(scored), 0
    for loss, model in scored:
        (least, best), worse = ((loss, model), 0) if loss < least else ((least, best), worse + 1)
        if worse == 2 or time.process_time() - start > seconds:
            break
    return best


@dataclass(frozen=True)
class Result:
    data: str
    seed: int
    method: str
    nll: float | None
    entropy: float | None
    auroc: float
    cpu_seconds: float
    note: str = ""


def compare(name: str, seed: int, steps: int) -> Iterator[Result]:
    data = rows(name, seed)
    whitening = Whitening.fit(data.train)
    train, test, anomalies = map(whitening.apply, (data.train, data.test, data.anomalies))
    strange = np.repeat([0, 1], [len(test), len(anomalies)])

    def judged(method: str, fit: Callable[[], Density], density: bool = True) -> tuple[Result, Density]:
        start = time.process_time()
        model = fit()
        spent = time.process_time() - start
        scores = model.score_samples(np.concatenate((test, anomalies)))
        nll = -float(scores[: len(test)].mean()) - whitening.log_det if density else None
        note = remarks(model, name, whitening, data) if isinstance(model, EnergyModel) else ""
        return Result(name, seed, method, nll, data.entropy, float(roc_auc_score(strange, -scores)), spent, note), model

    ours, _ = judged("EnergyModel", lambda: EnergyModel(steps, random_state=seed).fit(train))
    yield ours
    seconds = ours.cpu_seconds
    yield judged("NSF", lambda: NeuralSplineFlow(seconds, seed).fit(train))[0]
    yield judged("KDE", lambda: kernels(train, seconds, seed))[0]
    yield judged("Gaussian mixture", lambda: gaussians(train, seconds, seed))[0]
    yield judged("Isolation Forest", lambda: IsolationForest(random_state=seed).fit(train), density=False)[0]


def remarks(model: EnergyModel, name: str, whitening: Whitening, data: Rows) -> str:
    """On how many samples log Z rests; on toy data also how many of the model's samples are good, and the modes."""
    note = f"{model.log_partition_.effective_samples:.0f} effective"
    if name in TOYS:
        toy, samples = TOYS[name], torch.tensor(whitening.invert(model.sample(10_000, random_state=0))).float()
        good = good_samples(samples, toy, torch.tensor(data.test).float()).double().mean()
        modes = f", {modes_found(samples, toy)} modes" if isinstance(toy, Gaussians) else ""
        note += f", {good:.1%} good{modes}"
    return note


def table(results: list[Result]) -> str:
    """Markdown: a row for each data set and method, means over seeds and, in brackets, half the range."""

    def cell(values: list[float | None], digits: int) -> str:
        known = [value for value in values if value is not None]
        if not known:
            return ""
        spread = f" ({np.ptp(known) / 2:.{digits}f})" if len(known) > 1 else ""
        return f"{np.mean(known):.{digits}f}{spread}"

    lines = ["| data | truth | method | NLL, nats | AUROC | CPU s |", "|---|---|---|---|---|---|"]
    for key in dict.fromkeys((result.data, result.method) for result in results):
        group = [result for result in results if (result.data, result.method) == key]
        columns = [[getattr(result, field) for result in group] for field in ("nll", "auroc", "cpu_seconds", "entropy")]
        nll, auroc, spent = (cell(values, digits) for values, digits in zip(columns[:3], (2, 3, 0), strict=True))
        lines.append(f"| {key[0]} | {cell(columns[3], 2)} | {key[1]} | {nll} | {auroc} | {spent.split(' ')[0]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", choices=[*TOYS, *REAL, *KNOWN], metavar="DATA")
    parser.add_argument("--steps", type=int, default=2000, help="max_steps of EnergyModel, which sets the time of all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    results = []
    for name in arguments.data:
        for seed in arguments.seeds:
            for result in compare(name, seed, arguments.steps):
                results.append(result)
                print(result, flush=True)
                if arguments.json:
                    arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
    print(table(results))


if __name__ == "__main__":
    main()
