"""Attention outside of language models: pooling, sets, latents, images, mixers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling


class AttentionPooling(nn.Module):
    """Positions are averaged by the softmax of one score each: the bias of the score has no effect."""

    def __init__(self, features: int = 6, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.features = features
        self.classes = classes
        self.hidden = nn.Linear(features, width)
        self.score = nn.Linear(width, 1)
        self.classifier = nn.Linear(width, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        series = sampling.normal(generator, batch_size, length, self.features)
        return series, series.amax(dim=1)[:, : self.classes].argmax(dim=1)

    def forward(self, series: Tensor, labels: Tensor) -> Tensor:
        hidden = torch.tanh(self.hidden(series))
        weights = torch.softmax(self.score(hidden), dim=1)
        return functional.cross_entropy(self.classifier((weights * hidden).sum(dim=1)), labels)


class GatedBag(nn.Module):
    """Multiple-instance learning with gated attention: a bag is positive if an instance is;
    binary cross entropy.
    """

    def __init__(self, features: int = 5, width: int = 12) -> None:
        super().__init__()
        self.features = features
        self.instances = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Dropout(0.25))
        self.values = nn.Linear(width, 8)
        self.gates = nn.Linear(width, 8)
        self.score = nn.Linear(8, 1)
        self.outlet = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        bags = sampling.normal(generator, batch_size, length, self.features)
        return bags, (bags[..., 0].amax(dim=1) > 1.5).float()

    def forward(self, bags: Tensor, positive: Tensor) -> Tensor:
        hidden = self.instances(bags)
        scores = self.score(torch.tanh(self.values(hidden)) * torch.sigmoid(self.gates(hidden)))
        pooled = (torch.softmax(scores, dim=1) * hidden).sum(dim=1)
        return functional.binary_cross_entropy_with_logits(self.outlet(pooled).squeeze(1), positive)


class CrossBlock(nn.Module):
    """Multi-head attention of queries to keys, then a feed-forward layer; each with a sum and LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.first_norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        hidden = self.first_norm(queries + self.attention(queries, keys, keys, need_weights=False)[0])
        return self.second_norm(hidden + functional.relu(self.wide(hidden)))


class SetTransformer(nn.Module):
    """Induced points, and pooling by a learned seed; regression of the median of a set (L1)."""

    def __init__(self, width: int = 16, induced: int = 4) -> None:
        super().__init__()
        self.inlet = nn.Linear(2, width)
        self.induced = nn.Parameter(torch.empty(1, induced, width))
        self.seed = nn.Parameter(torch.empty(1, 1, width))
        nn.init.xavier_uniform_(self.induced)
        nn.init.xavier_uniform_(self.seed)
        self.gather, self.spread, self.pool = (CrossBlock(width, 4) for _ in range(3))
        self.outlet = nn.Linear(width, 2)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        points = sampling.normal(generator, batch_size, length, 2) + sampling.normal(
            generator, batch_size, 1, 2
        )
        return points, points.median(dim=1).values

    def forward(self, points: Tensor, medians: Tensor) -> Tensor:
        hidden = self.inlet(points)
        hidden = self.spread(hidden, self.gather(self.induced.expand(len(points), -1, -1), hidden))
        pooled = self.pool(self.seed.expand(len(points), -1, -1), hidden)
        return functional.l1_loss(self.outlet(pooled.squeeze(1)), medians)


