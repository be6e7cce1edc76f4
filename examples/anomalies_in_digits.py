"""Which digits are strange? A density of the digits 0 to 8, asked about nines, which it never saw.

    python examples/anomalies_in_digits.py anomalies.png

Pixels are whole numbers from 0 to 16, whose density has no limit: uniform noise of one step makes them continuous.
Takes about a minute on one core.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from ebmbounds import EnergyModel

STRANGE = 9


def main(picture: str | Path = "anomalies.png", max_steps: int = 100) -> float:
    X, y = load_digits(return_X_y=True)
    X = X + np.random.default_rng(0).uniform(size=X.shape)
    train, test = train_test_split(X[y != STRANGE], test_size=0.3, random_state=0)

    model = EnergyModel(max_steps, random_state=0).fit(train)
    usual, strange = model.anomaly_scores(test), model.anomaly_scores(X[y == STRANGE])
    labels = np.repeat([0, 1], [len(usual), len(strange)])
    auroc = float(roc_auc_score(labels, np.concatenate((usual, strange))))
    print(f"held-out digits 0 to 8: {usual.mean():.1f} nats, nines: {strange.mean():.1f} nats; AUROC {auroc:.3f}")

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(2, 1.6))
    axis = top.subplots()
    bins = np.linspace(*np.quantile(np.concatenate((usual, strange)), (0, 0.99)), 50).tolist()
    axis.hist([usual, strange], bins, density=True, label=["digits 0 to 8, held out", "nines"])
    axis.set(xlabel="-log p(x), nats", title=f"AUROC {auroc:.3f}")
    axis.legend()
    order = usual.argsort()
    for line, (chosen, title) in zip(
        bottom.subplots(2, 12), ((order[:12], "likely"), (order[-12:], "strange")), strict=True
    ):
        line[0].set_ylabel(title)
        for axis, row in zip(line, test[chosen], strict=True):
            axis.imshow(row.reshape(8, 8), cmap="gray_r")
            axis.set(xticks=[], yticks=[])
    figure.savefig(picture, dpi=80)
    return auroc


if __name__ == "__main__":
    main(*sys.argv[1:2])
