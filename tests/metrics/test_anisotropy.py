"""The anisotropy index against explicit Jacobians, and what batch norm and chunks must not change."""

import pytest
import torch
from torch import nn

from ebmbounds.errors import BadInput
from ebmbounds.metrics.anisotropy import anisotropy, anisotropy_index, column_norms


@pytest.fixture
def generator() -> nn.Sequential:
    """The kinds of layers of the paper's generators, in train mode, with batch-norm statistics of its own."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(6, 32),
        nn.BatchNorm1d(32),
        nn.PReLU(),
        nn.Unflatten(1, (8, 2, 2)),
        nn.ConvTranspose2d(8, 4, 4, 2, 1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3, padding=1),
        nn.Tanh(),
    ).double()
    network(torch.randn(50, 6, dtype=torch.float64))
    return network


def test_columns_are_those_of_the_explicit_jacobian(generator):
    z = torch.randn(4, 6, dtype=torch.float64)
    found = column_norms(generator, z, chunk=4)
    generator.eval()
    for latent, norms in zip(z, found, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda t: generator(t[None]).flatten(), latent)
        torch.testing.assert_close(norms, jacobian.norm(dim=0))


@pytest.mark.parametrize("chunk", [1, 4, 6, 100])
def test_chunks_do_not_matter(generator, chunk):
    z = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(anisotropy(generator, z, chunk=chunk), anisotropy(generator, z))


def test_batch_norm_is_in_eval_mode_and_left_as_it_was(generator):
    generator[1].eval()
    z = torch.randn(5, 6, dtype=torch.float64)
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    alone = torch.cat([anisotropy(generator, latent[None]) for latent in z])
    torch.testing.assert_close(anisotropy(generator, z), alone)
    assert generator.training and generator[5].training and not generator[1].training
    assert all(torch.equal(value, before[name]) for name, value in generator.state_dict().items())


def test_scaled_isometries_have_none():
    basis, _ = torch.linalg.qr(torch.randn(20, 8, dtype=torch.float64))
    z = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(anisotropy(lambda t: 3 * t @ basis.T, z), torch.zeros(3, dtype=z.dtype))


def test_diagonal_map_and_unbiased_std():
    scales = torch.tensor([1.0, 2.0, 3.0, 6.0])
    index = anisotropy_index(lambda t: t * scales, 4, samples=8, repeats=3)
    assert index.mean == pytest.approx(scales.std().item(), rel=1e-6)  # 2.16, where the biased one is 1.87
    assert index.spread == pytest.approx(0, abs=1e-6)


def test_spread_is_over_repeats_and_follows_the_seed():
    runs = [anisotropy_index(torch.sin, 5, samples=16, repeats=4, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0].spread > 0


def test_unusable_input_is_refused():
    with pytest.raises(BadInput, match="no anisotropy"):
        anisotropy(torch.sin, torch.zeros(3, 1))
    with pytest.raises(BadInput, match="1 repeats"):
        anisotropy_index(torch.sin, 4, repeats=1)
