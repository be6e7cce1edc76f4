"""What strangers' bytes can reach: every reader, with good files to start from. A target may read its file or raise
`BadInput` with one sentence; anything else is a finding. An audit hook makes a finding of code that is run, of a
process or connection that is opened, and of a write outside the scratch folder."""

import gzip
import io
import json
import os
import pickle
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.io import savemat

from ebmbounds import launch
from ebmbounds.cli.base import parse
from ebmbounds.data import arrays, cifar, download, folder, idx, svhn
from ebmbounds.errors import BadInput
from ebmbounds.experiments import experiment
from ebmbounds.run import Run

IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a disk would be waited for in every case
TEMPORARY = tempfile.TemporaryDirectory(prefix="ebmbounds-fuzz-", dir=IN_MEMORY)  # removed at the end of the process
SCRATCH = Path(TEMPORARY.name)
PIXELS = np.random.default_rng(0).integers(256, size=(2, 3072), dtype=np.uint8)
ROWS = np.linspace(-1, 1, 6).reshape(3, 2)
SMALL = {"compile": "off", "steps": 1, "width": 4, "depth": 1, "batch_size": 4}
NAME = "moons/ebm-bb@paper"


class Finding(AssertionError):
    """Something that no input may lead to."""


@dataclass(frozen=True)
class Target:
    seeds: list[bytes]
    act: Callable[[bytes], object]

    def __call__(self, data: bytes) -> bool:
        """Whether the input was accepted; raises where it led to anything but an answer or one sentence."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                watched.append(True)
                try:
                    self.act(data)
                finally:
                    watched.pop()
        except BadInput as error:
            if "\n" in str(error).strip() or not str(error):
                raise Finding(f"no sentence: {error}") from error
            return False
        return True


# -- the watch ---------------------------------------------------------------------------------------------------------

watched: list[bool] = []
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")


def hook(event: str, args: tuple) -> None:
    if not watched:
        return
    if event in FORBIDDEN:
        raise Finding(f"{event} {args}")
    writes = event == "open" and isinstance(args[0], str) and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in CHANGES:
        name, folder = os.fsdecode(args[0]), args[-1] if isinstance(args[-1], int) else -1
        at = "" if event == "open" or folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
        path = Path(os.path.realpath(os.path.join(at, name)))
        bytecode = path.suffix in (".pyc",) or "__pycache__" in path.parts  # of a module that is imported late
        if not path.is_relative_to(SCRATCH.resolve()) and path != Path(os.devnull) and not bytecode:
            raise Finding(f"{event} {path} lies outside of the target")


sys.addaudithook(hook)


# -- the targets -------------------------------------------------------------------------------------------------------


def file_reader(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def act(data: bytes) -> object:
        path = SCRATCH / name
        path.write_bytes(data)
        return read(path)

    return act


def packed(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def archive(members: dict[str, bytes]) -> bytes:
    def write(buffer: io.BytesIO) -> None:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))

    return packed(write)


def unpack(path: Path) -> None:
    target = SCRATCH / "unpacked"
    target.mkdir(exist_ok=True)
    download.unpack(path, target, ("set/batch",))


def small_run() -> Run:
    return launch.train(NAME, SMALL, run=SCRATCH / "run", device="cpu", progress=False)


def config_of(data: bytes) -> object:
    run = Run(SCRATCH / "config")
    run.path.mkdir(exist_ok=True)
    (run.path / "config.json").write_bytes(data)
    return launch.experiment_of(Run.open(run.path).config)


def settings_of(data: bytes) -> object:
    name, *overrides = data.decode("utf-8", "replace").split("\n")
    return experiment(name, parse(overrides)).config()


def model_of(data: bytes) -> object:
    """A run folder of which one file, by the first byte, is the stranger's."""
    path = SCRATCH / "run" / FILES[data[0] % len(FILES) if data else 0]
    good = path.read_bytes()
    try:
        path.write_bytes(data[1:])
        return launch.load(SCRATCH / "run"), list(Run(SCRATCH / "run").records())
    finally:
        path.write_bytes(good)


FILES = ("config.json", "checkpoints/last.safetensors", "log.jsonl")
RUN = small_run()
CONFIG = (RUN.path / "config.json").read_bytes()
CHECKPOINT = RUN.checkpoint().read_bytes()
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4]) + bytes(32)
BATCH = {b"data": PIXELS, b"labels": [3, 1]}
MAT = {"X": PIXELS.reshape(2, 32, 32, 3).transpose(1, 2, 3, 0), "y": np.array([[1], [2]])}
IMAGE = Image.fromarray(PIXELS[0].reshape(32, 32, 3)[:8, :8])


def load_checkpoint(path: Path) -> object:
    run = Run(SCRATCH / "loaded")
    (run.path / "checkpoints").mkdir(parents=True, exist_ok=True)
    os.replace(path, run.checkpoint())
    return run.load()


TARGETS = {
    "idx": Target([IDX, gzip.compress(IDX, mtime=0)], file_reader(lambda path: idx.read_idx(path, 3), "idx")),
    "pickle": Target(
        [pickle.dumps(BATCH, protocol) for protocol in (2, 4)],
        file_reader(lambda path: cifar.read_batch(path, "labels"), "batch"),
    ),
    "mat": Target(
        [packed(lambda buffer, c=c: savemat(buffer, MAT, do_compression=c)) for c in (False, True)],
        file_reader(svhn.read_mat, "set.mat"),
    ),
    "image": Target(
        [packed(lambda buffer, kind=kind: IMAGE.save(buffer, kind)) for kind in folder.FORMATS],
        file_reader(lambda path: folder.read_images([path], 32), "image.png"),
    ),
    "csv": Target(
        [b"x,y\n1,2\n3,4e-1\n", b"1;2\n", b"\xef\xbb\xbf0.5,-1\r\n2,3\r\n"], file_reader(arrays.read_array, "x.csv")
    ),
    "npy": Target(
        [packed(lambda buffer, kind=kind: np.save(buffer, ROWS.astype(kind))) for kind in ("f8", "f4", "i8", "u1")],
        file_reader(arrays.read_array, "x.npy"),
    ),
    "npz": Target(
        [packed(lambda buffer, save=save: save(buffer, x=ROWS)) for save in (np.savez, np.savez_compressed)],
        file_reader(arrays.read_array, "x.npz"),
    ),
    "archive": Target([archive({"set/batch": b"content", "other": b""})], file_reader(unpack, "set.tar.gz")),
    "config": Target([CONFIG, json.dumps({"dataset": "moons", "seed": 1}).encode()], config_of),
    "overrides": Target(
        [b"25gaussians/ebm-bb@quick\nsteps=10\nlr_energy=1e-3", b"cifar10/wgan-0gp\nflip=true\nnetwork=resnet"],
        settings_of,
    ),
    "checkpoint": Target([CHECKPOINT], file_reader(load_checkpoint, "checkpoint")),
    "run": Target([b"\0" + CONFIG, b"\1" + CHECKPOINT, b"\2" + b'{"step": 1, "loss": 0.5}\n'], model_of),
}

torch.set_num_threads(1)
