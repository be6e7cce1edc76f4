"""Training methods. A new one is one file and one line in this table."""

from ebmbounds.errors import unknown
from ebmbounds.objectives.base import Objective
from ebmbounds.objectives.ebm_0gp import EBM0GP
from ebmbounds.objectives.ebm_bb import EBMBB
from ebmbounds.objectives.gan import DCGAN, SNGAN
from ebmbounds.objectives.meg import MEG
from ebmbounds.objectives.vera import VERA
from ebmbounds.objectives.wgan_0gp import WGAN0GP

METHODS: dict[str, type[Objective]] = {
    "ebm-bb": EBMBB,
    "ebm-0gp": EBM0GP,
    "wgan-0gp": WGAN0GP,
    "meg": MEG,
    "vera": VERA,
    "dcgan": DCGAN,
    "sngan": SNGAN,
}


def method(name: str) -> type[Objective]:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


__all__ = ["DCGAN", "EBM0GP", "EBMBB", "MEG", "METHODS", "SNGAN", "VERA", "WGAN0GP", "Objective", "method"]
