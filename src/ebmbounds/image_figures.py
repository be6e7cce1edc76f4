"""The figures of a model of images. Each function returns the figures and how they were taken."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import torch
from numpy.typing import NDArray
from torch import Tensor

from ebmbounds.data.registry import data_root, describe, image_set
from ebmbounds.data.resident import to_pixels, to_unit_range
from ebmbounds.errors import BadInput
from ebmbounds.metrics import frechet, modes, prd
from ebmbounds.metrics.anisotropy import anisotropy_index
from ebmbounds.metrics.entropy import entropy_estimates
from ebmbounds.metrics.inception import Inception, features
from ebmbounds.metrics.inception_score import NotMeasured, score_features
from ebmbounds.metrics.ood import detection
from ebmbounds.model import Model
from ebmbounds.noise import noise

Pixels = NDArray[np.uint8]
Measured = tuple[dict[str, Any], dict[str, Any]]
"""Figures by name, and for each how it was taken."""

CACHE = Path(pooch.os_cache("ebmbounds"))
"""The folder for features of real images."""
REPEATS = 5
"""Of the anisotropy index, for its spread."""
PROBES = 32
"""Hutchinson's, at each latent."""
AT_ONCE = 64 * 64 * 128
"""Pixels that a network sees at a time, which bounds the memory: 512 images of 32 x 32, 128 of 64 x 64."""


