"""What every pair of networks can be given, whatever its layers."""

from dataclasses import dataclass

from torch import nn

from ebmbounds.networks.spectral_norm import normalised


@dataclass(frozen=True)
class PairSettings:
    spectral_norm: bool = False
    """Every layer of the energy divided by its largest singular value: SNGAN's discriminator."""
    orthogonal_init: bool = False
    """Weights of both networks start orthogonal and biases at zero, as DCGAN's in StudioGAN; else torch's defaults."""

    def players(self, energy: nn.Module, generator: nn.Module) -> dict[str, nn.Module]:
        if self.orthogonal_init:
            for module in (*energy.modules(), *generator.modules()):
                if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                    nn.init.orthogonal_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
        return {"energy": normalised(energy) if self.spectral_norm else energy, "generator": generator}
