"""How far above s_1 the LOBPCG estimate is after a few steps: prints the Markdown tables of docs/lobpcg.md.

    python benchmarks/lobpcg_accuracy.py

float64, seed 0, medians over 32 latents, by the paper's method and with a preconditioner. The generators are a random
MLP and a random convolutional network with PyTorch's own initialisation, their latents stretched by factors from 1 to
`stretch` to worsen the condition of J. Then the worst of many samples where that condition is at most 3.
"""

from itertools import product

import torch
from torch import Tensor, nn

from ebmbounds import spectra

DIMENSIONS = (2, 8, 32, 128)
STRETCHES = (1, 10, 100)
STEPS = (1, 2, 4, 8, 16, 60)
PRECONDITIONER_STEPS = (0, 4)
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


def row(name: str, d: int, net: nn.Sequential, stretch: int, preconditioner_steps: int = 0) -> str:
    factors = stretch ** torch.linspace(0, 1, d)

    def g(z: Tensor) -> Tensor:
        return net(z * factors)

    z, start = torch.randn(2, SAMPLES, d)
    s = spectra.singular_values(g, z).detach()
    condition, limit = s[:, -1] / s[:, 0], s.log().mean(1).exp() / s[:, 0]
    found = [spectra.smallest_singular_value(g, z, k, start, preconditioner_steps)[0].detach() for k in STEPS]
    ratios = [estimate / s[:, 0] for estimate in found]
    cells = [f"{values.quantile(0.5).item():#.4g}" for values in (condition, limit, *ratios)]
    return f"| {name} | {d} | {' | '.join(cells)} |"


def isometric(kind: str, d: int) -> nn.Sequential:
    """Isometric layers between LeakyReLUs: cond(J) is at most 1 / 0.6^2."""
    bend = nn.LeakyReLU(0.6)
    if kind == "mlp":
        layers = [nn.Linear(d, d + 20), bend, nn.Linear(d + 20, d + 30), bend, nn.Linear(d + 30, d + 40)]
    else:
        layers = [nn.Linear(d, 128), bend, nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 4, 2, 2), bend]
        layers += [nn.Conv2d(4, 5, 1)]
    net = nn.Sequential(*layers)
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.orthogonal_(parameter)
    return net


def tame_jacobians(kind: str, d: int, networks: int) -> Tensor:
    """J (networks * SAMPLES, D, d) with cond(J) <= 3."""
    if kind == "gaussian":
        # As for 600 rows: a QR decomposition leaves J'J as it is.
        return torch.linalg.qr(torch.randn(networks * SAMPLES, 600, d)).R
    with torch.no_grad():
        return torch.cat([spectra.jacobian(isometric(kind, d), torch.randn(SAMPLES, d)) for _ in range(networks)])


def worst_row(kind: str, d: int, networks: int) -> str:
    J = tame_jacobians(kind, d, networks)
    s, start = torch.linalg.svdvals(J), torch.randn(len(J), d)
    condition = (s[:, 0] / s[:, -1]).max()
    cells = [f"{condition.item():#.3g}"]
    for steps, preconditioner_steps in ((60, 0), (330, 0), (60, 4)):
        found = spectra.smallest_singular_value(
            lambda z: torch.einsum("nDd,nd->nD", J, z), start, steps, start, preconditioner_steps
        )[0]
        cells.append(f"{(found / s[:, -1] - 1).max().item():.1e}")
    return f"| {kind} | {len(J)} | {' | '.join(cells)} |"


def main() -> None:
    torch.set_default_dtype(torch.float64)
    for preconditioner_steps in PRECONDITIONER_STEPS:
        print(f"\nWith {preconditioner_steps} steps of the preconditioner:\n")
        print(f"| generator | d | cond(J) | limit | {' | '.join(map(str, STEPS))} |")
        print("|---" * (4 + len(STEPS)) + "|")
        for kind, stretch, d in product((mlp, convolutional), STRETCHES, DIMENSIONS):
            torch.manual_seed(SEED)
            print(row(f"{kind.__name__}, {stretch}", d, kind(d), stretch, preconditioner_steps))
    print("\nThe worst relative error, d = 128:\n")
    print("| J | samples | worst cond(J) | 60 steps | 330 steps | 60 steps, preconditioned |\n" + "|---" * 6 + "|")
    for name in ("mlp", "convolutional", "gaussian"):
        torch.manual_seed(SEED)
        print(worst_row(name, 128, networks=8))


if __name__ == "__main__":
    main()
