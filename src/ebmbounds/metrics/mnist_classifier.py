"""The small network that reads the digits of StackedMNIST, and the command that made its weights:

python -m ebmbounds.metrics.mnist_classifier --data DIR --out FILE
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ebmbounds.errors import BadInput

WEIGHTS = Path(__file__).with_suffix(".safetensors")
"""The weights shipped with the package, in half precision."""


def digit_network() -> nn.Sequential:
    """Two convolutions and two linear layers: (n, 1, 28, 28) in [-1, 1] to ten logits; 184,682 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def load_digit_network(weights: Path = WEIGHTS) -> nn.Sequential:
    """The trained network in eval mode and single precision."""
    network = digit_network()
    network.load_state_dict(load_file(weights))
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def classify_digits(
    images: ArrayLike | Tensor,
    network: nn.Module | None = None,
    *,
    batch_size: int = 250,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> NDArray[np.int64]:
    """The digit in every channel of every image: uint8 (n, c, 28, 28) to int64 (n, c).

    The shipped network reads them unless another is given.
    """
    pixels = torch.as_tensor(images)
    if pixels.ndim != 4 or pixels.shape[2:] != (28, 28) or pixels.dtype != torch.uint8:
        raise BadInput(
            f"digits of shape {tuple(pixels.shape)} and type {pixels.dtype} cannot be read: "
            "give uint8 images of shape (n, channels, 28, 28)."
        )
    network = (network or load_digit_network()).to(device)
    digits = pixels.flatten(0, 1).unsqueeze(1)
    batches = track(
        digits.split(batch_size),
        "reading digits",
        console=Console(stderr=True),
        disable=not progress,
        transient=True,
    )
    labels = [network(_scaled(batch.to(device))).argmax(1).cpu() for batch in batches]
    return torch.cat(labels).unflatten(0, pixels.shape[:2]).numpy()


def train_digit_network(
    images: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    epochs: int = 15,
    batch_size: int = 128,
    learning_rate: float = 2e-3,
    seed: int = 0,
    progress: bool = False,
) -> nn.Sequential:
    """Train on uint8 (n, 1, 28, 28) and labels (n,) on the CPU, in eval mode when done.

    Adam under one cycle of the learning rate; every batch is moved by up to two pixels, since a generator
    need not put its digits where MNIST does. The same seed gives the same weights on the same machine.
    """
    x, y = torch.as_tensor(images), torch.as_tensor(labels).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = digit_network()
        optimizer = torch.optim.Adam(network.parameters(), learning_rate)
        steps = epochs * (len(x) // batch_size)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
        for _ in track(range(epochs), "training", disable=not progress):
            # Batch norm wants whole batches: the few images left over take their turn in another epoch.
            for batch in torch.randperm(len(x)).split(batch_size)[: len(x) // batch_size]:
                loss = F.cross_entropy(network(_shifted(_scaled(x[batch]))), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return network.eval().requires_grad_(False)


def _scaled(pixels: Tensor) -> Tensor:
    """uint8 to [-1, 1]."""
    return pixels.float() / 127.5 - 1


def _shifted(images: Tensor) -> Tensor:
    """Move the whole batch by up to two pixels each way, black (-1) coming in at the border."""
    down, right = torch.randint(0, 5, (2,)).tolist()
    return F.pad(images, (2, 2, 2, 2), value=-1.0)[:, :, down : down + 28, right : right + 28]


def main() -> None:
    """Train on MNIST, write the weights in half precision, and say their accuracy on the test set."""
    from ebmbounds.data.registry import load_images  # only training needs the data

    parser = argparse.ArgumentParser(prog="python -m ebmbounds.metrics.mnist_classifier", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds MNIST")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="file for the weights")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    train, test = (load_images("mnist", split, arguments.data) for split in ("train", "test"))
    assert train.labels is not None and test.labels is not None  # MNIST has labels
    network = train_digit_network(train.images, train.labels, seed=arguments.seed, progress=True)
    halves = {n: t.half() if t.is_floating_point() else t for n, t in network.state_dict().items()}
    save_file(halves, arguments.out)

    read = classify_digits(test.images, load_digit_network(arguments.out))[:, 0]
    accuracy = float((read == test.labels).mean())
    Console().print(f"{arguments.out}: {accuracy:.2%} on the {len(read):,} test images")


if __name__ == "__main__":
    main()
