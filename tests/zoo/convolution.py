"""Small convolutional classifiers, one for each kind of normalisation, and other shapes of convolution."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.zoo import sampling

CLASSES = 5
CHANNELS = 3
SIDE = 12


class ImageClassifier(nn.Module):
    """Base: `layers` maps images to logits; the loss is cross entropy unless `loss` is overridden."""

    layers: nn.Module

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return sampling.labelled_images(generator, batch_size, CLASSES, CHANNELS, SIDE)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.layers(images), labels)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels)


class BatchNormCnn(ImageClassifier):
    """The classic: a biased convolution (the bias has no effect), BatchNorm, ReLU, max pooling."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
            nn.Linear(2 * width * 4, CLASSES),
        )


class InstanceNormCnn(ImageClassifier):
    """InstanceNorm without parameters after biased convolutions, strided instead of pooled;
    smoothed labels.
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, stride=2), nn.InstanceNorm2d(width), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width), nn.LeakyReLU(0.2)),
            nn.Flatten(),
            nn.Linear(width * 9, CLASSES),
        )

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, label_smoothing=0.1)


class GroupNormCnn(ImageClassifier):
    """GroupNorm and SiLU; each class is a yes or no (binary cross entropy)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU()),
            *(nn.Conv2d(width, width, 3, stride=2), nn.GroupNorm(4, width), nn.SiLU()),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, CLASSES),
        )

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(
            logits, functional.one_hot(labels, CLASSES).to(logits.dtype)
        )


class LayerNormCnn(ImageClassifier):
    """LayerNorm over channels and positions, with one scale and one shift for each of them."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, bias=False), nn.LayerNorm([width, 10, 10]), nn.GELU()),
            *(nn.Conv2d(width, width, 4, stride=2), nn.LayerNorm([width, 4, 4]), nn.GELU()),
            nn.Flatten(),
            nn.Linear(width * 16, CLASSES),
        )


class WeightNormCnn(ImageClassifier):
    """Weight normalisation as a parametrisation, and the multi-class hinge loss."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(parametrizations.weight_norm(nn.Conv2d(CHANNELS, width, 3)), nn.ELU()),
            *(parametrizations.weight_norm(nn.Conv2d(width, width, 3, stride=2)), nn.ELU()),
            nn.Flatten(),
            parametrizations.weight_norm(nn.Linear(width * 16, CLASSES), dim=0),
        )

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        right = logits.gather(1, labels.unsqueeze(1))
        wrong = functional.one_hot(labels, CLASSES).to(torch.bool).logical_not()
        return (functional.relu(1 + logits - right) * wrong).sum(dim=1).mean()


class SpectralNormCnn(ImageClassifier):
    """Spectral normalisation as a parametrisation: each forward does a power iteration in its buffers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(parametrizations.spectral_norm(nn.Conv2d(CHANNELS, width, 3)), nn.LeakyReLU(0.1)),
            *(parametrizations.spectral_norm(nn.Conv2d(width, width, 3, stride=2)), nn.LeakyReLU(0.1)),
            nn.Flatten(),
            parametrizations.spectral_norm(nn.Linear(width * 16, CLASSES)),
        )


class PlainCnn(ImageClassifier):
    """No normalisation: ReLU, average pooling, dropout of whole channels."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Dropout2d(0.2)),
            *(nn.Conv2d(width, width, 3), nn.ReLU(), nn.AvgPool2d(2)),
            nn.Flatten(),
            nn.Linear(width * 4, CLASSES),
        )


class LocalResponseCnn(ImageClassifier):
    """As AlexNet: local response normalisation, overlapping max pooling,
    dropout before wide linear layers.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Conv2d(CHANNELS, width, 4, stride=1),
                nn.ReLU(),
                nn.LocalResponseNorm(3),
                nn.MaxPool2d(3, 2),
            ),
            *(nn.Conv2d(width, 2 * width, 3, padding=1, groups=2), nn.ReLU()),
            nn.Flatten(),
            *(nn.Dropout(0.5), nn.Linear(2 * width * 16, 48), nn.ReLU(), nn.Linear(48, CLASSES)),
        )


class StandardizedConv(nn.Conv2d):
    """A convolution whose filters are standardised in each forward."""

    def forward(self, images: Tensor) -> Tensor:
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        variance = self.weight.var(dim=(1, 2, 3), keepdim=True, unbiased=False)
        return self._conv_forward(images, (self.weight - mean) * torch.rsqrt(variance + 1e-5), self.bias)


class WeightStandardizedCnn(ImageClassifier):
    """Weight standardisation with GroupNorm of one group, learned slopes (PReLU),
    zero-initialised classifier.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        classifier = nn.Linear(width, CLASSES)
        nn.init.zeros_(classifier.weight)
        self.layers = nn.Sequential(
            *(StandardizedConv(CHANNELS, width, 3), nn.GroupNorm(1, width), nn.PReLU(width)),
            *(StandardizedConv(width, width, 3, stride=2), nn.GroupNorm(1, width), nn.PReLU()),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            classifier,
        )


class Cnn3d(nn.Module):
    """3-d convolutions with BatchNorm over small clips; Huber regression of their brightness in time."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv3d(1, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU(), nn.MaxPool3d(2)),
            *(nn.Conv3d(width, 2 * width, 2), nn.BatchNorm3d(2 * width), nn.ReLU()),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 2),
        )

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        clips = sampling.normal(generator, batch_size, 1, 6, 8, 8) + sampling.normal(
            generator, batch_size, 1, 6, 1, 1
        )
        brightness = clips.mean(dim=(1, 3, 4))
        return clips, torch.stack([brightness[:, :3].mean(dim=1), brightness[:, 3:].mean(dim=1)], dim=1) * 3

    def forward(self, clips: Tensor, targets: Tensor) -> Tensor:
        return functional.huber_loss(self.layers(clips), targets)


class DilatedCnn(nn.Module):
    """As WaveNet: causal 1-d convolutions of growing dilation, gates, skip connections;
    next-sample classes.
    """

    def __init__(self, width: int = 12, levels: int = 3, depth: int = 4) -> None:
        super().__init__()
        self.levels = levels
        self.inlet = nn.Embedding(levels, width)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(depth))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.outlet = nn.Sequential(nn.ReLU(), nn.Conv1d(width, levels, 1))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.tokens(generator, self.levels, batch_size, length + 1),)

    def forward(self, samples: Tensor) -> Tensor:
        hidden = self.inlet(samples[:, :-1]).transpose(1, 2)
        total = torch.zeros_like(hidden)
        for gated, skip in zip(self.gated, self.skips, strict=True):
            values, gates = gated(functional.pad(hidden, (gated.dilation[0], 0))).chunk(2, dim=1)
            update = skip(torch.tanh(values) * torch.sigmoid(gates))
            hidden, total = hidden + update, total + update
        return functional.cross_entropy(self.outlet(total), samples[:, 1:])


class TextCnn(nn.Module):
    """Convolutions of three widths over embedded words, the maximum over time, dropout."""

    def __init__(self, vocabulary: int = 200, width: int = 16) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, size) for size in (2, 3, 4))
        self.classifier = nn.Linear(3 * width, 2)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        words = sampling.tokens(generator, self.vocabulary, batch_size, length)
        return words, (words.sum(dim=1) % 7 > 3).long()

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        embedded = self.words(words).transpose(1, 2)
        strongest = [functional.relu(convolution(embedded)).amax(dim=2) for convolution in self.convolutions]
        return functional.cross_entropy(
            self.classifier(functional.dropout(torch.cat(strongest, dim=1), 0.3, self.training)), labels
        )
