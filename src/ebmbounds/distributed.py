"""Several processes that train one model together: each takes an equal part of every batch, all hold the same state.

The one exchange is a sum over all processes. It is its own adjoint, so that gradients pass through it: what processes
compute from such sums and their own rows, and average in the end, is what one process computes from the whole batch.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from ebmbounds.errors import BadInput

Tree = TypeVar("Tree")
exchange = torch.ops._c10d_functional
PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others: longer than the first one's figures at a checkpoint take."""


class Lost(RuntimeError):
    """Another process died, or cannot be reached any more."""


class _Sum(torch.autograd.Function):
    """The sum over all processes, as a linear map of what each of them holds: symmetric, hence its own adjoint."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        # Functional collectives, since they trace into a compiled step and can be recorded in a CUDA graph.
        group = dist.group.WORLD.group_name  # type: ignore[union-attr]
        return exchange.wait_tensor(exchange.all_reduce(x.contiguous(), "sum", group))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return _Sum.apply(gradient)


@dataclass(frozen=True)
class Group:
    """The processes of a run, seen from one of them; by default it is alone, and every exchange costs nothing."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> "Group":
        """The processes that this one is joined with."""
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def part(self, name: str, rows: int) -> int:
        """How many of so many rows each process takes."""
        if rows % self.size:
            raise BadInput(
                f"{name}={rows} does not divide by the {self.size} processes: use a multiple of {self.size}."
            )
        return rows // self.size

    def sum(self, x: Tensor) -> Tensor:
        return x if self.size == 1 else _Sum.apply(x)

    def mean(self, x: Tensor) -> Tensor:
        return x if self.size == 1 else _Sum.apply(x) / self.size

    def collect(self, x: Tensor) -> Tensor:
        """x of every process, (size, *x.shape)."""
        if self.size == 1:
            return x[None]
        mine = torch.arange(self.size, device=x.device) == self.rank
        return self.sum(torch.where(mine.reshape(-1, *(1,) * x.dim()), x, 0))

    def average(self, tree: Tree) -> Tree:
        """The mean over processes of all tensors of a tree, in one flat exchange."""
        if self.size == 1:
            return tree
        leaves, spec = pytree.tree_flatten(tree)
        flat = self.mean(torch.cat([leaf.flatten() for leaf in leaves]))
        parts = flat.split([leaf.numel() for leaf in leaves])
        return pytree.tree_unflatten(
            [part.view(leaf.shape).to(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)], spec
        )

    def align(self, tree: Any) -> None:
        """The first process's tensors, in place, for all."""
        if self.size > 1:
            for leaf in pytree.tree_leaves(tree):
                values = leaf.contiguous()
                dist.broadcast(values, 0)
                leaf.copy_(values)

    def every(self, holds: bool) -> bool:
        """Whether it holds on every process."""
        return float(self.mean(torch.tensor(float(holds)))) == 1

    def agreed(self, ask: Callable[[], int | None]) -> Callable[[], int | None]:
        """Asks on every process, and gives all of them the same answer at the same call: the greatest of the call
        before. So the exchange goes on behind a training step, and none waits for it."""
        if self.size == 1:
            return ask
        answer, pending = torch.zeros(1, dtype=torch.int64), None

        def question() -> int | None:
            nonlocal answer, pending
            if pending is not None:
                pending.wait()
                if found := int(answer):
                    return found
            answer = torch.tensor([ask() or 0])
            pending = dist.all_reduce(answer, dist.ReduceOp.MAX, async_op=True)
            return None

        return question


ALONE = Group()


def started_with_others() -> bool:
    """Whether a launcher (torchrun) started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> int:
    """How often torchrun has started the processes anew, after one of them died (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def own_device(device: str) -> str:
    """The device of this process among those of its machine: a GPU each."""
    if not started_with_others() or device == "cpu":
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device != "cuda":
        raise BadInput(f"--device {device} names one GPU for several processes: use --device cuda, for one each.")
    if local >= torch.cuda.device_count():
        raise BadInput(
            f"process {local} of this machine finds no GPU of its own (there are {torch.cuda.device_count()}): "
            "start at most one process for each."
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


@contextmanager
def joined() -> Iterator[None]:
    """Joins the processes that torchrun started beside this one, where there are any and nobody has done it yet."""
    joins = started_with_others() and not dist.is_initialized()
    try:
        if joins:
            join()
        yield
    except RuntimeError as error:
        if not comes_from_exchange(error):
            raise
        group, reason = Group.current(), str(error).strip().splitlines()[0].split(". ")[0].rsplit("] ", 1)[-1]
        raise Lost(
            f"process {group.rank} of {group.size} lost the others ({reason}): one of them died or cannot be "
            "reached. The run goes on from its last checkpoint with --resume."
        ) from error
    finally:
        if joins and dist.is_initialized():
            dist.destroy_process_group()


def join() -> None:
    """Through Gloo where tensors lie on CPUs, and NCCL where they lie on GPUs."""
    store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # On one machine torchrun may keep a store over all restarts, and in it lie the addresses of the dead. (On
        # several each restart has a store of its own, and machines may count restarts differently.)
        store = dist.PrefixStore(f"attempt {restarts()}", store)
    backend = "cpu:gloo,cuda:nccl" if dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)


def comes_from_exchange(error: RuntimeError) -> bool:
    """Whether an error is one of torch.distributed; Gloo's are plain RuntimeErrors."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "Gloo", "NCCL"))
