"""What can be asked of a trained pair: samples of a seed, a walk between two of them, and a score of your own data."""

import base64
import io
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ebmbounds.data.arrays import read_array
from ebmbounds.data.folder import FORMATS
from ebmbounds.data.registry import data_root, load_images
from ebmbounds.data.resident import to_pixels, to_unit_range
from ebmbounds.data.toy import Toy
from ebmbounds.errors import BadInput
from ebmbounds.evaluated import DensityMap, read_density, read_energies
from ebmbounds.image_evaluation import read_user_images
from ebmbounds.image_figures import image_energies, some
from ebmbounds.image_pictures import spherical
from ebmbounds.launch import load
from ebmbounds.metrics.toy import grid_energies, normalise
from ebmbounds.model import Model
from ebmbounds.noise import noise
from ebmbounds.pretrained import is_pretrained, opened
from ebmbounds.run import Run, read_json
from ebmbounds.session import Session

SHOWN = {"images": 64, "plane": 500}
"""Samples drawn at a time."""
STOPS = {"images": 10, "plane": 60}
"""On a walk between two latents."""
POOL = 256
"""Samples among which the nearest ones are looked for."""
NEAREST = 6
TEST_IMAGES = 500
"""Of the test set, whose energies are taken where `evaluate` has not done so."""
MOST_ROWS = 1000
"""Of an uploaded CSV file."""

Shown = dict[str, Any]
"""A sample for the page: its energy, and `image`, an address, or `point`, two coordinates."""


@dataclass
class Explorer:
    """A model and what was computed of it so far. One question at a time: the networks take every core."""

    name: str
    session: Session
    model: Model
    run: Run
    data: Path | str | None = None
    lock: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def open(cls, name: Path | str, checkpoint: str, device: str, data: Path | str | None) -> "Explorer":
        """Of a run folder, or of a pretrained model."""
        run = opened(name)
        session, model = load(run, checkpoint, device)
        title = str(name) if is_pretrained(name) else run.path.resolve().name
        return cls(title, session, model, run, data or run.config.get("data_root"))

    @property
    def kind(self) -> str:
        return "images" if len(self.model.data_shape) == 3 else "plane"

    def about(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "experiment": self.session.experiment.name,
            "iterations": self.model.iterations,
            "latent_dim": self.model.latent_dim,
            "data_shape": self.model.data_shape,
            "shown": SHOWN[self.kind],
            "pool": POOL,
        }

    @cached_property
    def _evaluated(self) -> bool:
        """Whether `evaluate` has left arrays of this very checkpoint."""
        metrics = self.run.path / "metrics.json"
        return metrics.is_file() and read_json(metrics).get("iterations") == self.model.iterations

    # -- samples -----------------------------------------------------------------------------------------------------

    def samples(self, seed: int, by_energy: bool = False) -> list[Shown]:
        """Samples of a seed, in the order in which they are drawn, or the lowest energy first. `index` is where a
        sample stands in the first order: `walk` wants it."""
        with self.lock:
            x = self.model.sample(SHOWN[self.kind], seed)
            shown = self._shown(x)
        for index, each in enumerate(shown):
            each["index"] = index
        return sorted(shown, key=lambda each: each["energy"]) if by_energy else shown

    @torch.no_grad()
    def walk(self, seed: int, start: int, end: int) -> list[Shown]:
        """From one sample of a seed to another along a great circle of latents."""
        with self.lock:
            z = self.model.latents(SHOWN[self.kind], seed)
            t = torch.linspace(0, 1, STOPS[self.kind], device=z.device, dtype=z.dtype)
            return self._shown(self.model.generator(spherical(z[start], z[end], t)))

    def _shown(self, x: Tensor) -> list[Shown]:
        energies = self.model.energies(x).tolist()
        if self.kind == "plane":
            return [{"energy": e, "point": point} for e, point in zip(energies, x.tolist(), strict=True)]
        pixels = to_pixels(x.float()).cpu().numpy()
        return [{"energy": e, "image": image_address(image)} for e, image in zip(energies, pixels, strict=True)]

    def density(self) -> DensityMap | None:
        """On data in the plane, the map of the log-density, normalised by quadrature."""
        with self.lock:
            return self._density

    @cached_property
    def _density(self) -> DensityMap | None:
        toy = self.session.step.data
        if not isinstance(toy, Toy):
            return None
        if self._evaluated and (found := read_density(self.run)):
            return found
        energies = grid_energies(self.model.energy, toy)
        data, samples = toy.draw(noise(1), 1000), self.model.sample(SHOWN["plane"])
        return DensityMap.of(toy, energies, normalise(energies, toy).log_partition, data, samples)

    # -- your own data -----------------------------------------------------------------------------------------------

    def score(self, content: bytes) -> list[Shown]:
        """Of an uploaded image, or of each row of a CSV: its energy, the percentage of the test set that lies below it
        (None where there is no test set at hand), and the nearest samples."""
        x = self._image(content) if self.kind == "images" else self._rows(content)
        with self.lock:
            found = self._shown(x)
            pool, test = self._pool, self._test_energies
            nearest = torch.cdist(x.flatten(1).double(), pool.flatten(1).double()).topk(NEAREST, largest=False).indices
            near = [self._shown(pool[index]) for index in nearest] if len(x) == 1 else [[] for _ in x]
        for each, others in zip(found, near, strict=True):
            below = None if test is None else 100 * float((test < each["energy"]).mean())
            each |= {"percentile": below, "nearest": others}
        return found

    def _image(self, content: bytes) -> Tensor:
        try:
            _, pixels = self._from_file(content, "upload", lambda path: read_user_images(path, self.model.data_shape))
        except BadInput:
            raise BadInput(f"your file is no image that can be read: give a {', '.join(FORMATS)}.") from None
        return to_unit_range(torch.from_numpy(pixels)).to(self.model.device)

    def _rows(self, content: bytes) -> Tensor:
        rows = self._from_file(content, "upload.csv", read_array)
        if rows.shape[1:] != self.model.data_shape:
            raise BadInput(f"your file has rows of {rows.shape[1]} numbers, and the model takes 2.")
        if len(rows) > MOST_ROWS:
            raise BadInput(f"your file has {len(rows)} rows: give at most {MOST_ROWS}, or use `ebmbounds score`.")
        return torch.as_tensor(rows, dtype=torch.float32, device=self.model.device)

    @staticmethod
    def _from_file(content: bytes, name: str, read: Any) -> Any:
        """Through the readers of files, which are made for hostile ones. The name is ours, never the uploader's."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            try:
                return read(path)
            except BadInput as error:
                raise BadInput(str(error).replace(str(path), "your file")) from None

    @cached_property
    def _pool(self) -> Tensor:
        return self.model.sample(POOL, seed=1)

    @cached_property
    def _test_energies(self) -> NDArray[np.floating] | None:
        if self._evaluated and (test := read_energies(self.run).get("test")) is not None:
            return test
        data = self.session.step.data
        if isinstance(data, Toy):
            return self.model.energies(data.draw(noise(1), 10_000)).cpu().numpy()
        settings = self.session.experiment
        try:
            root, size = data_root(self.data), settings.data.image_size or None
            images = load_images(settings.dataset, "test", root, size=size).images
        except BadInput:
            return None
        return image_energies(self.model, some(images, TEST_IMAGES))


def image_address(pixels: NDArray[np.uint8]) -> str:
    """An image (C, H, W) as the address of a PNG."""
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    content = io.BytesIO()
    picture.save(content, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
