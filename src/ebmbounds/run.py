"""The run folder: config, log, checkpoints, metrics. Every write is atomic: a reader, or a process that was
killed, sees the old file or the new one and nothing in between.

    config.json     what was run, resolved; enough to run it again
    log.jsonl       one line per logging interval; log.0001.jsonl and so on are older parts of a long one
    checkpoints/    last.safetensors, the one before it (previous.safetensors), best.safetensors
    pictures/       along the way, thinned out as they become many
    metrics.json    written by `evaluate`; energies.npz and density.npz too (see `evaluated`)
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ebmbounds import __version__
from ebmbounds.errors import BadInput
from ebmbounds.files import read_json, replacing, unwritable, write_atomically, write_json, write_through
from ebmbounds.step import State

FORMAT = "ebmbounds-1"
LOG_PART = 2**22
"""Bytes after which a part of the log is closed and the next one begun."""
MOST_PICTURES = 100


class Run:
    """A run folder on disk."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, config: dict[str, Any]) -> "Run":
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(map(is_content, run.path.rglob("*")))):
            raise BadInput(f"{run.path} exists: continue it with --resume, or name another folder with --run.")
        checkpoints = run.path / "checkpoints"
        try:
            checkpoints.mkdir(parents=True, exist_ok=checkpoints.exists())  # of two processes one makes it
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

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Train in this folder, alone: a second process is refused. What a killed writer left behind is removed."""
        import fcntl  # here, since Windows has none: what only reads a run works there too

        try:
            lock = open(self.path / ".lock", "ab")  # noqa: SIM115 (the `with` comes after the claim)
        except OSError as error:
            raise unwritable(self.path / ".lock", error) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given up by the kernel, however the process ends
            except BlockingIOError:
                raise BadInput(f"{self.path} is in use by another process: wait for it, or end it first.") from None
            except OSError as error:  # a file system without locks
                warnings.warn(f"{self.path} cannot be locked ({error.strerror}): use it once only.", stacklevel=3)
            for stale in self.path.rglob(".*.tmp"):
                stale.unlink(missing_ok=True)
            yield

    # -- log -------------------------------------------------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        path = self.path / "log.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                full = file.tell() > LOG_PART
            if full:
                os.replace(path, self.path / f"log.{len(self.log_parts()):04d}.jsonl")
        except OSError as error:
            raise unwritable(path, error) from None

    def log_parts(self) -> list[Path]:
        """The files of the log, in order; the one that is written to is the last."""
        return [*sorted(self.path.glob("log.[0-9]*.jsonl")), self.path / "log.jsonl"]

    def records(self) -> Iterator[dict[str, Any]]:
        """The log's records; a last line that was cut by a crash is left out."""
        for part in self.log_parts():
            yield from records_of(part)

    def rewind_log(self, step: int) -> None:
        """Drop what was logged after a step, so that a resumed run writes it once."""
        *closed, current = self.log_parts()
        for part in (*closed, current):
            kept = [json.dumps(record) + "\n" for record in records_of(part) if record["step"] <= step]
            if kept or part == current:
                write_atomically(part, "".join(kept).encode())
            else:
                part.unlink()

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint(self, name: str = "last") -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def save(self, state: State, name: str = "last", **notes: Any) -> None:
        """Write a checkpoint and read it back; only then does it take the place of the one before, and `last` is
        kept as `previous` too."""
        tensors = {key: t.detach().contiguous().cpu() for key, t in flatten(state).items()}
        text = json.dumps(notes)
        metadata = {"format": FORMAT, "version": __version__, "digest": digest(tensors, text), "notes": text}
        path = self.checkpoint(name)
        with replacing(path) as temporary:
            write_through(temporary, save(tensors, metadata))
            try:
                read_checkpoint(temporary)
            except BadInput:
                raise BadInput(f"{path} reads back otherwise than it was written: check the disk.") from None
            if name == "last" and path.exists():
                with replacing(self.checkpoint("previous")) as other_name:
                    try:
                        os.link(path, other_name)
                    except OSError:  # a file system without links
                        shutil.copyfile(path, other_name)

    def load(self, name: str = "last", device: torch.device | str = "cpu") -> tuple[State, dict[str, Any]]:
        """The state and notes of a checkpoint, verified."""
        path = self.checkpoint(name)
        if not path.is_file():
            raise BadInput(f"{path} does not exist: the run has no {name!r} checkpoint yet.")
        tensors, notes = read_checkpoint(path)
        return unflatten({key: t.to(device) for key, t in tensors.items()}), notes

    def latest(self, device: torch.device | str = "cpu") -> tuple[State, dict[str, Any]] | None:
        """What to go on from: `last`, or, where that is damaged, `previous` in its place; None before the first."""
        last, previous = self.checkpoint("last"), self.checkpoint("previous")
        if not previous.exists():
            return self.load("last", device) if last.exists() else None
        try:
            return self.load("last", device)
        except BadInput as error:
            found = self.load("previous", device)
            warnings.warn(f"{error} Training goes on from the checkpoint before it.", stacklevel=2)
            os.replace(previous, last)  # a damaged file must not become the next `previous`
            return found

    def begun(self) -> bool:
        """Whether there is something to go on from."""
        return any(self.checkpoint(name).exists() for name in ("last", "previous"))

    # -- pictures --------------------------------------------------------------------------------------------------

    def thin_pictures(self) -> None:
        """Every second of the pictures along the way, once they are many; the first and the newest stay."""
        pictures = sorted((self.path / "pictures").glob("*.png"))
        if len(pictures) > MOST_PICTURES:
            for picture in pictures[1:-1:2]:
                picture.unlink(missing_ok=True)


class Spectator(Run):
    """The run folder for a process that trains along without writing: another one keeps it."""

    @contextmanager
    def claimed(self) -> Iterator[None]:
        yield

    def log(self, record: dict[str, Any]) -> None:
        pass

    def rewind_log(self, step: int) -> None:
        pass

    def save(self, state: State, name: str = "last", **notes: Any) -> None:
        pass

    def latest(self, device: torch.device | str = "cpu") -> None:
        pass

    def thin_pictures(self) -> None:
        pass


def is_content(path: Path) -> bool:
    """No folder, and not what a killed writer left."""
    return not path.is_dir() and not (path.name.startswith(".") and path.suffix == ".tmp")


def records_of(part: Path) -> Iterator[dict[str, Any]]:
    """The records of one file of a log, up to the first line that is none."""
    try:
        with open(part, encoding="utf-8", errors="replace") as file:
            for line in file:
                record = json.loads(line)
                if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                    return
                yield record
    except (FileNotFoundError, ValueError, RecursionError):
        return


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


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and notes of a checkpoint file, which must be whole and have this program's format."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except Exception as error:  # a corrupt file fails in whatever way its bytes lead to
        raise BadInput(f"{path} is truncated or no safetensors file ({error}): restore it from a copy.") from None
    if metadata.get("format") != FORMAT:
        raise BadInput(f"{path} is no checkpoint of this program (format {metadata.get('format')!r}, not {FORMAT!r}).")
    text = metadata.get("notes", "")
    if metadata.get("digest") != digest(tensors, text):
        raise BadInput(f"{path} is damaged (its checksum does not match): restore it from a copy.")
    parents = {key[:i] for key in tensors for i, letter in enumerate(key) if letter == "/"}
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict) or not parents.isdisjoint(tensors):
        raise BadInput(f"{path} is no checkpoint of this program (its tables or notes have another form).")
    return tensors, notes
