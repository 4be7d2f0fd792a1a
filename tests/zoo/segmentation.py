"""Convolutional models whose output is an image: U-Nets, segmentation, super-resolution, detection."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

SIDE = 12


def dice_loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Return one minus twice the overlap over the total."""
    probabilities, targets = torch.sigmoid(logits).flatten(1), masks.flatten(1)
    overlap = (probabilities * targets).sum(dim=1)
    return (1 - (2 * overlap + 1) / (probabilities.sum(dim=1) + targets.sum(dim=1) + 1)).mean()


def _twice(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)),
        *(nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)),
    )


class BatchNormUNet(nn.Module):
    """Biased convolutions with BatchNorm, max pooling, bilinear upsampling;
    dice plus binary cross entropy.
    """

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.down = _twice(1, width)
        self.bottom = _twice(width, 2 * width)
        self.up = _twice(3 * width, width)
        self.outlet = nn.Conv2d(width, 1, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return sampling.labelled_masks(generator, batch_size, SIDE)

    def forward(self, images: Tensor, masks: Tensor) -> Tensor:
        fine = self.down(images)
        coarse = self.bottom(functional.max_pool2d(fine, 2))
        coarse = functional.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        logits = self.outlet(self.up(torch.cat([fine, coarse], dim=1))).squeeze(1)
        targets = masks.to(logits.dtype)
        return dice_loss(logits, targets) + functional.binary_cross_entropy_with_logits(logits, targets)


class PlainUNet(nn.Module):
    """No normalisation, strided and transposed convolutions, a residual output;
    L1 against the clean image.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inlet = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.bottom = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.outlet = nn.Conv2d(2 * width, 1, 3, padding=1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        images, masks = sampling.labelled_masks(generator, batch_size, SIDE)
        return images, masks.float().unsqueeze(1)

    def forward(self, images: Tensor, clean: Tensor) -> Tensor:
        fine = functional.leaky_relu(self.inlet(images), 0.2)
        coarse = functional.leaky_relu(self.bottom(functional.leaky_relu(self.down(fine), 0.2)), 0.2)
        together = torch.cat([fine, functional.leaky_relu(self.up(coarse), 0.2)], dim=1)
        return functional.l1_loss(images + self.outlet(together), clean)


class SegmentationNet(nn.Module):
    """Fully convolutional, with atrous branches as DeepLab; classes per pixel,
    of which a border is ignored.
    """

    def __init__(self, width: int = 8, classes: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.atrous = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=rate, dilation=rate, bias=False) for rate in (1, 2, 3)
        )
        self.norm = nn.BatchNorm2d(3 * width)
        self.classifier = nn.Sequential(nn.Dropout(0.1), nn.Conv2d(3 * width, classes, 1))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        images, masks = sampling.labelled_masks(generator, batch_size, SIDE)
        masks[:, 0] = 255
        masks[:, :, 0] = 255
        return images, masks

    def forward(self, images: Tensor, masks: Tensor) -> Tensor:
        hidden = self.stem(images)
        hidden = functional.relu(self.norm(torch.cat([atrous(hidden) for atrous in self.atrous], dim=1)))
        logits = functional.interpolate(self.classifier(hidden), size=masks.shape[1:], mode="bilinear")
        return functional.cross_entropy(logits, masks, ignore_index=255)


class SuperResolution(nn.Module):
    """As ESPCN and EDSR: residual blocks scaled by 0.1, sub-pixel shuffle, the Charbonnier loss."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.inlet = nn.Conv2d(1, width, 3, padding=1)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.outlet = nn.Conv2d(width, 4, 3, padding=1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        fine, _ = sampling.labelled_images(generator, batch_size, 4, 1, SIDE)
        return functional.avg_pool2d(fine, 2), fine

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        hidden = self.inlet(coarse)
        hidden = hidden + 0.1 * self.second(functional.relu(self.first(hidden)))
        error = functional.pixel_shuffle(self.outlet(hidden), 2) - fine
        return (error.square() + 1e-4).sqrt().mean()


class Detector(nn.Module):
    """As YOLO: per cell a score, a box and a class; boxes and classes count only where an object is."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.classes = classes
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.SiLU()),
            *(nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.SiLU()),
            nn.Conv2d(width, 1 + 4 + classes, 1),
        )
        nn.init.constant_(self.layers[-1].bias[:1], -2.0)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        images, labels = sampling.labelled_images(generator, batch_size, self.classes, 1, SIDE)
        occupied = (sampling.uniform(generator, batch_size, 3, 3) < 0.3).float()
        occupied[:, 1, 1] = 1
        return images, occupied, sampling.uniform(generator, batch_size, 4, 3, 3), labels

    def forward(self, images: Tensor, occupied: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        output = self.layers(images)
        scores = functional.binary_cross_entropy_with_logits(output[:, 0], occupied)
        distances = functional.smooth_l1_loss(
            output[:, 1:5].sigmoid(), boxes, reduction="none", beta=0.1
        ).sum(dim=1)
        classes = functional.cross_entropy(
            output[:, 5:], labels.view(-1, 1, 1).expand(-1, 3, 3), reduction="none"
        )
        return scores + ((distances + classes) * occupied).sum() / occupied.sum()
