"""Piecewise linear activations whose slope is a constant to every derivative.

torch's own return explicit zeros as second derivatives, and a compiled step would carry those zeros through whole
backward passes. Here the slope is a comparison, which has no derivative at all. (PReLU stays torch's: its slope is a
parameter.)
"""

import torch
from torch import Tensor, nn


class LeakyReLU(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.where(x > 0, 1.0, self.slope).to(x.dtype)


class ReLU(LeakyReLU):
    def __init__(self) -> None:
        super().__init__(0.0)
