"""Models of physics and of functions: derivatives in the loss, coordinates as inputs, solvers inside."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling


class Pinn(nn.Module):
    """A physics-informed network: u'' = -u with u(0) = 0 and u'(0) = 1, by two derivatives of the network."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = sampling.mlp(1, width, width, 1, activation=nn.Tanh)
        self.frequency = nn.Parameter(torch.tensor(0.8))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        times = 3 * sampling.uniform(generator, batch_size * length, 1)
        times[0] = 0
        return times, torch.sin(times)

    def forward(self, times: Tensor, measured: Tensor) -> Tensor:
        times = times.detach().requires_grad_()
        values = self.layers(times)
        (slope,) = torch.autograd.grad(values.sum(), times, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), times, create_graph=True)
        start = values[0].square().sum() + (slope[0] - 1).square().sum()
        return (
            (bend + self.frequency * values).square().mean() + start + functional.mse_loss(values, measured)
        )


class Hamiltonian(nn.Module):
    """Motion as the rotated gradient of a learned energy."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1, bias=False))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        states = sampling.normal(generator, batch_size * length, 2)
        return states, torch.stack([states[:, 1], -torch.sin(states[:, 0])], dim=1)

    def forward(self, states: Tensor, motion: Tensor) -> Tensor:
        states = states.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.energy(states).sum(), states, create_graph=True)
        return functional.mse_loss(torch.stack([slope[:, 1], -slope[:, 0]], dim=1), motion)


class Nerf(nn.Module):
    """A field of densities and colours over sines of positions, rendered along rays."""

    def __init__(self, width: int = 24, octaves: int = 4) -> None:
        super().__init__()
        self.octaves = octaves
        self.trunk = sampling.mlp(6 * octaves, width, width)
        self.density = nn.Linear(width, 1)
        self.colour = sampling.mlp(width + 3, 12, 3)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        directions = functional.normalize(sampling.normal(generator, 2 * batch_size, 3), dim=1)
        return 0.3 * sampling.normal(generator, 2 * batch_size, 3), directions, torch.sigmoid(3 * directions)

    def forward(self, origins: Tensor, directions: Tensor, colours: Tensor) -> Tensor:
        depths = torch.linspace(0.2, 2, 10, device=origins.device).to(origins.dtype)
        points = origins.unsqueeze(1) + directions.unsqueeze(1) * depths.view(1, -1, 1)
        octaves = 2.0 ** torch.arange(self.octaves, device=origins.device)
        angles = (points.unsqueeze(3) * octaves.to(points.dtype)).flatten(2)
        hidden = functional.relu(self.trunk(torch.cat([torch.sin(angles), torch.cos(angles)], dim=2)))
        opacity = 1 - torch.exp(-0.2 * functional.relu(self.density(hidden).squeeze(2) + 0.5))
        passed = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-6], dim=1), dim=1)
        views = directions.unsqueeze(1).expand_as(points)
        seen = torch.sigmoid(self.colour(torch.cat([hidden, views], dim=2)))
        return functional.mse_loss(((opacity * passed[:, :-1]).unsqueeze(2) * seen).sum(dim=1), colours)


class Siren(nn.Module):
    """Sines as activations with a frequency of 30, and their initialisation; an image as a function."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), nn.Linear(width, width)])
        self.outlet = nn.Linear(width, 1)
        with torch.no_grad():
            self.layers[0].weight.uniform_(-0.5, 0.5)
            for layer in (self.layers[1], self.outlet):
                layer.weight.uniform_(-math.sqrt(6 / width) / 30, math.sqrt(6 / width) / 30)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        points = 2 * sampling.uniform(generator, batch_size * length, 2) - 1
        return points, torch.sin(5 * points[:, :1]) * (points[:, 1:] > 0)

    def forward(self, points: Tensor, values: Tensor) -> Tensor:
        for layer in self.layers:
            points = torch.sin(30 * layer(points))
        return functional.mse_loss(self.outlet(points), values)


