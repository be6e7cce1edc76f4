"""Your own networks, optimisers and loop: EBM-BB on two moons from `spectra`, `bounds` and plain PyTorch alone.

Both modules are pure functions built on torch.func, and what they return carries an ordinary autograd graph:
loss.backward() reaches the parameters of any nn.Module that the energy or the generator is made of.
"""

import math
import sys

import torch
from sklearn.datasets import make_moons
from torch import nn
from torch.optim import Adam

from ebmbounds import bounds, spectra


def main(steps: int = 600, n: int = 200) -> tuple[float, float]:
    torch.manual_seed(0)
    data = torch.tensor(make_moons(20_000, noise=0.1, random_state=0)[0], dtype=torch.float32)
    E = nn.Sequential(nn.Linear(2, 100), nn.SiLU(), nn.Linear(100, 100), nn.SiLU(), nn.Linear(100, 1))
    G = nn.Sequential(nn.Linear(2, 100), nn.SiLU(), nn.Linear(100, 100), nn.SiLU(), nn.Linear(100, 2))
    adam_E, adam_G = (Adam(net.parameters(), lr=2e-3, betas=(0.0, 0.99)) for net in (E, G))
    for step in range(1, steps + 1):
        # The energy minimises the upper bound: E(x) - E(G(z)) and the gradient penalty of Eqs. 19 and 20.
        x, z, v = data[torch.randint(len(data), (n,))], torch.randn(n, 2), torch.randn(n, 2)
        direction = spectra.lobpcg(G, z, steps=2, start=v)
        score = bounds.latent_score(G, z, "s1", direction).detach()
        fake, Jv = G(z).detach(), spectra.jvp(G, z, v).detach()
        penalty = 0.1 * bounds.gradient_penalty(E, fake, Jv, (score * v).sum(1)).mean()
        adam_E.zero_grad()
        (E(x).mean() - E(fake).mean() + bounds.hinge(penalty, margin=0.0)).backward()
        adam_E.step()
        # The generator maximises the lower bound, Eq. 11.
        z = torch.randn(n, 2)
        lower = bounds.lower_bound(E(x), E(G(z)), bounds.entropy_lower_bound(G, z, steps=2))
        adam_G.zero_grad()
        (-lower).backward()
        adam_G.step()
        if step % 100 == 0:
            print(f"step {step}: lower bound {lower.item():.3f} nats")
    # The lower bound with exact entropy (Eq. 4) beside the negative log-likelihood by quadrature (Eq. 2).
    z, side = torch.randn(2000, 2), torch.linspace(-4, 4, 400)
    lower = bounds.lower_bound(E(data), E(G(z)), bounds.entropy(G, z)).item()
    log_Z = (-E(torch.cartesian_prod(side, side))).logsumexp(0).item() + 2 * math.log(8 / 400)
    return lower, E(data).mean().item() + log_Z


if __name__ == "__main__":
    lower, nll = main(*map(int, sys.argv[1:]))
    print(f"lower bound {lower:.3f} <= negative log-likelihood {nll:.3f} nats")
