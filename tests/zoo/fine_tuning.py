"""Models of which only a part is trained, and models with parameters that a step does not use."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling


class Base(nn.Module):
    """A causal transformer of two of torch's layers."""

    def __init__(self, vocabulary: int = 50, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.outlet = nn.Linear(width, vocabulary)

    def hidden(self, embedded: Tensor) -> Tensor:
        length = embedded.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=embedded.device).triu(1)
        return self.layers(embedded + self.positions[:length], mask)

    def forward(self, words: Tensor) -> Tensor:
        return self.outlet(self.hidden(self.words(words)))


class TunedModel(nn.Module):
    """Base: a frozen `Base`, whose next-token loss is trained by other means."""

    def __init__(self, vocabulary: int = 50) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.base = Base(vocabulary).requires_grad_(requires_grad=False)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.tokens(generator, self.vocabulary, batch_size, length + 1),)

    def forward(self, words: Tensor) -> Tensor:
        return functional.cross_entropy(self.base(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a product of two small matrices, of which the second starts as zero."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(torch.empty(rank, frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.frozen(hidden) + 2 * functional.linear(
            functional.linear(functional.dropout(hidden, 0.05, self.training), self.down), self.up
        )


class LowRankTuning(TunedModel):
    """LoRA of the feed-forward layers and the outlet."""

    def __init__(self, rank: int = 2) -> None:
        super().__init__()
        for layer in self.base.layers.layers:
            layer.linear1 = LowRankLinear(layer.linear1, rank)
            layer.linear2 = LowRankLinear(layer.linear2, rank)
        self.base.outlet = LowRankLinear(self.base.outlet, rank)


class BiasTuning(TunedModel):
    """BitFit: only biases, and scales of LayerNorm, are trained."""

    def __init__(self) -> None:
        super().__init__()
        for name, parameter in self.base.named_parameters():
            parameter.requires_grad_(name.endswith("bias") or "norm" in name)


class PromptTuning(TunedModel):
    """Soft prompts before a frozen model."""

    def __init__(self, prompts: int = 4) -> None:
        super().__init__()
        self.prompts = nn.Parameter(self.base.words.weight[:prompts].detach().clone())

    def forward(self, words: Tensor) -> Tensor:
        embedded = self.base.words(words[:, :-1])
        embedded = torch.cat([self.prompts.expand(len(words), -1, -1), embedded], dim=1)
        logits = self.base.outlet(self.base.hidden(embedded)[:, len(self.prompts) :])
        return functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


class Distillation(nn.Module):
    """A narrow student of a frozen random teacher: Kullback-Leibler divergence at a temperature,
    plus labels.
    """

    def __init__(self, features: int = 10, classes: int = 6, temperature: float = 2.0) -> None:
        super().__init__()
        self.features = features
        self.classes = classes
        self.temperature = temperature
        self.teacher = sampling.mlp(features, 64, classes).requires_grad_(requires_grad=False)
        self.student = sampling.mlp(features, 8, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, 4 * batch_size, self.features)
        return features, features[:, : self.classes].argmax(dim=1)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            targets = functional.softmax(self.teacher(features) / self.temperature, dim=1)
        logits = self.student(features)
        scores = functional.log_softmax(logits / self.temperature, dim=1)
        divergence = functional.kl_div(scores, targets, reduction="batchmean") * self.temperature**2
        return 0.7 * divergence + 0.3 * functional.cross_entropy(logits, labels)


class FrozenBatchNorm(nn.Module):
    """A frozen convolution under a BatchNorm in evaluation mode, as backbones of detectors; a new head."""

    def __init__(self, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = nn.Sequential(nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width))
        self.backbone.requires_grad_(requires_grad=False)
        self.block = nn.Conv2d(width, width, 3)
        self.head = nn.Linear(width, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return sampling.labelled_images(generator, batch_size, self.classes, 3, 12)

    def train(self, mode: bool = True) -> "FrozenBatchNorm":
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = functional.relu(self.block(functional.relu(self.backbone(images))))
        return functional.cross_entropy(self.head(hidden.mean(dim=(2, 3))), labels)


class UnusedHead(nn.Module):
    """A head that no step uses, and a layer behind a detached input:
    their parameters have no or zero gradients.
    """

    unused = ("old_head",)

    def __init__(self, features: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.features = features
        self.classes = classes
        self.body = sampling.mlp(features, 16, 16)
        self.old_head = nn.Linear(16, 10)
        self.head = nn.Linear(16, classes)
        self.ignored = nn.Linear(16, classes)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, 4 * batch_size, self.features)
        return features, features[:, : self.classes].argmin(dim=1)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        hidden = functional.relu(self.body(features))
        return functional.cross_entropy(self.head(hidden) + 0 * self.ignored(hidden.detach()), labels)


class LayerDrop(nn.Module):
    """Layers that a random draw of the step leaves out: some steps give them no gradient."""

    unused = ("layers",)

    def __init__(self, features: int = 8, width: int = 16, depth: int = 4, drop: float = 0.3) -> None:
        super().__init__()
        self.features = features
        self.drop = drop
        self.inlet = nn.Linear(features, width)
        self.layers = nn.ModuleList(sampling.mlp(width, width, width) for _ in range(depth))
        self.outlet = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, 4 * batch_size, self.features)
        return features, features.abs().sum(dim=1, keepdim=True)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        hidden = self.inlet(features)
        for layer in self.layers:
            if not self.training or torch.rand(()).item() >= self.drop:
                hidden = hidden + layer(functional.relu(hidden))
        return functional.mse_loss(self.outlet(functional.relu(hidden)), targets)


class Preferences(nn.Module):
    """Direct preference optimisation: a policy against its frozen first copy, by pairs of answers."""

    def __init__(self, vocabulary: int = 50) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.policy = Base(vocabulary)
        self.reference = copy.deepcopy(self.policy).requires_grad_(requires_grad=False)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        chosen = sampling.tokens(generator, self.vocabulary, batch_size, length + 1)
        return chosen, sampling.whole(generator, self.vocabulary, batch_size, length + 1)

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        words = torch.cat([chosen, rejected])
        with torch.no_grad():
            reference = self._likelihood(self.reference, words)
        margins = self._likelihood(self.policy, words) - reference
        better, worse = margins.chunk(2)
        return -functional.logsigmoid(0.1 * (better - worse)).mean()

    def _likelihood(self, model: Base, words: Tensor) -> Tensor:
        scores = functional.log_softmax(model(words[:, :-1]), dim=2)
        return scores.gather(2, words[:, 1:].unsqueeze(2)).sum(dim=(1, 2))
