"""The smallest models: regressions, perceptrons of a few neurons, scalars as parameters."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

FEATURES = 9


def _labelled(generator: torch.Generator, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return features [batch_size, FEATURES], unequally scaled, and a noisy linear function of them."""
    features = sampling.normal(generator, batch_size, FEATURES) * torch.logspace(-1, 1, FEATURES) + 0.5
    return features, features @ torch.linspace(-1, 1, FEATURES) + 0.1 * sampling.normal(generator, batch_size)


class LinearRegression(nn.Module):
    """Ten parameters and the squared error of unscaled features."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return _labelled(generator, batch_size)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(self.linear(features).squeeze(1), targets)


class LogisticRegression(nn.Module):
    """Weights that start as zero, and an L2 penalty in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features, targets = _labelled(generator, batch_size)
        return features, (targets > 0).float()

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        logits = self.linear(features).squeeze(1)
        return (
            functional.binary_cross_entropy_with_logits(logits, labels)
            + 0.01 * self.linear.weight.square().sum()
        )


class SoftmaxRegression(nn.Module):
    """Classes whose logits may all be shifted without effect; an L1 penalty in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 3)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features, targets = _labelled(generator, batch_size)
        return features, (targets / 8).round().clamp(-1, 1).long() + 1

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.linear(features), labels) + 1e-3 * self.linear.weight.abs().sum()


class SupportVectors(nn.Module):
    """A linear support vector machine: the hinge loss, whose gradient is zero for easy samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features, targets = _labelled(generator, batch_size)
        return features, torch.where(targets > 0, 1.0, -1.0)

    def forward(self, features: Tensor, signs: Tensor) -> Tensor:
        return (
            functional.relu(1 - signs * self.linear(features).squeeze(1)).mean()
            + 1e-3 * self.linear.weight.square().sum()
        )


class PoissonRegression(nn.Module):
    """Counts with a log link."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, batch_size, FEATURES)
        return features, torch.poisson((0.4 * features.sum(dim=1)).exp().clamp(max=20), generator=generator)

    def forward(self, features: Tensor, counts: Tensor) -> Tensor:
        return functional.poisson_nll_loss(self.linear(features).squeeze(1), counts)


class ThreeNeurons(nn.Module):
    """A perceptron 1-3-1 that fits a sine."""

    def __init__(self, activation: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.layers = sampling.mlp(1, 3, 1, activation=activation)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = 6 * sampling.uniform(generator, batch_size, 1) - 3
        return numbers, torch.sin(numbers)

    def forward(self, numbers: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(self.layers(numbers), targets)


class Xor(nn.Module):
    """Two inputs, four hidden neurons with ReLU, of which some may be dead from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = sampling.mlp(2, 4, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        bits = sampling.whole(generator, 2, batch_size, 2)
        return bits.float(), (bits[:, 0] != bits[:, 1]).float()

    def forward(self, bits: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self.layers(bits).squeeze(1), targets)


class PowerLaw(nn.Module):
    """Scalars of shape [] as parameters: scale, exponent, offset and bias of a curve,
    as fits of scaling laws.
    """

    def __init__(self, terms: int = 3) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.exponent = nn.Parameter(torch.tensor(-0.3))
        self.offset = nn.Parameter(torch.tensor(0.0))
        self.amplitudes = nn.Parameter(torch.zeros(terms))
        self.rates = nn.Parameter(torch.linspace(0.5, 2.0, terms))
        self.bias = nn.Parameter(torch.zeros(1))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = 1 + 9 * sampling.uniform(generator, batch_size, length)
        return numbers, 2 * numbers.pow(-0.5) + 0.1 + 0.02 * sampling.normal(generator, batch_size, length)

    def forward(self, numbers: Tensor, targets: Tensor) -> Tensor:
        decays = torch.exp(-self.rates.abs() * numbers.unsqueeze(-1)) @ self.amplitudes
        fit = (
            self.scale * (numbers + functional.softplus(self.offset)).pow(self.exponent) + decays + self.bias
        )
        return functional.smooth_l1_loss(fit, targets, beta=0.05)


class ScalarAndBias(nn.Module):
    """Pairs of a scalar and a bias, each fitted by itself; with one pair, the smallest model of all."""

    def __init__(self, pairs: int = 5) -> None:
        super().__init__()
        self.slopes = nn.ParameterList(nn.Parameter(torch.tensor(float(i))) for i in range(pairs))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(pairs))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = sampling.normal(generator, batch_size, len(self.slopes))
        return numbers, 2 * numbers + 1

    def forward(self, numbers: Tensor, targets: Tensor) -> Tensor:
        pairs = zip(self.slopes, self.biases, numbers.unbind(dim=1), strict=True)
        fits = torch.stack([slope * number + bias for slope, bias, number in pairs], dim=1)
        return functional.mse_loss(fits, targets)


class GaussianFit(nn.Module):
    """Mean and triangular scale of a normal distribution by maximum likelihood; the inputs have no target."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width))
        self.log_scale = nn.Parameter(torch.zeros(width))
        self.lower = nn.Parameter(torch.zeros(width, width))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = sampling.normal(generator, batch_size, len(self.mean))
        return (numbers.cumsum(dim=1) + 1,)

    def forward(self, numbers: Tensor) -> Tensor:
        whitening = torch.tril(self.lower, diagonal=-1) + torch.diag(torch.exp(-self.log_scale))
        white = (numbers - self.mean) @ whitening.T
        return (0.5 * white.square().sum(dim=1)).mean() + self.log_scale.sum() + 2 * math.log(2 * math.pi)


class HeteroscedasticRegression(nn.Module):
    """Mean and variance by two linear maps; the Gaussian negative log-likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(4, 1)
        self.log_variance = nn.Linear(4, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, batch_size, 4)
        noise = features[:, :1].exp() * sampling.normal(generator, batch_size, 1)
        return features, features.sum(dim=1, keepdim=True) + 0.3 * noise

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        return functional.gaussian_nll_loss(self.mean(features), targets, self.log_variance(features).exp())


class GaussianProcess(nn.Module):
    """The marginal likelihood of a Gaussian process: length scales,
    amplitude and noise through a Cholesky factor.
    """

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.log_lengths = nn.Parameter(torch.zeros(features))
        self.log_amplitude = nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, batch_size, length, len(self.log_lengths))
        return features, torch.sin(features[..., 0]) + 0.2 * sampling.normal(generator, batch_size, length)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        scaled = features * torch.exp(-self.log_lengths)
        distances = (scaled.unsqueeze(2) - scaled.unsqueeze(1)).square().sum(dim=-1)
        identity = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
        kernel = self.log_amplitude.exp() * torch.exp(-0.5 * distances) + self.log_noise.exp() * identity
        factor = torch.linalg.cholesky(kernel)
        white = torch.linalg.solve_triangular(factor, targets.unsqueeze(-1), upper=False)
        return (
            0.5 * white.square().sum(dim=(1, 2)) + factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        ).mean()
