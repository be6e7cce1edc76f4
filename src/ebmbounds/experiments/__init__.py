"""Experiments: `DATASET/METHOD[@VARIANT]` resolved to settings. One TOML file per data set, a table per method."""

import dataclasses
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from ebmbounds.data import DataSettings
from ebmbounds.errors import BadInput, unknown
from ebmbounds.networks import NETWORKS, Pair, network
from ebmbounds.objectives import METHODS, Objective, method
from ebmbounds.settings import Count, Whole, build, field_names
from ebmbounds.step import Optimizer

DEFAULT = "default"


@dataclass(frozen=True)
class Schedule:
    """How long, how often and how a run runs, and from where."""

    steps: Count = 10_000
    init: str | None = None
    """A run folder, or DATASET/METHOD@pretrained, from whose energy and generator a new run starts."""
    log_every: Count = 100
    checkpoint_every: Count = 2_000
    """A checkpoint, a picture and the figure that `best_by` names are taken every so many steps."""
    best_by: str = "nll"
    """The figure, lower is better, that decides which checkpoint is kept as best."""
    watch_fid: Whole = 0
    """On images, samples for an FID against the test set at every checkpoint (10,000 as in the paper: seconds on a
    GPU, half an hour on a CPU); 0 takes none."""
    watch_entropy: Whole = 0
    """On images, latents at which every entropy estimator is taken at every checkpoint; 0 takes none."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """What NaN, infinity or a runaway energy leads to: the end, or the last checkpoint with new noise and half the step
    size."""
    rollbacks: Count = 3
    """How often a run is rolled back before it ends all the same."""
    compile: Literal["auto", "on", "off"] = "auto"
    """auto compiles on a GPU, and on a CPU with a compiler for data without image shape."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Of the networks on a GPU; all else, and everything on a CPU, is fp32."""
    sync_batch_norm: bool = True
    """With several processes batch norm takes its statistics over the whole batch; false: over each process's part."""
    deterministic: bool | None = None
    """Bit-for-bit repeatable; by default on a CPU only."""
    threads: Whole = 0
    """CPU threads; 0 means one, which is fastest for small networks."""


@dataclass(frozen=True)
class Experiment:
    """Everything that a run is made from."""

    dataset: str
    method: str
    variant: str
    source: str
    network: str
    pair: Pair
    objective: Objective
    optimizer: Optimizer
    schedule: Schedule
    data: DataSettings

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.method}" + ("" if self.variant == DEFAULT else f"@{self.variant}")

    def config(self) -> dict[str, Any]:
        """Flat and JSON-able; `from_config` reads it back."""
        flat: dict[str, Any] = {
            "dataset": self.dataset,
            "method": self.method,
            "variant": self.variant,
            "source": self.source,
            "network": self.network,
        }
        for part in (self.pair, self.objective, self.optimizer, self.schedule, self.data):
            flat |= dataclasses.asdict(part)  # type: ignore[arg-type]
        return flat


def datasets() -> list[str]:
    return sorted(name.removesuffix(".toml") for f in files(__name__).iterdir() if (name := f.name).endswith(".toml"))


@cache
def tables(dataset: str) -> dict[str, Any]:
    """The TOML of a data set; `like` names another one whose tables it extends, less those that it sets to false."""
    if dataset not in datasets():
        raise unknown("data set", dataset, datasets())
    own = tomllib.loads((files(__name__) / f"{dataset}.toml").read_text(encoding="utf-8"))
    return _merged(tables(own.pop("like")), own) if "like" in own else own


def _merged(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in extra.items():
        if value is False and isinstance(merged.get(key), dict):
            del merged[key]
        else:
            merged[key] = _merged(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


def variants(dataset: str, method_name: str) -> list[str]:
    table = tables(dataset)[method_name]
    return [DEFAULT, *(key for key, value in table.items() if isinstance(value, dict))]


def names() -> list[str]:
    """Every experiment there is."""
    return [
        f"{dataset}/{name}" + ("" if variant == DEFAULT else f"@{variant}")
        for dataset in datasets()
        for name in METHODS
        if name in tables(dataset)
        for variant in variants(dataset, name)
    ]


def experiment(name: str, overrides: dict[str, Any] | None = None) -> Experiment:
    """The experiment `DATASET/METHOD[@VARIANT]`, with some keys set otherwise."""
    full, _, variant = name.partition("@")
    dataset, slash, method_name = full.partition("/")
    if not slash:
        raise BadInput(
            f"{name!r} is no experiment: write DATASET/METHOD[@VARIANT], for example 25gaussians/ebm-bb@quick."
        )
    table = tables(dataset)
    method(method_name)
    if method_name not in table:
        raise BadInput(
            f"there is no preset for {method_name!r} on {dataset!r}: `ebmbounds list` shows those there are."
        )
    variant = variant or DEFAULT
    if variant not in variants(dataset, method_name):
        raise unknown(f"variant of {full}", variant, variants(dataset, method_name))
    # Later tables win: shared settings, then the method's, then the variant's for all methods, then the method's own.
    shared = table.get("shared", {})
    values = _scalars(shared) | _scalars(table[method_name])
    if variant != DEFAULT:
        values |= _scalars(shared.get(variant, {})) | _scalars(table[method_name][variant])
    source = values.pop("source")
    chosen = {"network": values.get("network", "toy-mlp")} | (overrides or {})
    foreign = _keys_of_other_networks(str(chosen["network"]))
    values = {key: value for key, value in values.items() if key not in foreign}
    return _assembled(dataset, method_name, variant, source, values | (overrides or {}))


def from_config(config: dict[str, Any]) -> Experiment:
    """The experiment that a run folder's config.json describes."""
    try:
        values = dict(config)
        heads = [values.pop(key) for key in ("dataset", "method", "variant", "source")]
        if not all(isinstance(head, str) for head in heads):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise BadInput("config.json does not describe a run of this program.") from None
    dataset, name, variant, source = heads
    return _assembled(dataset, name, variant, source, values)


def _scalars(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if not isinstance(value, dict)}


def _keys_of_other_networks(name: str) -> set[str]:
    """What tables may say of a network that a method, a variant or the user has replaced by this one."""
    return {key for kind in NETWORKS.values() for key in field_names(kind)} - set(field_names(network(name)))


def _assembled(dataset: str, method_name: str, variant: str, source: str, values: dict[str, Any]) -> Experiment:
    """Each key goes to the one part that has a field of that name."""
    values = dict(values)
    network_name = str(values.pop("network", "toy-mlp"))
    kinds: list[type] = [network(network_name), method(method_name), Optimizer, Schedule, DataSettings]
    known = [key for kind in kinds for key in field_names(kind)]
    for key in values:
        if key not in known:
            raise unknown(f"key for {dataset}/{method_name}", key, [*known, "network"])
    parts: Any = (build(kind, {key: values[key] for key in field_names(kind) if key in values}) for kind in kinds)
    return Experiment(dataset, method_name, variant, source, network_name, *parts)


__all__ = ["NETWORKS", "Experiment", "Schedule", "datasets", "experiment", "from_config", "names", "variants"]