class DeepSet(nn.Module):
    """No attention: sums over the set between two perceptrons; the count of positive numbers (Poisson)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = sampling.mlp(1, width, width)
        self.outer = sampling.mlp(width, width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        numbers = sampling.normal(generator, batch_size, length, 1) + sampling.normal(
            generator, batch_size, 1, 1
        )
        return numbers, (numbers > 0).float().sum(dim=(1, 2))

    def forward(self, numbers: Tensor, counts: Tensor) -> Tensor:
        return functional.poisson_nll_loss(self.outer(self.inner(numbers).sum(dim=1)).squeeze(1), counts)


class Perceiver(nn.Module):
    """Latents that read pixels twice through the same weights,
    and attend to each other between the readings.
    """

    def __init__(self, width: int = 16, latents: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.classes = classes
        self.latents = nn.Parameter(0.02 * torch.randn(latents, width))
        self.pixels = nn.Linear(3, width)
        self.read = CrossBlock(width, 2)
        self.think = CrossBlock(width, 4)
        self.classifier = nn.Linear(width, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return sampling.labelled_images(generator, batch_size, self.classes, 1, 8)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        side = torch.linspace(-1, 1, images.shape[-1], device=images.device).to(images.dtype)
        grid = torch.stack(torch.meshgrid(side, side, indexing="ij"), dim=-1).expand(len(images), -1, -1, -1)
        pixels = self.pixels(torch.cat([images.permute(0, 2, 3, 1), grid], dim=-1).flatten(1, 2))
        latents = self.latents.expand(len(images), -1, -1)
        for _ in range(2):
            latents = self.read(latents, pixels)
            latents = self.think(latents, latents)
        return functional.cross_entropy(self.classifier(latents.mean(dim=1)), labels)


class PostNormEncoder(nn.Module):
    """torch's encoder layers with their defaults: LayerNorm after the sum, ReLU, dropout; masked tokens."""

    def __init__(self, vocabulary: int = 40, width: int = 16, longest: int = 64) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.outlet = nn.Linear(width, vocabulary)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        words = sampling.tokens(generator, self.vocabulary, batch_size, length)
        masked = sampling.uniform(generator, batch_size, length) < 0.3
        masked[:, 1] = True
        return words.masked_fill(masked, 0), words.masked_fill(~masked, -100)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        hidden = self.encoder(self.words(words) + self.positions(positions))
        return functional.cross_entropy(
            self.outlet(hidden).flatten(0, 1), targets.flatten(), ignore_index=-100
        )


class VisionTransformer(nn.Module):
    """Patches, a class token, pre-norm layers with GELU, a learned position per patch."""

    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.classes = classes
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 10, width))
        nn.init.trunc_normal_(self.positions, std=0.02)
        layer = nn.TransformerEncoderLayer(
            *(width, 2, 4 * width), dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.classifier = nn.Linear(width, classes)
        nn.init.zeros_(self.classifier.weight)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return sampling.labelled_images(generator, batch_size, self.classes, 3, 12)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.positions
        return functional.cross_entropy(self.classifier(self.encoder(hidden)[:, 0]), labels)


class MlpMixer(nn.Module):
    """Perceptrons over patches and over channels in turn."""

    def __init__(self, width: int = 12, classes: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.classes = classes
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.over_patches = nn.ModuleList(sampling.mlp(9, 18, 9, activation=nn.GELU) for _ in range(depth))
        self.over_channels = nn.ModuleList(
            sampling.mlp(width, 2 * width, width, activation=nn.GELU) for _ in range(depth)
        )
        self.classifier = nn.Linear(width, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return sampling.labelled_images(generator, batch_size, self.classes, 3, 12)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        norms = iter(self.norms)
        for over_patches, over_channels in zip(self.over_patches, self.over_channels, strict=True):
            hidden = hidden + over_patches(next(norms)(hidden).transpose(1, 2)).transpose(1, 2)
            hidden = hidden + over_channels(next(norms)(hidden))
        return functional.cross_entropy(self.classifier(next(norms)(hidden).mean(dim=1)), labels)


class CosineDecoder(nn.Module):
    """A causal decoder: cosine attention with a learned temperature per head, a bias per distance,
    tied weights.
    """

    def __init__(self, vocabulary: int = 60, width: int = 16, heads: int = 2, longest: int = 64) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.heads = heads
        self.words = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.distances = nn.Parameter(torch.zeros(heads, longest))
        self.merge = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.merge.weight)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.tokens(generator, self.vocabulary, batch_size, length + 1),)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words[:, :-1])
        batch, length, width = hidden.shape
        split = self.qkv(self.norm(hidden)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys = functional.normalize(split[0], dim=-1), functional.normalize(split[1], dim=-1)
        steps = torch.arange(length, device=words.device)
        distance = steps.unsqueeze(1) - steps
        scores = queries @ keys.transpose(-1, -2) * self.temperature.exp()
        scores = scores + self.distances[:, distance.clamp(min=0)]
        weights = torch.softmax(scores.masked_fill(distance < 0, -torch.inf), dim=-1)
        update = self.merge((weights @ split[2]).transpose(1, 2).reshape(batch, length, width))
        logits = functional.linear(hidden + update, self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
