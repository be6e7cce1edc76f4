"""Spectral normalisation: every linear layer divided by its largest singular value (Miyato et al. 2018)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class SpectralNorm(nn.Module):
    """A linear or convolutional layer with W / |W| in place of its weight W, |W| the largest singular value of W as a
    matrix (out, all else). Each call in train mode improves the left singular vector `u` by one power iteration; in
    eval mode `u` stays, as batch norm's statistics do."""

    u: Tensor

    def __init__(self, layer: nn.Linear | nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("u", normalize(torch.randn(layer.weight.shape[0]), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        W = self.layer.weight.flatten(1)
        with torch.no_grad():
            v = normalize(self.u @ W, dim=0)
        Wv = W @ v
        largest = Wv.norm()  # u'W v for the new u = W v / |W v|, and u v' is its gradient too
        if self.training:
            self.u.copy_((Wv / largest).detach())
        return self.layer(x / largest)  # W (x / |W|) = (W / |W|) x, and the bias is left alone


def normalised(module: nn.Module) -> nn.Module:
    """The module with `SpectralNorm` around each of its linear and convolutional layers."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        return SpectralNorm(module)
    for name, child in module.named_children():
        setattr(module, name, normalised(child))
    return module