class HyperNetwork(nn.Module):
    """A network that makes the weights of another from a task's samples."""

    def __init__(self, width: int = 8, task: int = 6) -> None:
        super().__init__()
        self.width = width
        self.encoder = sampling.mlp(2, 16, task)
        self.maker = nn.Linear(task, 3 * width + 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = 4 * sampling.uniform(generator, batch_size, 2 * length, 1) - 2
        phases, sizes = sampling.uniform(generator, 2, batch_size, 1, 1).unbind()
        return numbers, (0.5 + sizes) * torch.sin(numbers + 3 * phases)

    def forward(self, numbers: Tensor, values: Tensor) -> Tensor:
        known = numbers.shape[1] // 2
        task = self.encoder(torch.cat([numbers, values], dim=2)[:, :known]).mean(dim=1)
        first, biases, second, bias = self.maker(task).split([self.width, self.width, self.width, 1], dim=1)
        hidden = torch.tanh(numbers[:, known:] * first.unsqueeze(1) + biases.unsqueeze(1))
        fit = hidden @ second.unsqueeze(2) + bias.unsqueeze(2)
        return functional.mse_loss(fit, values[:, known:])


class InnerLoop(nn.Module):
    """As MAML: a gradient step inside of the forward, and the derivative through it."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            [torch.randn(width, 1), torch.zeros(width), torch.randn(1, width) * width**-0.5, torch.zeros(1)]
        )
        self.log_rate = nn.Parameter(torch.tensor(-3.0))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = 4 * sampling.uniform(generator, batch_size, 2 * length, 1) - 2
        return numbers, torch.sin(numbers + 3 * sampling.uniform(generator, batch_size, 1, 1))

    def forward(self, numbers: Tensor, values: Tensor) -> Tensor:
        known = numbers.shape[1] // 2
        losses = []
        for inputs, targets in zip(numbers, values, strict=True):
            weights = list(self.weights)
            error = functional.mse_loss(self._output(weights, inputs[:known]), targets[:known])
            slopes = torch.autograd.grad(error, weights, create_graph=True)
            weights = [
                weight - self.log_rate.exp() * slope for weight, slope in zip(weights, slopes, strict=True)
            ]
            losses.append(functional.mse_loss(self._output(weights, inputs[known:]), targets[known:]))
        return torch.stack(losses).mean()

    def _output(self, weights: list[Tensor], numbers: Tensor) -> Tensor:
        return functional.linear(torch.tanh(functional.linear(numbers, *weights[:2])), *weights[2:])


class MixtureDensity(nn.Module):
    """A mixture of Gaussians whose parameters depend on the input; the inverse of a bent curve."""

    def __init__(self, width: int = 16, components: int = 4) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, width)
        self.outlet = nn.Linear(width, 3 * components)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        values = 2 * sampling.uniform(generator, batch_size * length, 1) - 1
        noise = 0.05 * sampling.normal(generator, batch_size * length, 1)
        return values + 0.8 * torch.sin(6 * values) + noise, values

    def forward(self, inputs: Tensor, values: Tensor) -> Tensor:
        weights, means, scales = self.outlet(torch.tanh(self.hidden(inputs))).chunk(3, dim=1)
        scales = functional.softplus(scales) + 1e-2
        scores = (
            functional.log_softmax(weights, dim=1) - scales.log() - 0.5 * ((values - means) / scales).square()
        )
        return -torch.logsumexp(scores, dim=1).mean()


class NeuralOde(nn.Module):
    """Four fixed Runge-Kutta steps through a learned field, from a learned lift; classes of spirals."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.lift = nn.Linear(2, 4)
        self.field = sampling.mlp(5, width, 4, activation=nn.Tanh)
        self.outlet = nn.Linear(4, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        labels = sampling.whole(generator, 2, batch_size * 4)
        angles = 6 * sampling.uniform(generator, batch_size * 4)
        spirals = torch.stack([torch.cos(angles + 3.14 * labels), torch.sin(angles + 3.14 * labels)], dim=1)
        return spirals * (0.3 + angles.unsqueeze(1) / 3), labels.float()

    def _slope(self, time: float, state: Tensor) -> Tensor:
        return self.field(torch.cat([state, torch.full_like(state[:, :1], time)], dim=1))

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        state = self.lift(points)
        size = 0.25
        for step in range(4):
            time = step * size
            first = self._slope(time, state)
            second = self._slope(time + size / 2, state + size / 2 * first)
            third = self._slope(time + size / 2, state + size / 2 * second)
            fourth = self._slope(time + size, state + size * third)
            state = state + size / 6 * (first + 2 * second + 2 * third + fourth)
        return functional.binary_cross_entropy_with_logits(self.outlet(state).squeeze(1), labels)


class DeepEquilibrium(nn.Module):
    """A layer repeated until it hardly changes, with spectral norm below one;
    the gradient passes the last rounds.
    """

    def __init__(self, features: int = 5, width: int = 12) -> None:
        super().__init__()
        self.features = features
        self.inlet = nn.Linear(features, width)
        self.state = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width, bias=False))
        self.outlet = nn.Linear(width, 2)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, 4 * batch_size, self.features)
        return features, (features.prod(dim=1) > 0).long()

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        inputs, matrix = self.inlet(features), 0.9 * self.state.weight
        state = torch.zeros_like(inputs)
        with torch.no_grad():
            for _ in range(12):
                state = torch.tanh(functional.linear(state, matrix) + inputs)
        for _ in range(3):
            state = torch.tanh(functional.linear(state, matrix) + inputs)
        return functional.cross_entropy(self.outlet(state), labels)


