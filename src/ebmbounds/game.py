"""The players of the game as functions of their parameters."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

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

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self._run(self.skeleton.train, self.buffers, inputs)

    def frozen(self, *inputs: Tensor) -> Tensor:
        return self._run(self.skeleton.eval, self.frozen_buffers, inputs)

    def _run(self, module: nn.Module, buffers: Tensors, inputs: tuple[Tensor, ...]) -> Tensor:
        tensors = (self.parameters, buffers)
        if not self.bf16:
            return functional_call(module, tensors, inputs)
        # Inside the network bf16, outside the inputs' precision: vectors of LOBPCG and penalties never see bf16.
        with torch.autocast(inputs[0].device.type, torch.bfloat16):
            return functional_call(module, tensors, inputs).to(inputs[0].dtype)


class Game:
    """What an objective sees of one turn: the networks by name (`game.energy`, `game.generator`, ...) and the sizes."""

    def __init__(self, networks: Mapping[str, Network], batch_size: int, latent_dim: int) -> None:
        self.networks, self.batch_size, self.latent_dim = networks, batch_size, latent_dim

    def __getattr__(self, name: str) -> Network:
        return self.networks[name]

    def latents(self, noise: Noise) -> Tensor:
        """z ~ N(0, I), (batch_size, latent_dim)."""
        return noise.normal(self.batch_size, self.latent_dim)


def parameters_of(module: nn.Module) -> Tensors:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def buffers_of(module: nn.Module) -> Tensors:
    return {name: b.detach().clone() for name, b in module.named_buffers()}
