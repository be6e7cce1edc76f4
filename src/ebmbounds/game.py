"""The players of the game as functions of their parameters."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from ebmbounds.distributed import ALONE, Group
from ebmbounds.networks.batch_norm import WrittenOutBatchNorm
from ebmbounds.noise import Noise

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Skeleton:
    """A module's structure in both modes; its own parameters are never used."""

    train: nn.Module
    eval: nn.Module

    @classmethod
    def of(cls, module: nn.Module) -> "Skeleton":
        return cls(copy.deepcopy(module).train(), copy.deepcopy(module).eval())


class Network:
    """One player: a module with given parameters and buffers. Calling it is train mode (batch norm uses the batch's
    statistics and updates `buffers`); `frozen` is eval mode, where every sample stands alone, with the statistics in
    `frozen_buffers`: those of the start of the iteration, so that all its turns see one frozen network."""

    def __init__(
        self,
        skeleton: Skeleton,
        parameters: Tensors,
        buffers: Tensors,
        frozen_buffers: Tensors | None = None,
        bf16: bool = False,
    ) -> None:
        self.skeleton, self.parameters, self.buffers, self.bf16 = skeleton, parameters, buffers, bf16
        self.frozen_buffers = buffers if frozen_buffers is None else frozen_buffers

    @property
    def invertible(self) -> bool:
        """Whether it can also be asked for densities and latents (see `networks.flow`)."""
        return getattr(self.skeleton.eval, "invertible", False)

    def __call__(self, *inputs: Any) -> Any:
        return self._run(self.skeleton.train, self.buffers, inputs)

    def frozen(self, *inputs: Any) -> Any:
        return self._run(self.skeleton.eval, self.frozen_buffers, inputs)

    def double(self) -> "Network":
        """The same network in double precision."""
        parameters = {name: p.double() for name, p in self.parameters.items()}
        buffers = {name: b.double() if b.is_floating_point() else b for name, b in self.buffers.items()}
        return Network(self.skeleton, parameters, buffers)

    def with_own_statistics(self, batches: Sequence[Tensor]) -> "Network":
        """The same network with batch norm's statistics taken anew, over these batches of inputs."""
        module = copy.deepcopy(self.skeleton.train)
        norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
        if not norms:
            return self
        for norm in norms:
            norm.momentum = None  # the mean over all batches since the count was 0
            if isinstance(norm, WrittenOutBatchNorm):
                norm.group = ALONE  # these are all the inputs there are, and no other process is asked
        buffers = {
            name: torch.zeros_like(b) if name.endswith("num_batches_tracked") else b.clone()
            for name, b in self.buffers.items()
        }
        with torch.no_grad():
            for batch in batches:
                functional_call(module, (self.parameters, buffers), (batch,))
        return Network(self.skeleton, self.parameters, buffers)

    def _run(self, module: nn.Module, buffers: Tensors, inputs: tuple[Any, ...]) -> Any:
        tensors = (self.parameters, buffers)
        if not self.bf16 or not inputs:  # without an input there is nothing to compute
            return functional_call(module, tensors, inputs)
        # Inside the network bf16, outside the inputs' precision: vectors of LOBPCG and penalties never see bf16.
        with torch.autocast(inputs[0].device.type, torch.bfloat16):
            outputs = functional_call(module, tensors, inputs)
        return pytree.tree_map(lambda t: t.to(inputs[0].dtype), outputs)


class Game:
    """What an objective sees of one turn: the networks by name (`game.energy`, `game.generator`, ...) and the sizes.

    With several processes `batch_size` is the number of this one's rows. Losses are averaged over processes: those that
    are means over rows need nothing more, and others, as the hinge of a mean, take the whole batch's from `mean`."""

    def __init__(self, networks: Mapping[str, Network], batch_size: int, latent_dim: int, group: Group = ALONE) -> None:
        self.networks, self.batch_size, self.latent_dim, self.group = networks, batch_size, latent_dim, group

    def __getattr__(self, name: str) -> Network:
        return self.networks[name]

    def latents(self, noise: Noise) -> Tensor:
        """z ~ N(0, I), (batch_size, latent_dim)."""
        return noise.normal(self.batch_size, self.latent_dim)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the rows (n,) of all processes."""
        return self.group.mean(values.mean())

    def neighbours(self, rows: Tensor) -> Tensor:
        """Row i - 1 of the whole batch for each row i (n, ...), the last one for the first."""
        before = self.group.collect(rows[-1])[self.group.rank - 1]
        return torch.cat((before[None], rows[:-1]))


def parameters_of(module: nn.Module) -> Tensors:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def buffers_of(module: nn.Module) -> Tensors:
    return {name: b.detach().clone() for name, b in module.named_buffers()}