class FourierOperator(nn.Module):
    """As FNO: the lowest frequencies are multiplied by complex weights, held as real pairs;
    a step of heat flow.
    """

    def __init__(self, width: int = 8, modes: int = 4) -> None:
        super().__init__()
        self.modes = modes
        self.lift = nn.Conv1d(1, width, 1)
        self.spectral = nn.Parameter(torch.rand(width, width, modes, 2) / width**2)
        self.pointwise = nn.Conv1d(width, width, 1)
        self.outlet = nn.Conv1d(width, 1, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        waves = sampling.normal(generator, batch_size, 1, 16).cumsum(dim=2)
        waves = waves - waves.mean(dim=2, keepdim=True)
        return waves, (waves.roll(1, 2) + 2 * waves + waves.roll(-1, 2)) / 4

    def forward(self, waves: Tensor, later: Tensor) -> Tensor:
        hidden = self.lift(waves)
        spectrum = torch.fft.rfft(hidden)[..., : self.modes]
        spectrum = torch.einsum("bim,iom->bom", spectrum, torch.view_as_complex(self.spectral))
        hidden = functional.gelu(torch.fft.irfft(spectrum, n=hidden.shape[2]) + self.pointwise(hidden))
        error = (self.outlet(hidden) - later).flatten(1).square().sum(dim=1).sqrt()
        return (error / (later.flatten(1).square().sum(dim=1).sqrt() + 1e-3)).mean()


class DeepOperator(nn.Module):
    """As DeepONet: a branch sees a function, a trunk sees where it is asked;
    their product is its integral.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.branch = sampling.mlp(10, width, width, activation=nn.Tanh)
        self.trunk = sampling.mlp(1, width, width, activation=nn.Tanh)
        self.bias = nn.Parameter(torch.zeros(()))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        functions = sampling.normal(generator, batch_size, 10)
        points = sampling.whole(generator, 10, batch_size, length)
        return functions, points.unsqueeze(2) / 10.0, 0.3 * functions.cumsum(dim=1).gather(1, points)

    def forward(self, functions: Tensor, points: Tensor, values: Tensor) -> Tensor:
        fit = (self.branch(functions).unsqueeze(1) * self.trunk(points)).sum(dim=2) + self.bias
        return functional.mse_loss(fit, values)


class KolmogorovArnold(nn.Module):
    """As KAN: each edge is a sum of hat functions on a grid plus a SiLU;
    outside of the grid its gradient is zero.
    """

    def __init__(self, widths: tuple[int, ...] = (3, 6, 1), knots: int = 7) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-2, 2, knots), persistent=False)
        pairs = list(pairwise(widths))
        self.splines = nn.ParameterList(0.1 * torch.randn(before * knots, after) for before, after in pairs)
        self.bases = nn.ModuleList(nn.Linear(before, after, bias=False) for before, after in pairs)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = sampling.normal(generator, batch_size * 4, 3)
        return numbers, torch.exp(torch.sin(3 * numbers[:, :1]) + 0.3 * numbers[:, 1:2] * numbers[:, 2:])

    def forward(self, numbers: Tensor, values: Tensor) -> Tensor:
        for spline, base in zip(self.splines, self.bases, strict=True):
            hats = functional.relu(
                1 - 1.5 * (numbers.unsqueeze(2) - self.grid.to(numbers.dtype)).abs()
            ).flatten(1)
            numbers = base(functional.silu(numbers)) + hats @ spline
        return functional.smooth_l1_loss(numbers, values)
