"""Mixtures of experts: routers that choose, that mix softly, and that leave experts out."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling


class ExpertModel(nn.Module):
    """Base: a language model of one layer;
    `mix` maps tokens [N, width] to their update and an auxiliary loss.
    """

    def __init__(self, vocabulary: int = 50, width: int = 12, experts: int = 4) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(sampling.mlp(width, 2 * width, width) for _ in range(experts))
        self.outlet = nn.Linear(width, vocabulary)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.tokens(generator, self.vocabulary, batch_size, length + 1),)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words[:, :-1]).flatten(0, 1)
        update, auxiliary = self.mix(self.norm(hidden))
        return functional.cross_entropy(self.outlet(hidden + update), words[:, 1:].flatten()) + auxiliary

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def balance(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return the loss of Switch:
    experts times the product of the share of tokens and the mean probability.
    """
    shares = functional.one_hot(chosen, probabilities.shape[1]).to(probabilities.dtype).mean(dim=0)
    return probabilities.shape[1] * (shares * probabilities.mean(dim=0)).sum()


class SwitchExperts(ExpertModel):
    """Top-1: multiplicative jitter, a capacity beyond which tokens are dropped, balance and router losses."""

    def __init__(self, capacity: float = 1.25) -> None:
        super().__init__()
        self.capacity = capacity

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        jitter = 0.98 + 0.04 * sampling.uniform_like(hidden) if self.training else 1.0
        logits = self.router(hidden * jitter)
        probabilities = torch.softmax(logits, dim=1)
        gates, chosen = probabilities.max(dim=1)
        update = torch.zeros_like(hidden)
        for index, expert in enumerate(self.experts):
            members = (chosen == index).nonzero().squeeze(1)
            members = members[: int(self.capacity * len(hidden) / len(self.experts))]
            update = update.index_add(0, members, gates[members].unsqueeze(1) * expert(hidden[members]))
        auxiliary = (
            0.01 * balance(probabilities, chosen) + 0.001 * torch.logsumexp(logits, dim=1).square().mean()
        )
        return update, auxiliary


class TopTwoExperts(ExpertModel):
    """As Mixtral: the two best experts, their probabilities divided by their sum."""

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = torch.softmax(self.router(hidden), dim=1)
        gates, chosen = probabilities.topk(2, dim=1)
        gates = gates / gates.sum(dim=1, keepdim=True)
        update = torch.zeros_like(hidden)
        for index, expert in enumerate(self.experts):
            members, ranks = (chosen == index).nonzero(as_tuple=True)
            update = update.index_add(
                0, members, gates[members, ranks].unsqueeze(1) * expert(hidden[members])
            )
        return update, 0.02 * balance(probabilities, chosen[:, 0])


