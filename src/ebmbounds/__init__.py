"""Energy-based models trained between two bounds.

import ebmbounds
run = ebmbounds.train("25gaussians/ebm-bb@quick", run="runs/demo")
figures = ebmbounds.evaluate_run(run)
session, model = ebmbounds.load(run)
x = model.sample(1000)
energies = model.energies(x)
"""

__version__ = "0.1.0"

from typing import Any

from ebmbounds.errors import BadInput
from ebmbounds.experiments import experiment
from ebmbounds.launch import evaluate_run, load, train
from ebmbounds.model import Model
from ebmbounds.run import Run

__all__ = ["BadInput", "EnergyModel", "Model", "Run", "__version__", "evaluate_run", "experiment", "load", "train"]


def __getattr__(name: str) -> Any:
    if name == "EnergyModel":  # when asked for, since importing scikit-learn takes a second
        from ebmbounds.estimator import EnergyModel

        return EnergyModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
