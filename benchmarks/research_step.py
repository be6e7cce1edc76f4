"""One EBM-BB iteration formulated as research code does: double-backward Jacobian products, batched SVDs, values read
back to the host. Written for comparison of speed only; the package does not use it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def research_step(
    energy: nn.Module,
    generator: nn.Module,
    batch: Callable[[], Tensor],
    latent_dim: int,
    lobpcg_steps: int,
    lr: float = 5e-5,
    entropy_weight: float = 1e-4,
    penalty_weight: float = 0.001,
) -> Callable[[], dict[str, float]]:
    """A function that trains both networks by one iteration each time it is called."""
    optimizers = [
        torch.optim.Adam(net.parameters(), lr=lr, betas=(0.0, 0.999), eps=1e-6) for net in (energy, generator)
    ]
    device = next(generator.parameters()).device

    def product(pulled: Tensor, dummy: Tensor, v: Tensor, keep: bool = False) -> Tensor:
        return torch.autograd.grad(pulled, dummy, v, retain_graph=True, create_graph=keep)[0].flatten(1)

    def entropy(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The slope of -log p_g along a probe, J v for that probe, and the entropy estimate with its graph."""
        generator.eval()
        x = generator(z)
        dummy = torch.ones_like(x, requires_grad=True)
        (pulled,) = torch.autograd.grad(x, z, dummy, create_graph=True)
        probe = torch.randn_like(z)
        v, p = probe.clone(), torch.randn_like(z)
        Jv = product(pulled, dummy, v)
        size = Jv.norm(dim=1) / v.norm(dim=1)
        for _ in range(lobpcg_steps):
            (JTJv,) = torch.autograd.grad((Jv.detach() * x.flatten(1)).sum(), z, retain_graph=True)
            residual = JTJv - (size**2).unsqueeze(1) * v
            basis = torch.linalg.svd(torch.stack((v, residual, p), -1), full_matrices=False).U
            images = torch.stack([product(pulled, dummy, basis[:, :, i]) for i in range(basis.shape[2])], -1)
            least = torch.linalg.svd(images, full_matrices=False).Vh[:, -1:].transpose(1, 2)
            p = (basis[:, :, 1:] @ least[:, 1:]).squeeze(-1).detach()
            v = (basis @ least).squeeze(-1).detach()
            Jv = product(pulled, dummy, v, keep=True)
            size = Jv.norm(dim=1) / v.norm(dim=1)
        volume = latent_dim * torch.log(size)
        log_base = -0.5 * z.square().sum(1)
        (slope,) = torch.autograd.grad((volume - log_base).sum(), z, retain_graph=True)
        Jprobe = product(pulled, dummy, probe)
        generator.train()
        return (slope * probe).sum(1), Jprobe, volume.mean()

    def step() -> dict[str, float]:
        x = batch()
        z = torch.randn(len(x), latent_dim, device=device, requires_grad=True)
        generated = generator(z)
        real, fake = energy(x).flatten(), energy(generated).flatten()
        (gradient,) = torch.autograd.grad(fake.sum(), generated, create_graph=True)
        slope, Jprobe, volume = entropy(z)
        penalty = ((gradient.flatten(1) * Jprobe.detach()).sum(1) - slope.detach()).square().mean() * 0.5
        loss = (real - fake).mean() + torch.relu(penalty_weight * penalty)
        log = {"real": real.mean().item(), "fake": fake.mean().item(), "loss": loss.item(), "penalty": penalty.item()}
        optimizers[0].zero_grad()
        loss.backward(retain_graph=True)
        optimizers[0].step()

        z = torch.randn(len(x), latent_dim, device=device, requires_grad=True)
        loss = energy(generator(z)).mean() - entropy_weight * volume
        log |= {"generator": loss.item(), "volume": volume.item()}
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        return log

    return step