class SharedExperts(ExpertModel):
    """As DeepSeek-V3: sigmoid scores, a selection bias that is no parameter,
    an expert that each token passes.
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__(width=width, experts=6)
        self.shared = sampling.mlp(width, width, width, activation=nn.SiLU)
        self.register_buffer("selection", torch.linspace(-0.05, 0.05, 6))

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.sigmoid(self.router(hidden))
        chosen = (scores + self.selection).topk(2, dim=1).indices
        gates = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
        gates = gates / gates.sum(dim=1, keepdim=True)
        outputs = torch.stack([expert(hidden) for expert in self.experts], dim=1)
        update = self.shared(hidden) + (gates.unsqueeze(2) * outputs).sum(dim=1)
        return update, torch.zeros_like(update[0, 0])


class SoftExperts(ExpertModel):
    """Soft mixture: slots are averages of all tokens, tokens are averages of all slots; it is not causal."""

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(hidden)
        slots = torch.softmax(logits, dim=0).T @ hidden
        outputs = torch.stack([expert(slot) for expert, slot in zip(self.experts, slots, strict=True)])
        return torch.softmax(logits, dim=1) @ outputs, torch.zeros_like(hidden[0, 0])


class ChoosingExperts(ExpertModel):
    """Experts choose their tokens: a token may have several experts, or none."""

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = torch.softmax(self.router(hidden), dim=1)
        gates, members = probabilities.topk(max(1, len(hidden) // 3), dim=0)
        update = torch.zeros_like(hidden)
        for index, expert in enumerate(self.experts):
            output = gates[:, index].unsqueeze(1) * expert(hidden[members[:, index]])
            update = update.index_add(0, members[:, index], output)
        return update, torch.zeros_like(hidden[0, 0])


class GumbelExperts(ExpertModel):
    """Hard choices with Gumbel noise; the gradient passes as if the choice were soft."""

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(hidden)
        noise = -torch.log(-torch.log(sampling.uniform_like(logits)))
        soft = torch.softmax(logits + noise, dim=1)
        hard = functional.one_hot(soft.argmax(dim=1), soft.shape[1]).to(soft.dtype)
        gates = hard + soft - soft.detach()
        outputs = torch.stack([expert(hidden) for expert in self.experts], dim=1)
        entropy = -(soft * (soft + 1e-6).log()).sum(dim=1).mean()
        return (gates.unsqueeze(2) * outputs).sum(dim=1), -0.01 * entropy


class SkippedExperts(ExpertModel):
    """Experts without a token are not called, so that their parameters have no gradient in that step."""

    unused = ("experts",)

    def __init__(self) -> None:
        super().__init__(experts=8)

    def mix(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        gates, chosen = torch.softmax(self.router(hidden), dim=1).max(dim=1)
        update = torch.zeros_like(hidden)
        for index in chosen.unique().tolist():
            members = (chosen == index).nonzero().squeeze(1)
            update[members] = gates[members].unsqueeze(1) * self.experts[index](hidden[members])
        return update, torch.zeros_like(hidden[0, 0])


class ExpertRegressions(nn.Module):
    """The mixture of 1991: linear experts, a linear gate, and the likelihood of the mixture."""

    def __init__(self, features: int = 4, experts: int = 3) -> None:
        super().__init__()
        self.features = features
        self.gate = nn.Linear(features, experts)
        self.experts = nn.Linear(features, experts)
        self.log_scales = nn.Parameter(torch.zeros(experts))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, batch_size, length, self.features)
        bent = torch.where(features[..., 0] > 0, features.sum(dim=2), -2 * features[..., 1])
        return features, bent + 0.1 * sampling.normal(generator, batch_size, length)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        errors = (targets.unsqueeze(2) - self.experts(features)) * torch.exp(-self.log_scales)
        scores = functional.log_softmax(self.gate(features), dim=2) - self.log_scales - 0.5 * errors.square()
        return -torch.logsumexp(scores, dim=2).mean()


class MultiGateExperts(nn.Module):
    """Shared experts, a gate and a tower per task; a click (binary cross entropy) and a price (L1)."""

    def __init__(self, features: int = 8, width: int = 12, experts: int = 3) -> None:
        super().__init__()
        self.features = features
        self.experts = nn.ModuleList(sampling.mlp(features, width, width) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(features, experts, bias=False) for _ in range(2))
        self.towers = nn.ModuleList(sampling.mlp(width, 8, 1) for _ in range(2))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        features = sampling.normal(generator, batch_size * 4, self.features)
        return features, (features[:, 0] > 0.5).float(), features[:, 1:3].prod(dim=1)

    def forward(self, features: Tensor, clicks: Tensor, prices: Tensor) -> Tensor:
        outputs = torch.stack([functional.relu(expert(features)) for expert in self.experts], dim=2)
        mixed = [outputs @ torch.softmax(gate(features), dim=1).unsqueeze(2) for gate in self.gates]
        click, price = (
            tower(hidden.squeeze(2)).squeeze(1) for tower, hidden in zip(self.towers, mixed, strict=True)
        )
        return functional.binary_cross_entropy_with_logits(click, clicks) + functional.l1_loss(price, prices)
