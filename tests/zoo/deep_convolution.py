"""The classifiers of the literature in small: VGG, ResNet, DenseNet, MobileNet, ConvNeXt and their kin."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling
from tests.zoo.convolution import CHANNELS, CLASSES, ImageClassifier


class Vgg(ImageClassifier):
    """Pairs of biased convolutions with ReLU, max pooling, a wide classifier with dropout;
    no normalisation.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(2 * width * 9, 64), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(64, CLASSES)),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)


class ResidualBlock(nn.Module):
    """Post-activation, with BatchNorm; the last scale starts as zero,
    as recipes for large batches have it.
    """

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        nn.init.zeros_(self.second_norm.weight)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(images))


class ResNet(ImageClassifier):
    """BatchNorm, post-activation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(ResidualBlock(width, width, 1), ResidualBlock(width, 2 * width, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES)),
        )


class PreActivationBlock(nn.Module):
    """GroupNorm and ReLU before each convolution; the sum stays untouched."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.GroupNorm(2, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.GroupNorm(2, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)),
        )

    def forward(self, images: Tensor) -> Tensor:
        return images + self.layers(images)


class PreActivationResNet(ImageClassifier):
    """GroupNorm, pre-activation."""

    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        blocks = [PreActivationBlock(width) for _ in range(depth)]
        self.layers = nn.Sequential(
            nn.Conv2d(CHANNELS, width, 3, stride=2, padding=1),
            *blocks,
            *(nn.GroupNorm(2, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(width, CLASSES),
        )


class FixupBlock(nn.Module):
    """No normalisation: scalar biases and a scalar scale, the second convolution starts as zero."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(()))
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        nn.init.normal_(self.first.weight, std=(2 / (9 * width)) ** 0.5 * depth**-0.5)
        nn.init.zeros_(self.second.weight)

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.first(images + self.biases[0]) + self.biases[1])
        return functional.relu(images + self.second(hidden + self.biases[2]) * self.scale + self.biases[3])


class FixupResNet(ImageClassifier):
    """A residual network without normalisation, with parameters of shape []."""

    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        classifier = nn.Linear(width, CLASSES)
        nn.init.zeros_(classifier.weight)
        nn.init.zeros_(classifier.bias)
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, stride=2, padding=1), nn.ReLU()),
            *(FixupBlock(width, depth) for _ in range(depth)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), classifier),
        )


class DenseLayer(nn.Module):
    """BatchNorm, ReLU, convolution; its input is concatenated to its output."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, 2 * growth, 1, bias=False)),
            *(nn.BatchNorm2d(2 * growth), nn.ReLU(), nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)),
        )

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([images, self.layers(images)], dim=1)


class DenseNet(ImageClassifier):
    """Two dense blocks with a transition between them."""

    def __init__(self, growth: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(CHANNELS, 8, 3, padding=1, bias=False),
            *(DenseLayer(8, growth), DenseLayer(8 + growth, growth)),
            *(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1, bias=False), nn.AvgPool2d(2)),
            *(DenseLayer(8, growth), DenseLayer(8 + growth, growth)),
            *(nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)),
        )


def _separable(before: int, after: int, stride: int) -> list[nn.Module]:
    return [
        *(nn.Conv2d(before, before, 3, stride, padding=1, groups=before, bias=False), nn.BatchNorm2d(before)),
        *(nn.ReLU6(), nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU6()),
    ]


class DepthwiseSeparableCnn(ImageClassifier):
    """As MobileNet: depthwise and pointwise convolutions, BatchNorm, ReLU6."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(CHANNELS, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()),
            *(*_separable(width, 2 * width, 2), *_separable(2 * width, 2 * width, 1)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width, CLASSES)),
        )


class SqueezeExcite(nn.Module):
    """Channels are weighed by a bottleneck over their averages."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.gates = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, squeezed, 1), nn.ReLU()),
            *(nn.Conv2d(squeezed, width, 1), nn.Hardsigmoid()),
        )

    def forward(self, images: Tensor) -> Tensor:
        return images * self.gates(images)


