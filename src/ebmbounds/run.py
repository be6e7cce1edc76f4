"""The run folder: config, log, checkpoints, metrics. Every write is atomic: a reader, or a process that was
killed, sees the old file or the new one and nothing in between.

    config.json     what was run, resolved; enough to run it again
    log.jsonl       one line per logging interval
    checkpoints/    last.safetensors, best.safetensors
    metrics.json    written by `evaluate`
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ebmbounds import __version__
from ebmbounds.errors import BadInput
from ebmbounds.step import State

FORMAT = "ebmbounds-1"


class Run:
    """A run folder on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, config: dict[str, Any]) -> "Run":
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise BadInput(f"{run.path} exists: continue it with --resume, or name another folder with --run.")
        try:
            (run.path / "checkpoints").mkdir(parents=True)
        except OSError as error:
            raise BadInput(f"the run folder {run.path} cannot be made: {error.strerror}.") from None
        write_json(run.path / "config.json", config)
        return run

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise BadInput(f"{run.path} is no run folder (it has no config.json): name a folder that `train` made.")
        return run

    @property
    def config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    # -- log -------------------------------------------------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> Iterator[dict[str, Any]]:
        """The log's records; a last line that was cut by a crash is left out."""
        try:
            lines = (self.path / "log.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def rewind_log(self, step: int) -> None:
        """Drop what was logged after a step, so that a resumed run writes it once."""
        kept = [json.dumps(record) + "\n" for record in self.records() if record["step"] <= step]
        write_atomically(self.path / "log.jsonl", "".join(kept).encode())

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint(self, name: str = "last") -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def save(self, state: State, name: str = "last", **notes: Any) -> None:
        tensors = {key: t.detach().contiguous().cpu() for key, t in flatten(state).items()}
        text = json.dumps(notes)
        metadata = {"format": FORMAT, "version": __version__, "digest": digest(tensors, text), "notes": text}
        write_atomically(self.checkpoint(name), save(tensors, metadata))

    def load(self, name: str = "last", device: torch.device | str = "cpu") -> tuple[State, dict[str, Any]]:
        """The state and notes of a checkpoint, verified."""
        path = self.checkpoint(name)
        if not path.is_file():
            raise BadInput(f"{path} does not exist: the run has no {name!r} checkpoint yet.")
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{path} is truncated or no safetensors file ({error}): restore it from a copy.") from None
        if metadata.get("format") != FORMAT:
            raise BadInput(
                f"{path} is no checkpoint of this program (format {metadata.get('format')!r}, not {FORMAT!r})."
            )
        if metadata.get("digest") != digest(tensors, metadata.get("notes", "")):
            raise BadInput(f"{path} is damaged (its checksum does not match): restore it from a copy.")
        return unflatten({key: t.to(device) for key, t in tensors.items()}), json.loads(metadata["notes"])


def flatten(state: State, prefix: str = "") -> dict[str, Tensor]:
    """A tree of tensors as one table, `parameters/energy/0.weight`."""
    flat: dict[str, Tensor] = {}
    for key, value in state.items():
        flat |= flatten(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def unflatten(flat: dict[str, Tensor]) -> State:
    state: State = {}
    for path, tensor in flat.items():
        *parents, name = path.split("/")
        node = state
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = tensor
    return state


def digest(tensors: dict[str, Tensor], notes: str) -> str:
    sha = hashlib.sha256(notes.encode())
    for key in sorted(tensors):
        sha.update(f"{key} {tensors[key].dtype} {tuple(tensors[key].shape)}".encode())
        sha.update(tensors[key].reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist.") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({error}).") from None
