"""Batch norm written out in single operations: for several processes that hold a part of the batch each, whose
statistics are then those of the whole, and for several runs side by side, for which torch has no such operation."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ebmbounds.distributed import ALONE, Group


class WrittenOutBatchNorm(_BatchNorm):
    """Takes the place of nn.BatchNorm1d and its siblings, with the same parameters, buffers and values."""

    def __init__(self, norm: _BatchNorm, group: Group = ALONE) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.load_state_dict(norm.state_dict())
        self.group = group

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # any shape (n, channels, ...) will do

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if not self.training and self.running_mean is not None and self.running_var is not None:
            mean, variance = self.running_mean, self.running_var
        else:
            mean, variance = self.of_batch(wide)
        if self.training and self.track_running_stats:
            self.update(mean.detach(), variance.detach(), x.numel() // x.shape[1] * self.group.size)
        scale = torch.rsqrt(variance + self.eps)
        shape = (-1, *(1,) * (x.dim() - 2))
        y = (wide - mean.view(shape)) * (scale * self.weight if self.affine else scale).view(shape)
        return (y + self.bias.view(shape) if self.affine else y).to(x.dtype)

    def of_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel, over the parts of all processes."""
        own = torch.stack(torch.var_mean(x, [0, *range(2, x.dim())], correction=0))
        variances, means = self.group.collect(own).unbind(1)  # (processes, channels) each
        mean = means.mean(0)
        # By parts, since E[x^2] - E[x]^2 would lose digits: the variance within processes and that between them.
        return mean, variances.mean(0) + (means - mean).square().mean(0)

    def update(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """The running statistics, with the unbiased variance, as torch keeps them."""
        assert self.num_batches_tracked is not None and self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        rate = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.copy_(self.running_mean + rate * (mean - self.running_mean))
        self.running_var.copy_(self.running_var + rate * (variance * count / (count - 1) - self.running_var))


def written_out(module: nn.Module, group: Group = ALONE) -> nn.Module:
    """The module with `WrittenOutBatchNorm` in place of each batch norm."""
    if isinstance(module, _BatchNorm):
        return WrittenOutBatchNorm(module, group)
    for name, child in module.named_children():
        setattr(module, name, written_out(child, group))
    return module
