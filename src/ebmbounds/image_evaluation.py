"""Evaluation of a model of images: what fits the data set, each figure with its protocol, and pictures.

A figure that cannot be taken, for want of a data set or of the Inception network, says so in its place
("not measured: ...") and the rest goes on.
"""

import functools
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from ebmbounds.data.arrays import read_array
from ebmbounds.data.folder import image_files, read_images
from ebmbounds.data.registry import data_root, image_set, load_images
from ebmbounds.data.resident import to_pixels
from ebmbounds.errors import BadInput
from ebmbounds.evaluated import write_energies
from ebmbounds.image_figures import (
    CACHE,
    Measured,
    Pixels,
    anisotropy_figures,
    as_published,
    entropy_figures,
    generate,
    image_energies,
    inception_figures,
    mode_figures,
    ood_figures,
    plain_fid,
    some,
)
from ebmbounds.image_pictures import (
    energy_histogram_picture,
    energy_order_picture,
    interpolation_picture,
    sample_picture,
)
from ebmbounds.metrics import modes
from ebmbounds.metrics.frechet import fid_protocol
from ebmbounds.metrics.inception import load_network
from ebmbounds.metrics.inception_score import NotMeasured
from ebmbounds.model import Model
from ebmbounds.run import Run
from ebmbounds.step import Step

if TYPE_CHECKING:
    from ebmbounds.session import Session

OOD_SETS = {"cifar10": ("svhn", "cifar100")}
"""Sets that a model of another should find unlikely, as in the paper."""
ENERGIES = 10_000
"""At most so many images of a set have their energies taken."""
ENTROPY_LATENTS = 16
"""Latents at which entropies are taken: each needs the whole Jacobian."""
FEWEST = 20
"""Samples that F_8 needs for its clusters."""
GRAY = np.array([0.299, 0.587, 0.114])
"""Luminance of red, green and blue (ITU-R 601)."""


def watch_images(model: Model, step: Step, run: Run, iteration: int) -> dict[str, float]:
    """A picture at a checkpoint, and the figures that the run's settings `watch_fid` and `watch_entropy` ask for."""
    config = run.config
    sample_picture(run.path / f"pictures/step_{iteration:07d}.png", model)
    figures: dict[str, float] = {}
    if latents := config.get("watch_entropy"):
        estimates, _ = entropy_figures(model, latents, getattr(step.objective, "lobpcg_steps", 2))
        figures |= {f"entropy_{name}": value for name, value in estimates["entropy"].items()}
    if count := config.get("watch_fid"):
        try:
            real = load_images(
                config["dataset"], "test", data_root(config["data_root"]), size=config["image_size"] or None
            ).images
            figures |= quick_fids(model, real, count)
        except BadInput as error:  # hours of training must not end for a figure
            warnings.warn(f"no FID was taken at step {iteration}: {error}", stacklevel=2)
    return figures


def quick_fids(model: Model, real: Pixels, count: int) -> dict[str, float]:
    """FID of `count` samples, with features in half precision on a GPU; that of the last weights too where the model is
    their moving average."""
    network = load_network()
    models = {"fid": model} | ({"fid_unaveraged": model.unaveraged} if model.unaveraged else {})
    return {
        name: plain_fid(generate(each, count)[0], real, network, device=model.device, half=True)
        for name, each in models.items()
    }