def at_once(model: Model) -> int:
    """Images a batch."""
    return max(1, AT_ONCE // int(np.prod(model.data_shape[1:])))


@torch.no_grad()
def generate(model: Model, n: int, seed: int = 0) -> tuple[Pixels, NDArray[np.float64]]:
    """n samples as uint8 (n, C, H, W), and the energies (n,) that they have before rounding."""
    pixels = np.empty((n, *model.data_shape), np.uint8)
    energies = np.empty(n)
    batch = at_once(model)
    for i, z in enumerate(model.latents(n, seed).split(batch)):
        x = model.generator(z)
        if not bool(x.isfinite().all()):
            raise BadInput("the generator gives values that are not finite: take a checkpoint from before.")
        place = slice(i * batch, i * batch + len(z))
        pixels[place], energies[place] = to_pixels(x).cpu().numpy(), model.energy(x).cpu().numpy()
    return pixels, energies


@torch.no_grad()
def image_energies(model: Model, images: Tensor | Pixels) -> NDArray[np.float64]:
    """Energies (n,) of uint8 images (n, C, H, W)."""
    batches = torch.as_tensor(images).split(at_once(model))
    energies = [model.energy(to_unit_range(batch.to(model.device))) for batch in batches]
    return torch.cat(energies).double().cpu().numpy()


def some(images: Pixels, count: int, seed: int = 0) -> Pixels:
    """`count` of the images, or all where there are fewer, drawn with the seed."""
    return images[np.random.default_rng(seed).permutation(len(images))[:count]]


def plain_fid(
    samples: Pixels, real: Pixels, network: Inception, *, device: torch.device | str = "cpu", half: bool = False
) -> float:
    """FID alone, of samples against real images, both uint8 (n, C, H, W). `half`, for use along the way: the samples'
    features in half precision, which is faster; without effect on a CPU."""
    reference = frechet.reference(real, network, cache=CACHE, device=device)
    with torch.autocast("cuda", torch.float16, enabled=half and torch.device(device).type == "cuda"):
        found = features(samples, network, device=device)
    return frechet.frechet_distance(frechet.statistics(found), reference.statistics)


def inception_figures(
    samples: Pixels,
    real: Pixels,
    network: Inception,
    *,
    cache: Path = CACHE,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: bool = False,
) -> Measured:
    """FID, KID, Inception Score, F_8 and F_1/8 of samples against real images, both uint8 (n, C, H, W)."""
    reference = frechet.reference(real, network, cache=cache, device=device, progress=progress)
    found = features(samples, network, device=device, progress=progress)
    kid, kid_std = frechet.kernel_distance(found, reference.features, seed=seed)
    score = score_features(found, network)
    equal = min(len(found), len(reference.features))  # precision and recall compare sets of one size
    f8, f1_8 = prd.f8_and_f1_8(found[:equal], reference.features[:equal], seed=seed)
    figures = {
        "fid": frechet.frechet_distance(frechet.statistics(found), reference.statistics),
        "kid": kid,
        "inception_score": str(score) if isinstance(score, NotMeasured) else score.mean,
        "f8": f8,
        "f1_8": f1_8,
    }
    subset = min(1000, len(found), len(reference.features))
    if subset == 1000:  # of fewer images every subset is nearly the same
        figures["kid_std"] = kid_std
    how = {
        "fid": {
            "samples": len(samples),
            "real": len(real),
            "network": "Inception 2015-12-05",
            "network_sha256": network.sha256,
            "resize": "TensorFlow 1 bilinear to 299x299, single precision",
        },
        "kid": f"mean over 100 subsets of {subset}, kernel (x.y/d + 1)^3, the same features; kid_std over the subsets",
        "inception_score": "one split of the same features, classifier without its bias",
        "f8": f"{equal} samples and {equal} real images, 20 clusters, 10 runs, 1001 angles, the same features",
        "f1_8": "as f8",
    }
    return figures, how


def mode_figures(
    samples: Pixels,
    labels: NDArray[np.integer],
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: bool = False,
) -> Measured:
    """Modes of StackedMNIST found by samples (n, 3, 28, 28), against the frequencies in the data's labels (m,)."""
    counts = modes.mode_counts(modes.image_modes(samples, device=device, progress=progress))
    found = modes.count_modes(counts, modes.data_frequencies(labels), seed=seed)
    figures = asdict(found)
    n = figures.pop("samples")
    how = {
        "modes": f"of 1000, those with at least one of {n} samples, digits read by the package's classifier",
        "kl": f"nats, from the modes of {n} samples to the data's mode frequencies, products of its digits'; "
        "kl_floor: the mean of 100 perfect samplers",
        "kl_uniform": "the same to 1/1000 each",
    }
    return figures, how


def anisotropy_figures(model: Model, latents: int, *, seed: int = 0) -> Measured:
    """The anisotropy index of the generator at `latents` latents in each of a few repeats."""
    chunk = max(1, at_once(model) // (4 * latents))  # each column carries its latents through the generator
    index = anisotropy_index(
        model.generator,
        model.latent_dim,
        samples=latents,
        repeats=REPEATS,
        chunk=chunk,
        seed=seed,
        device=model.device,
    )
    figures = {"anisotropy": index.mean, "anisotropy_spread": index.spread}
    how = f"mean of C_z over {latents} latents, {REPEATS} repeats (seed {seed}), unbiased std, batch norm in eval mode"
    return figures, {"anisotropy": how}


def entropy_figures(model: Model, latents: int, lobpcg_steps: int, *, seed: int = 0) -> Measured:
    """The generator's entropy in nats by every estimator, in double precision on the same latents."""
    source, d = noise(seed, device=model.device), model.latent_dim
    z, start = (source(f"entropy {name}").normal(latents, d).double() for name in ("z", "start"))
    probes = source("entropy probes").normal(latents, PROBES, d).double().transpose(0, 1)
    g = model.generator_network.double().frozen
    few = max(1, at_once(model) // 128)  # the whole Jacobian at a latent takes what many images take
    parts = [
        (len(part), entropy_estimates(g, part, v, probe, lobpcg_steps))
        for part, v, probe in zip(z.split(few), start.split(few), probes.split(few, 1), strict=True)
    ]
    figures = {name: sum(n * part[name] for n, part in parts) / latents for name in parts[0][1]}
    how = (
        f"H[p_g] in nats on the generator's manifold at {latents} latents (seed {seed}), the same for every estimator; "
        f"bound_few_steps: {lobpcg_steps} LOBPCG steps; hutchinson: {PROBES} probes a latent"
    )
    return {"entropy": figures}, {"entropy": how}


def ood_figures(name: str, test: NDArray[np.float64], other: NDArray[np.float64], *, seed: int = 0) -> Measured:
    """How well energies (m,) of the other set of that name stand out against energies (n,) of the test set."""
    figures = asdict(detection(test, other, seed=seed))
    count = figures.pop("count")
    return {name: figures}, {name: {"images": count, "seed": seed, "positive": "OOD", "score": "energy"}}


def as_published(name: str, root: Path | str | None) -> bool | None:
    """Whether the files of a data set are those that its site gives out; None where no sums are known."""
    sums = {Path(remote.path).name: remote.sha256 for remote in image_set(name).remotes if not remote.members}
    files = [path for path in describe(name, data_root(root)).present if path.name in sums]
    return all(pooch.file_hash(str(path)) == sums[path.name] for path in files) if files else None
