"""Three ways to run a step: plain, compiled whole, and captured as one CUDA graph. All update the state in place."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ebmbounds.batching import join_batches
from ebmbounds.rewriting import aten, has_convolutions, join_products, merge_equal_nodes, simplify_powers
from ebmbounds.step import COUNT, Info, State

Advance = Callable[[State], None]


def plain(step: Callable[[State], tuple[State, Info]]) -> Advance:
    """The step as an update of the state's own tensors, diagnostics added to `log`. Fixed addresses are what compiled
    and captured steps need, and no memory is allocated twice."""

    def advance(state: State) -> None:
        with torch.no_grad():
            new, info = step({key: value for key, value in state.items() if key != "log"})
            info |= {COUNT: torch.ones_like(state["log"][COUNT])}
            new["log"] = {name: total + info[name].reshape(total.shape) for name, total in state["log"].items()}
            pytree.tree_map_(lambda old, value: old.copy_(value), state, new)

    return advance


def compiled(step: Callable[[State], tuple[State, Info]], fallback: bool = True) -> Advance:
    """`plain(step)`, compiled whole for the shapes of the first state it is called with. Where that fails, plain with
    one warning that says why; without `fallback`, which several processes could not take together, an error."""
    slow = plain(step)
    fast: Callable[..., Any] | None = None

    def advance(state: State) -> None:
        nonlocal fast
        leaves, tree = pytree.tree_flatten(state)
        if fast is None:  # not before the first call, so that a compiler that is refused falls back too
            fast = compile_whole(lambda *leaves: slow(pytree.tree_unflatten(leaves, tree)), leaves)
        fast(*leaves)

    return with_fallback(advance, slow, "compiled") if fallback else advance


def compile_whole(update: Callable[..., None], tensors: list[Any]) -> Callable[..., Any]:
    """An update of tensors in place, as code of its own. A step is a pure function, so that its operators can be
    recorded as they come: nothing has to be read from Python code, and nothing to be checked again at each call."""
    import torch._inductor  # here, since importing the compiler takes seconds
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Rewrite(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            rewrite(graph, on_gpu=any(tensor.is_cuda for tensor in tensors))

        def uuid(self) -> str:
            return "ebmbounds.rewrite.8"  # part of the key under which compiled steps are cached

    options: dict[str, Any] = {
        # Long chains of integer arithmetic (the noise) would be inlined into each other again and again; a low
        # threshold stores them instead, and fusion joins them into one kernel all the same.
        "realize_opcount_threshold": 10,
        # Both players' losses evaluate the generator at the same latents, for one: each product is then taken once.
        "post_grad_custom_pre_pass": Rewrite(),
    }
    # Stand-ins of fixed shapes: without the context nothing would be cached, and from the tensors themselves the
    # compiler would make code for any shape.
    fixed = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    with torch.no_grad(), tracing(TracingContext(fixed)):
        with BatchNormWithoutCudnn():
            recorded = make_fx(update, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
        return torch._inductor.compile(recorded, [fixed.from_tensor(tensor) for tensor in tensors], options=options)


class BatchNormWithoutCudnn(TorchFunctionMode):
    """While a step is recorded: cuDNN's batch norm changes the statistics without a record. Convolutions keep cuDNN,
    since the layouts of their results, which views of them depend on, would be others without."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.batch_norm:
            return func(*args, **(kwargs or {}))
        with torch.backends.cudnn.flags(enabled=False):
            return func(*args, **(kwargs or {}))


def rewrite(graph: fx.Graph, on_gpu: bool) -> None:
    """The graph of a step with less to do. For a GPU, products are joined in graphs of products alone: beside
    convolutions, which are most of the work there, the compiler (torch 2.11) failed on kernels that it made then. For a
    CPU, only products of two matrices are: of stacked ones, torch 2.11 made code that computes something else."""
    simplify_powers(graph)
    merge_equal_nodes(graph)
    if not on_gpu:
        join_products(graph, (aten.mm.default,))
    elif not has_convolutions(graph):
        join_products(graph, (aten.mm.default, aten.bmm.default))
        join_batches(graph)
        merge_equal_nodes(graph)


def captured(step: Callable[[State], tuple[State, Info]], fallback: bool = True) -> Advance:
    """`compiled(step)` recorded once as a CUDA graph and replayed: no launch overhead, no host in the loop."""
    fast = compiled(step, fallback)
    calls = 0
    graph = torch.cuda.CUDAGraph()

    def record(state: State) -> None:
        nonlocal calls
        if calls < 3:  # compile, then let libraries choose their kernels
            fast(state)
        else:
            if calls == 3:
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    fast(state)
            graph.replay()
        calls += 1

    return with_fallback(record, fast, "captured") if fallback else record


def with_fallback(fast: Advance, slow: Advance, what: str) -> Advance:
    """The fast way as long as it works; else the slow one from then on, with one warning."""
    chosen = fast

    def advance(state: State) -> None:
        nonlocal chosen
        try:
            chosen(state)
        except Exception as error:  # whatever a compiler or a capture trips over, training can go on
            if chosen is slow:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(f"the step could not be {what} and runs slower: {reason}", stacklevel=2)
            chosen = slow
            slow(state)

    return advance