def evaluate_images(
    run: Run,
    session: "Session",
    model: Model,
    *,
    root: Path | str | None = None,
    fid_samples: int | None = None,
    protocol: str = "samples10k-test",
    inception: Path | str | None = None,
    ood: Sequence[str] | None = None,
    latents: int = 64,
    seed: int = 0,
    cache: Path = CACHE,
    progress: bool = False,
) -> dict[str, Any]:
    """Figures and their `protocol`; pictures go into the run folder.

    root: the data folder, by default that of the run. fid_samples: fewer than the protocol's, then against as many
    real images, for a quick look. inception: the network's file. ood: other sets, by default the paper's. latents:
    those of each repeat of the anisotropy. cache: the folder for features of real images, kept for the next time.
    """
    dataset = session.experiment.dataset
    folder = data_root(root or run.config.get("data_root"))
    fid = fid_protocol(protocol)
    count = fid.samples if fid_samples is None else fid_samples
    if count < FEWEST:
        raise BadInput(f"{count} samples are too few for FID and F8: take {FEWEST} or more.")
    others = OOD_SETS.get(dataset, ()) if ood is None else ood
    for name in others:
        image_set(name)  # what is misspelt should not wait for its turn
    network = load_network(Path(inception)) if inception else None
    results = Results(progress)

    @functools.cache
    def real_images(split: str) -> Pixels:
        size = session.experiment.data.image_size or None
        return load_images(dataset, split, folder, size=size, progress=progress).images

    with results.part("samples"):
        samples, energies = generate(model, modes.SAMPLES if dataset == "stackedmnist" else count, seed)
        sample_picture(run.path / "samples.png", model, seed)
        interpolation_picture(run.path / "interpolations.png", model, seed)
        energy_order_picture(run.path / "sorted_by_energy.png", samples, energies)

    if dataset == "stackedmnist":
        with results.part("modes", "kl", "kl_uniform"):
            labels = load_images(dataset, "train", folder).labels
            assert labels is not None  # digits have labels
            results.add(mode_figures(samples, labels, device=model.device, seed=seed, progress=progress))
    elif model.data_shape[0] == 3:  # Inception knows photographs
        with results.part("fid", "kid", "inception_score", "f8", "f1_8"):
            real = real_images(fid.split)
            reduced = count < fid.samples
            reference = some(real, count, seed) if reduced else real
            inception_network = network or load_network(progress=progress)
            figures, how = inception_figures(
                samples,
                reference,
                inception_network,
                cache=cache,
                device=model.device,
                seed=seed,
                progress=progress,
            )
            stated = f"{protocol}, reduced: compares with no other score" if reduced else protocol
            if model.unaveraged:
                last, _ = generate(model.unaveraged, count, seed)
                figures["fid_unaveraged"] = plain_fid(last, reference, inception_network, device=model.device)
            how["fid"] |= {"protocol": stated, "reference": f"{dataset} {fid.split}", "seed": seed}
            results.add((figures, how))

    with results.part("anisotropy"):
        results.add(anisotropy_figures(model, latents, seed=seed))
    with results.part("entropy"):
        steps = getattr(session.experiment.objective, "lobpcg_steps", 2)
        results.add(entropy_figures(model, min(latents, ENTROPY_LATENTS), steps, seed=seed))

    energy = Results(progress)
    by_set: dict[str, NDArray[np.float64]] = {}
    with energy.part("train"):
        by_set["train"] = image_energies(model, some(real_images("train"), ENERGIES, seed))
    with energy.part("test"):
        by_set["test"] = image_energies(model, some(real_images("test"), ENERGIES, seed))
    by_set["samples"] = energies
    detected = Results(progress)
    for name in others:
        with detected.part(name):
            by_set[name] = image_energies(model, some(fitting_images(name, folder, model), ENERGIES, seed))
            if "test" not in by_set:
                raise BadInput(f"the test set of {dataset}, against which it is told apart, is missing")
            detected.add(ood_figures(name, by_set["test"], by_set[name], seed=seed))
            detected.protocol[name]["as_published"] = as_published(name, folder)
    energy_histogram_picture(run.path / "energy_histograms.png", by_set)
    write_energies(run, by_set)
    energy.figures |= {name: float(values.mean()) for name, values in by_set.items()}
    results.figures |= {"energy": energy.figures} | ({"ood": detected.figures} if others else {})
    results.protocol |= {
        "energy": f"mean over at most {ENERGIES} images of each set (seed {seed}); samples before rounding",
        "ood": detected.protocol,
        "samples": {"count": len(samples), "seed": seed, "batch_norm": "eval mode", "interpolations": "spherical"},
    }
    results.seconds["energy"] = round(sum(energy.seconds.values()) + sum(detected.seconds.values()), 2)
    return results.figures | {"protocol": results.protocol, "timings": results.seconds}


def fitting_images(name: str, root: Path, model: Model) -> Pixels:
    """The test images of a data set, if the model takes them."""
    images = load_images(name, "test", root).images
    if images.shape[1:] != model.data_shape:
        raise BadInput(f"{name} has images of shape {images.shape[1:]}, and the model takes {model.data_shape}")
    return images


class Results:
    """Figures, how each was taken, and how long each part took."""

    def __init__(self, progress: bool) -> None:
        self.figures: dict[str, Any] = {}
        self.protocol: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.console = Console(stderr=True, quiet=not progress)

    def add(self, measured: Measured) -> None:
        figures, how = measured
        self.figures |= figures
        self.protocol |= how

    @contextmanager
    def part(self, *names: str) -> Iterator[None]:
        """Around the work for the figures of these names: where it fails for want of something, they say so."""
        self.console.print(f"evaluating: {', '.join(names)}", style="dim")
        start = time.perf_counter()
        try:
            yield
        except BadInput as error:
            self.figures |= {name: str(NotMeasured(str(error))) for name in names}
        self.seconds[names[0]] = round(time.perf_counter() - start, 2)


def read_user_images(path: Path, data_shape: tuple[int, ...]) -> tuple[list[str], Pixels]:
    """A user's images as the model takes them: their names, and uint8 (n, *data_shape).

    `path` is a folder of images or one image (the middle square, resized; gray where the model is), or a .npy or
    .npz array (n, *data_shape) of uint8, or of floats in [-1, 1].
    """
    channels, height, width = data_shape
    if path.is_dir():
        files = image_files(path)
        names = [file.relative_to(path).as_posix() for file in files]
    elif not path.is_file():
        raise BadInput(f"{path} does not exist: name a folder of images, an image, or a .npy or .npz array.")
    elif path.suffix.lower() in (".npy", ".npz"):
        return _array_images(path, data_shape)
    else:
        files, names = [path], [path.name]
    if height != width:
        raise BadInput(f"the model takes images of {height}x{width}: give them as an array in a .npy file.")
    images = read_images(files, height)
    if channels == 1:
        images = (images.transpose(0, 2, 3, 1) @ GRAY).round().astype(np.uint8)[:, None]
    return names, images


def _array_images(path: Path, data_shape: tuple[int, ...]) -> tuple[list[str], Pixels]:
    images = read_array(path)
    if images.shape[1:] != data_shape:
        expected = ", ".join(map(str, data_shape))
        raise BadInput(f"{path} holds an array of shape {images.shape}, and the model takes (n, {expected}).")
    low, high = images.min(), images.max()
    if images.dtype.kind in "iu":
        if low < 0 or high > 255:
            raise BadInput(f"{path} holds whole numbers from {low} to {high}: pixels run from 0 to 255.")
        pixels = images.astype(np.uint8)
    elif images.dtype.kind == "f" and -1 <= low < 0 and high <= 1:
        pixels = to_pixels(torch.from_numpy(images)).numpy()
    else:  # values from 0 up are most likely a scale of [0, 1], which would give other energies without a word
        raise BadInput(
            f"{path} holds values of type {images.dtype} from {low:g} to {high:g}: give uint8, or floats from -1 to 1."
        )
    return [str(i) for i in range(len(pixels))], pixels
