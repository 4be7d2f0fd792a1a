"""Generative models: adversaries, autoencoders, diffusion, flows, energies, autoregression."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

SIDE = 8
PIXELS = SIDE * SIDE


class ImageModel(nn.Module):
    """Base: images [B, 1, SIDE, SIDE] without labels."""

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.labelled_images(generator, batch_size, 5, 1, SIDE)[0],)


class Points(nn.Module):
    """Base: points of the plane on two half circles, eight for each sample of the micro-batch."""

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        angles = math.pi * sampling.uniform(generator, 8 * batch_size)
        upper = sampling.whole(generator, 2, 8 * batch_size) * 2.0 - 1
        points = torch.stack([torch.cos(angles) + 0.5 * upper, upper * torch.sin(angles)], dim=1)
        return (points + 0.1 * sampling.normal(generator, 8 * batch_size, 2),)


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return -gradient


class Gan(ImageModel):
    """A generator with BatchNorm and transposed convolutions and a discriminator,
    in one loss by gradient reversal.
    """

    def __init__(self, width: int = 8, latent: int = 6) -> None:
        super().__init__()
        self.latent = latent
        self.generator = nn.Sequential(
            *(nn.ConvTranspose2d(latent, width, 4, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1), nn.Tanh()),
        )
        self.discriminator = nn.Sequential(
            *(nn.Conv2d(1, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(width, width, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(width, 1)),
        )

    def forward(self, images: Tensor) -> Tensor:
        latents = sampling.noise_like(images[:, :1, :1, :1].expand(-1, self.latent, 1, 1))
        real = self.discriminator(images)
        fake = self.discriminator(_Reversal.apply(self.generator(latents)))
        return functional.softplus(-real).mean() + functional.softplus(fake).mean()


class WassersteinGan(Points):
    """A critic of the plane with a gradient penalty, through two backwards;
    the generator by gradient reversal.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.generator = sampling.mlp(2, width, width, 2)
        self.critic = sampling.mlp(2, width, width, 1, activation=nn.SiLU)
        self.skip = nn.Linear(2, 1, bias=False)

    def _score(self, points: Tensor) -> Tensor:
        return self.critic(points) + self.skip(points)

    def forward(self, points: Tensor) -> Tensor:
        made = self.generator(sampling.noise_like(points))
        shares = sampling.uniform_like(points[:, :1])
        between = (shares * points + (1 - shares) * made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(self._score(between).sum(), between, create_graph=True)
        penalty = ((slope.square().sum(dim=1) + 1e-6).sqrt() - 1).square().mean()
        return self._score(_Reversal.apply(made)).mean() - self._score(points).mean() + 10 * penalty


class Vae(ImageModel):
    """A variational autoencoder: Gaussian noise, Bernoulli pixels,
    a divergence that is summed over latents.
    """

    def __init__(self, width: int = 32, latent: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, width), nn.ReLU())
        self.mean = nn.Linear(width, latent)
        self.log_variance = nn.Linear(width, latent)
        self.decoder = sampling.mlp(latent, width, PIXELS)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.encoder(images)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latents = mean + sampling.noise_like(mean) * torch.exp(0.5 * log_variance)
        targets = torch.sigmoid(2 * images.flatten(1))
        error = functional.binary_cross_entropy_with_logits(
            self.decoder(latents), targets, reduction="none"
        ).sum(dim=1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1)
        return (error + divergence).mean()


class VectorQuantizer(ImageModel):
    """A codebook: the nearest code by argmin, a straight-through gradient, codebook and commitment losses."""

    def __init__(self, width: int = 8, codes: int = 12) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1), nn.ReLU(), nn.Conv2d(width, 4, 1)
        )
        self.codes = nn.Embedding(codes, 4)
        nn.init.uniform_(self.codes.weight, -0.5, 0.5)
        self.decoder = nn.Sequential(nn.Conv2d(4, width, 1), nn.ReLU(), nn.ConvTranspose2d(width, 1, 4, 2, 1))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.encoder(images).permute(0, 2, 3, 1)
        distances = (hidden.unsqueeze(3) - self.codes.weight).square().sum(dim=4)
        chosen = self.codes(distances.argmin(dim=3))
        loss = functional.mse_loss(chosen, hidden.detach()) + 0.25 * functional.mse_loss(
            hidden, chosen.detach()
        )
        passed = hidden + (chosen - hidden).detach()
        return loss + functional.mse_loss(self.decoder(passed.permute(0, 3, 1, 2)), images)


