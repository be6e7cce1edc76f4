"""How far above s_1 the LOBPCG estimate is after a few steps: prints the Markdown table of docs/lobpcg.md.

    python benchmarks/lobpcg_accuracy.py

float64, seed 0, medians over 32 latents. The generators are a random MLP and a random convolutional network with
PyTorch's own initialisation, their latents stretched by factors from 1 to `stretch` to worsen the condition of J.
"""

import torch
from torch import Tensor, nn

from ebmbounds import spectra

DIMENSIONS = (2, 8, 32, 128)
STRETCHES = (1, 10, 100)
STEPS = (1, 2, 4, 8, 16, 60)
SAMPLES = 32
SEED = 0


def mlp(d: int) -> nn.Sequential:
    width = max(100, 2 * d)
    return nn.Sequential(nn.Linear(d, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 4 * d))


def convolutional(d: int) -> nn.Sequential:
    """A linear layer to 4x4, two transposed convolutions to 16x16, a convolution to 3 channels, tanh."""
    return nn.Sequential(
        nn.Linear(d, 32 * 16),
        nn.Unflatten(1, (32, 4, 4)),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 3, 3, 1, 1),
        nn.Tanh(),
    )


def row(name: str, d: int, net: nn.Sequential, stretch: int) -> str:
    factors = stretch ** torch.linspace(0, 1, d)

    def g(z: Tensor) -> Tensor:
        return net(z * factors)

    z, start = torch.randn(2, SAMPLES, d)
    s = spectra.singular_values(g, z).detach()
    condition, limit = s[:, -1] / s[:, 0], s.log().mean(1).exp() / s[:, 0]
    ratios = [spectra.smallest_singular_value(g, z, k, start)[0].detach() / s[:, 0] for k in STEPS]
    cells = [f"{values.quantile(0.5).item():#.4g}" for values in (condition, limit, *ratios)]
    return f"| {name} | {d} | {' | '.join(cells)} |"


def main() -> None:
    torch.set_default_dtype(torch.float64)
    print(f"| generator | d | cond(J) | limit | {' | '.join(map(str, STEPS))} |")
    print("|---" * (4 + len(STEPS)) + "|")
    for kind in (mlp, convolutional):
        for stretch in STRETCHES:
            for d in DIMENSIONS:
                torch.manual_seed(SEED)
                print(row(f"{kind.__name__}, {stretch}", d, kind(d), stretch))


if __name__ == "__main__":
    main()
