"""The density of two columns of numbers, from a CSV file to a picture.

    python examples/density_from_csv.py points.csv density.png

A file that does not exist is made first, of two moons. Takes about half a minute on one core.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import make_moons

from ebmbounds import EnergyModel


def main(csv: str | Path = "points.csv", picture: str | Path = "density.png", max_steps: int = 400) -> EnergyModel:
    csv = Path(csv)
    if not csv.exists():
        np.savetxt(csv, make_moons(5000, noise=0.1, random_state=0)[0], delimiter=",", header="x,y", comments="")
    X = np.loadtxt(csv, delimiter=",", skiprows=1)
    train, test = X[::2], X[1::2]

    model = EnergyModel(max_steps, random_state=0).fit(train)
    log_Z = model.log_partition_
    print(f"log Z = {log_Z.value:.3f} +- {log_Z.standard_error:.3f}, {log_Z.effective_samples:.0f} effective samples")
    print(f"log-likelihood of the other half of the rows: {model.score(test):.3f} nats")
    print(f"strangest row: {test[model.anomaly_scores(test).argmax()]}")

    low, high = X.min(0) - X.std(0) / 2, X.max(0) + X.std(0) / 2
    x, y = (np.linspace(low[i], high[i], 200) for i in range(2))
    grid = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    log_p = model.score_samples(grid).reshape(200, 200)
    print(f"the density's integral over the picture: {np.exp(log_p).sum() * (x[1] - x[0]) * (y[1] - y[0]):.3f}")

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    left.scatter(*train.T, s=2, label="rows")
    left.scatter(*model.sample(len(train), random_state=0).T, s=2, label="samples of the model")
    left.legend(loc="upper right")
    image = right.imshow(
        log_p.clip(log_p.max() - 10), origin="lower", extent=(low[0], high[0], low[1], high[1]), aspect="auto"
    )
    right.set_title("log-density, top 10 nats")
    figure.colorbar(image, ax=right, label="nats")
    figure.savefig(picture, dpi=80)
    return model


if __name__ == "__main__":
    main(*sys.argv[1:3])