class DenoisingAutoencoder(ImageModel):
    """Pixels are set to zero; encoder and decoder share a weight matrix; sigmoid units."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, PIXELS))
        nn.init.xavier_uniform_(self.weight)
        self.hidden_bias = nn.Parameter(torch.zeros(width))
        self.visible_bias = nn.Parameter(torch.zeros(PIXELS))

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.flatten(1)
        kept = (sampling.uniform_like(pixels) > 0.3).to(pixels.dtype)
        hidden = torch.sigmoid(functional.linear(pixels * kept, self.weight, self.hidden_bias))
        return functional.mse_loss(functional.linear(hidden, self.weight.T, self.visible_bias), pixels)


class SparseAutoencoder(nn.Module):
    """As in interpretability: the largest activations only (top-k), untied, unit columns are not enforced."""

    def __init__(self, features: int = 16, latents: int = 64, kept: int = 6) -> None:
        super().__init__()
        self.features = features
        self.kept = kept
        self.inner_bias = nn.Parameter(torch.zeros(features))
        self.encoder = nn.Linear(features, latents)
        self.decoder = nn.Linear(latents, features, bias=False)
        with torch.no_grad():
            self.encoder.weight.copy_(self.decoder.weight.T)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.normal(generator, batch_size * length, self.features).pow(3),)

    def forward(self, activations: Tensor) -> Tensor:
        values, indices = functional.relu(self.encoder(activations - self.inner_bias)).topk(self.kept, dim=1)
        latents = torch.zeros(
            len(values), self.encoder.out_features, dtype=values.dtype, device=values.device
        )
        error = self.decoder(latents.scatter(1, indices, values)) + self.inner_bias - activations
        return error.square().sum() / activations.square().sum()


class Diffusion(ImageModel):
    """The noise is predicted by a small U-Net that sees the step as sines and cosines;
    a zero-initialised outlet.
    """

    def __init__(self, width: int = 8, steps: int = 100) -> None:
        super().__init__()
        self.steps = steps
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.05, steps), dim=0))
        self.time = sampling.mlp(8, 16, width, activation=nn.SiLU)
        self.inlet = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.outlet = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(self.outlet.weight)
        nn.init.zeros_(self.outlet.bias)

    def forward(self, images: Tensor) -> Tensor:
        steps = torch.randint(self.steps, (len(images),), device=images.device)
        kept = self.kept.to(images.dtype)[steps].view(-1, 1, 1, 1)
        noise = sampling.noise_like(images)
        angles = steps.unsqueeze(1) * 10.0 ** -torch.arange(4, device=images.device)
        embedded = self.time(torch.cat([torch.sin(angles), torch.cos(angles)], dim=1).to(images.dtype))
        hidden = self.inlet(kept.sqrt() * images + (1 - kept).sqrt() * noise)
        hidden = functional.silu(self.norm(hidden) + embedded.view(*embedded.shape, 1, 1))
        coarse = functional.interpolate(functional.silu(self.down(hidden)), scale_factor=2, mode="nearest")
        return functional.mse_loss(
            self.outlet(functional.silu(self.up(torch.cat([hidden, coarse], dim=1)))), noise
        )


class FlowMatching(Points):
    """The velocity from noise to data along straight lines; the time scales and shifts (zero-initialised)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inlet = nn.Linear(2, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(1, 2 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        self.outlet = sampling.mlp(width, width, 2, activation=nn.SiLU)

    def forward(self, points: Tensor) -> Tensor:
        noise = sampling.noise_like(points)
        time = sampling.uniform_like(points[:, :1])
        shift, scale = self.modulation(time).chunk(2, dim=1)
        hidden = self.norm(self.inlet(time * points + (1 - time) * noise)) * (1 + scale) + shift
        return functional.mse_loss(self.outlet(hidden), points - noise)


class RealNvp(Points):
    """Affine couplings, the likelihood by the change of variables;
    scales are bounded by tanh and a parameter.
    """

    def __init__(self, width: int = 12, layers: int = 4) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(sampling.mlp(1, width, width, 2) for _ in range(layers))
        self.bounds = nn.Parameter(torch.full((layers,), 0.5))

    def forward(self, points: Tensor) -> Tensor:
        first, second = points.split(1, dim=1)
        volume = torch.zeros_like(first)
        for coupling, bound in zip(self.couplings, self.bounds, strict=True):
            scale, shift = coupling(first).chunk(2, dim=1)
            scale = bound * torch.tanh(scale)
            first, second = second * torch.exp(scale) + shift, first
            volume = volume + scale
        density = -0.5 * (first.square() + second.square()) - math.log(2 * math.pi)
        return -(density + volume).mean()


class ScoreMatching(Points):
    """An energy whose gradient, along random directions, is matched to the data (sliced),
    by second derivatives.
    """

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.energy = sampling.mlp(2, width, width, 1, activation=nn.Softplus)
        self.energy[-1].bias = None

    def forward(self, points: Tensor) -> Tensor:
        points = points.detach().requires_grad_()
        directions = sampling.noise_like(points)
        (gradient,) = torch.autograd.grad(-self.energy(points).sum(), points, create_graph=True)
        along = (gradient * directions).sum()
        (second,) = torch.autograd.grad(along, points, create_graph=True)
        return ((second * directions).sum(dim=1) + 0.5 * gradient.square().sum(dim=1)).mean()


class MaskedConv(nn.Conv2d):
    """A convolution that sees pixels above and to the left only: the mask is a buffer."""

    def __init__(self, before: int, after: int, *, sees_itself: bool) -> None:
        super().__init__(before, after, 3, padding=1)
        mask = torch.zeros(3, 3)
        mask[0] = 1
        mask[1, : 2 if sees_itself else 1] = 1
        self.register_buffer("mask", mask)

    def forward(self, images: Tensor) -> Tensor:
        return self._conv_forward(images, self.weight * self.mask.to(self.weight.dtype), self.bias)


class PixelCnn(nn.Module):
    """Masked convolutions, pixels of four levels; some weights are masked for ever."""

    def __init__(self, width: int = 12, levels: int = 4) -> None:
        super().__init__()
        self.levels = levels
        self.layers = nn.Sequential(
            *(MaskedConv(1, width, sees_itself=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(MaskedConv(width, width, sees_itself=True), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, levels, 1),
        )

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        images, _ = sampling.labelled_images(generator, batch_size, 5, 1, SIDE)
        return images, (images.squeeze(1) + 2).long().clamp(0, self.levels - 1)

    def forward(self, images: Tensor, levels: Tensor) -> Tensor:
        return functional.cross_entropy(self.layers(images), levels)