class SqueezeExciteCnn(ImageClassifier):
    """As MobileNetV3: an inverted residual with squeeze-and-excitation and hard activations."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(CHANNELS, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
        )
        wide = 3 * width
        self.inverted = nn.Sequential(
            *(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide)),
            *(
                SqueezeExcite(wide, 4),
                nn.Hardswish(),
                nn.Conv2d(wide, width, 1, bias=False),
                nn.BatchNorm2d(width),
            ),
        )
        self.classifier = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = self.stem(images)
        hidden = hidden + self.inverted(hidden)
        return self.loss(self.classifier(hidden.mean(dim=(2, 3))), labels)


class ConvNextBlock(nn.Module):
    """A 7 x 7 depthwise convolution, LayerNorm over channels, a layer scale of 1e-6, stochastic depth."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.depthwise(images).permute(0, 2, 3, 1))
        update = (self.scale * self.narrow(functional.gelu(self.wide(hidden)))).permute(0, 3, 1, 2)
        if self.training:
            kept = torch.rand(len(images), 1, 1, 1, device=images.device) >= self.drop
            update = update * kept.to(update.dtype) / (1 - self.drop)
        return images + update


class ConvNext(ImageClassifier):
    """A patch stem and two blocks with a downsampling between them."""

    def __init__(self, width: int = 8, drop: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, width, 2, stride=2)
        self.blocks = nn.Sequential(
            *(ConvNextBlock(width, drop), nn.GroupNorm(1, width), nn.Conv2d(width, 2 * width, 2, stride=2)),
            ConvNextBlock(2 * width, drop),
        )
        self.norm = nn.LayerNorm(2 * width)
        self.classifier = nn.Linear(2 * width, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = self.blocks(self.stem(images)).mean(dim=(2, 3))
        return self.loss(self.classifier(self.norm(hidden)), labels)


class Inception(ImageClassifier):
    """Parallel convolutions of several sizes with a pooling branch,
    and an auxiliary classifier of small weight.
    """

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(CHANNELS, width, 3), nn.BatchNorm2d(width, eps=1e-3), nn.ReLU())
        self.branches = nn.ModuleList(
            [nn.Conv2d(width, width, size, padding=size // 2) for size in (1, 3, 5)]
            + [nn.Sequential(nn.MaxPool2d(3, 1, padding=1), nn.Conv2d(width, width, 1))]
        )
        self.auxiliary = nn.Linear(width, CLASSES)
        self.classifier = nn.Linear(4 * width, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = self.stem(images)
        together = torch.cat([functional.relu(branch(hidden)) for branch in self.branches], dim=1)
        auxiliary = self.loss(self.auxiliary(hidden.mean(dim=(2, 3))), labels)
        return self.loss(self.classifier(together.mean(dim=(2, 3))), labels) + 0.3 * auxiliary


class AudioCnn(nn.Module):
    """A raw waveform: strided 1-d convolutions with BatchNorm,
    several labels per clip (binary cross entropy).
    """

    def __init__(self, width: int = 8, labels: int = 4) -> None:
        super().__init__()
        self.labels = labels
        self.layers = nn.Sequential(
            *(nn.Conv1d(1, width, 16, stride=4), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2)),
            *(nn.Conv1d(width, 2 * width, 5), nn.BatchNorm1d(2 * width), nn.ReLU()),
            *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, labels)),
        )

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        present = sampling.whole(generator, 2, batch_size, self.labels).float()
        time = torch.arange(16 * length).float()
        tones = torch.sin(time * 0.2 * (torch.arange(self.labels).float().unsqueeze(1) + 1))
        waves = present @ tones + 0.5 * sampling.normal(generator, batch_size, 16 * length)
        return waves.unsqueeze(1), present

    def forward(self, waves: Tensor, present: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self.layers(waves), present)
