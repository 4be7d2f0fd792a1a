"""Embeddings learned by comparison: towers, twins, triplets, margins."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

SIDE = 8


def image_tower(width: int, after: int, *, normalised: bool = True) -> nn.Sequential:
    """Return a small convolutional encoder of images [B, 1, SIDE, SIDE]."""
    norm = nn.BatchNorm2d(width) if normalised else nn.Identity()
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, stride=2, padding=1), norm, nn.ReLU()),
        *(
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * width, after),
        ),
    )


class TwoViews(nn.Module):
    """Base: two noisy views of each image."""

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        images, _ = sampling.labelled_images(generator, batch_size, 6, 1, SIDE)
        first = images + 0.3 * sampling.normal(generator, *images.shape)
        second = images.flip(3) + 0.3 * sampling.normal(generator, *images.shape)
        return first, second


class Clip(nn.Module):
    """Two towers, for images and texts, and a learned scale of their cosines."""

    def __init__(self, width: int = 12, vocabulary: int = 30) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.images = image_tower(8, width, normalised=False)
        self.words = nn.Embedding(vocabulary, width)
        self.texts = nn.TransformerEncoderLayer(width, 2, 24, 0.0, "gelu", batch_first=True, norm_first=True)
        self.text_projection = nn.Parameter(width**-0.5 * torch.randn(width, width))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        images, labels = sampling.labelled_images(generator, batch_size, 6, 1, SIDE)
        return images, (
            sampling.skewed(generator, 5, batch_size, length) + 5 * labels.unsqueeze(1)
        ) % self.vocabulary

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        image = functional.normalize(self.images(images), dim=1)
        text = functional.normalize(self.texts(self.words(words)).amax(dim=1) @ self.text_projection, dim=1)
        logits = self.logit_scale.exp().clamp(max=100) * image @ text.T
        labels = torch.arange(len(logits), device=logits.device)
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2


class Siglip(nn.Module):
    """Two linear towers and sigmoids of all pairs, with a learned scale and a learned bias of shape []."""

    def __init__(self, features: int = 8, width: int = 12) -> None:
        super().__init__()
        self.features = features
        self.first = sampling.mlp(features, width, width, activation=nn.GELU)
        self.second = sampling.mlp(features, width, width, activation=nn.GELU)
        self.scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.bias = nn.Parameter(torch.tensor(-10.0))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, 2 * batch_size, self.features)
        return features, features.cumsum(dim=1) + 0.1 * sampling.normal(generator, *features.shape)

    def forward(self, features: Tensor, others: Tensor) -> Tensor:
        first, second = (
            functional.normalize(self.first(features), dim=1),
            functional.normalize(self.second(others), dim=1),
        )
        logits = first @ second.T * self.scale.exp() + self.bias
        signs = 2 * torch.eye(len(logits), dtype=logits.dtype, device=logits.device) - 1
        return -functional.logsigmoid(signs * logits).sum(dim=1).mean()


class SimClr(TwoViews):
    """BatchNorm in the encoder and in the projection;
    each view is found among all others at a low temperature.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = image_tower(8, width)
        self.projection = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 8, bias=False)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        hidden = functional.normalize(self.projection(self.encoder(torch.cat([first, second]))), dim=1)
        logits = (hidden @ hidden.T / 0.1).fill_diagonal_(-1e4)
        return functional.cross_entropy(
            logits, torch.arange(len(hidden), device=hidden.device).roll(len(first))
        )


class BarlowTwins(TwoViews):
    """The correlation of the outputs over the batch shall be the identity."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.encoder = image_tower(6, width)
        self.norm = nn.BatchNorm1d(width, affine=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        left, right = self.norm(self.encoder(first)), self.norm(self.encoder(second))
        correlation = left.T @ right / len(left)
        identity = torch.eye(len(correlation), dtype=correlation.dtype, device=correlation.device)
        return ((correlation - identity).square() * (0.005 + 0.995 * identity)).sum()


class VicReg(TwoViews):
    """Agreement of views, a hinge on each deviation, small covariances."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.encoder = image_tower(6, width)
        self.projection = sampling.mlp(width, 16, 8)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        left, right = self.projection(self.encoder(first)), self.projection(self.encoder(second))
        loss = 25 * functional.mse_loss(left, right)
        for hidden in (left, right):
            centred = hidden - hidden.mean(dim=0)
            deviations = (centred.square().sum(dim=0) / (len(hidden) - 1) + 1e-4).sqrt()
            covariance = centred.T @ centred / (len(hidden) - 1)
            outside = covariance - torch.diag(covariance.diagonal())
            loss = (
                loss + 25 * functional.relu(1 - deviations).mean() + outside.square().sum() / len(covariance)
            )
        return loss


class Byol(TwoViews):
    """A predictor follows a frozen copy of the encoder, by cosine similarity; the copy has no gradient."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.encoder = image_tower(6, width)
        self.target = copy.deepcopy(self.encoder).requires_grad_(requires_grad=False)
        self.predictor = nn.Sequential(
            nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, width)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        with torch.no_grad():
            targets = self.target(second), self.target(first)
        outputs = self.predictor(self.encoder(first)), self.predictor(self.encoder(second))
        pairs = zip(outputs, targets, strict=True)
        return torch.stack(
            [2 - 2 * functional.cosine_similarity(output, target).mean() for output, target in pairs]
        ).sum()


class Siamese(TwoViews):
    """Pairs of which half are alike: the distance is squared, or pushed above a margin."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.encoder = image_tower(6, width, normalised=False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        left, right = self.encoder(first), self.encoder(second)
        near = functional.pairwise_distance(left, right)
        far = functional.pairwise_distance(left, right.roll(1, dims=0))
        return near.square().mean() + functional.relu(0.5 - far).square().mean()


class Triplet(nn.Module):
    """An anchor, a similar and a dissimilar sample; many triplets are easy and have no gradient."""

    def __init__(self, features: int = 6, width: int = 16) -> None:
        super().__init__()
        self.features = features
        self.encoder = nn.Sequential(
            nn.Linear(features, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 4)
        )

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        anchors = sampling.normal(generator, 2 * batch_size, self.features)
        similar = anchors + 0.4 * sampling.normal(generator, *anchors.shape)
        return anchors, similar, sampling.normal(generator, *anchors.shape)

    def forward(self, anchors: Tensor, similar: Tensor, dissimilar: Tensor) -> Tensor:
        return functional.triplet_margin_loss(*map(self.encoder, (anchors, similar, dissimilar)), margin=0.3)


class ArcFace(nn.Module):
    """Classes by angle, with an additive margin for the right class."""

    def __init__(self, classes: int = 8, width: int = 8) -> None:
        super().__init__()
        self.classes = classes
        self.encoder = nn.Sequential(image_tower(6, width), nn.BatchNorm1d(width))
        self.centres = nn.Parameter(torch.empty(classes, width))
        nn.init.xavier_uniform_(self.centres)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return sampling.labelled_images(generator, batch_size, self.classes, 1, SIDE)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        cosines = functional.linear(
            functional.normalize(self.encoder(images), dim=1), functional.normalize(self.centres, dim=1)
        )
        angles = torch.acos(cosines.clamp(-0.99, 0.99))
        margins = 0.3 * functional.one_hot(labels, self.classes).to(angles.dtype)
        return functional.cross_entropy(16 * torch.cos(angles + margins), labels)
