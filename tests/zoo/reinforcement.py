"""The losses of reinforcement learning on recorded steps:
returns and old probabilities come with the batch.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

OBSERVATIONS = 6
ACTIONS = 4


def recorded(generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return observations [N, OBSERVATIONS], actions [N] and rewards [N], which favour one action;
    N = both sizes.
    """
    observations = sampling.normal(generator, batch_size * length, OBSERVATIONS)
    actions = sampling.whole(generator, ACTIONS, batch_size * length)
    best = observations[:, :ACTIONS].argmax(dim=1)
    return observations, actions, (actions == best).float() + 0.5 * sampling.normal(generator, len(actions))


class Reinforce(nn.Module):
    """The policy gradient with normalised returns and an entropy bonus: the loss has no lower bound."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.policy = sampling.mlp(OBSERVATIONS, width, ACTIONS, activation=nn.Tanh)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return recorded(generator, batch_size, length)

    def forward(self, observations: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
        scores = functional.log_softmax(self.policy(observations), dim=1)
        advantages = (returns - returns.mean()) / (returns.std() + 1e-4)
        entropy = -(scores.exp() * scores).sum(dim=1).mean()
        return -(scores.gather(1, actions.unsqueeze(1)).squeeze(1) * advantages).mean() - 0.01 * entropy


class Ppo(nn.Module):
    """Shared trunk with orthogonal weights, a clipped ratio, a clipped value, entropy."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(OBSERVATIONS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.actor = nn.Linear(width, ACTIONS)
        self.critic = nn.Linear(width, 1)
        gains = {self.trunk[0]: 2**0.5, self.trunk[2]: 2**0.5, self.actor: 0.01, self.critic: 1.0}
        for layer, gain in gains.items():
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        observations, actions, returns = recorded(generator, batch_size, length)
        old_scores = -1.4 + 0.2 * sampling.normal(generator, len(actions))
        return observations, actions, returns, old_scores, 0.3 * sampling.normal(generator, len(actions))

    def forward(
        self, observations: Tensor, actions: Tensor, returns: Tensor, old_scores: Tensor, old_values: Tensor
    ) -> Tensor:
        hidden = self.trunk(observations)
        scores = functional.log_softmax(self.actor(hidden), dim=1)
        values = self.critic(hidden).squeeze(1)
        advantages = returns - old_values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-4)
        ratios = torch.exp(scores.gather(1, actions.unsqueeze(1)).squeeze(1) - old_scores)
        gain = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages).mean()
        near = old_values + (values - old_values).clamp(-0.2, 0.2)
        error = 0.5 * torch.maximum((values - returns).square(), (near - returns).square()).mean()
        return 0.5 * error - gain + 0.01 * (scores.exp() * scores).sum(dim=1).mean()


class Dqn(nn.Module):
    """Huber loss against a frozen copy, which does not follow; double Q-learning,
    optionally duelling heads.
    """

    def __init__(self, width: int = 24, duelling: bool = False) -> None:
        super().__init__()
        self.duelling = duelling
        self.online = sampling.mlp(OBSERVATIONS, width, width, ACTIONS + int(duelling))
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        observations, actions, rewards = recorded(generator, batch_size, length)
        following = observations + 0.3 * sampling.normal(generator, *observations.shape)
        return (
            observations,
            actions,
            rewards,
            following,
            (sampling.uniform(generator, len(actions)) < 0.9).float(),
        )

    def forward(
        self, observations: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, goes_on: Tensor
    ) -> Tensor:
        values = self._values(self.online, observations).gather(1, actions.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self._values(self.online, following).argmax(dim=1, keepdim=True)
            later = self._values(self.target, following).gather(1, best).squeeze(1)
        return functional.smooth_l1_loss(values, rewards + 0.9 * goes_on * later)

    def _values(self, network: nn.Module, observations: Tensor) -> Tensor:
        output = network(observations)
        if not self.duelling:
            return output
        advantages = output[:, 1:]
        return output[:, :1] + advantages - advantages.mean(dim=1, keepdim=True)


class CategoricalDqn(nn.Module):
    """As C51: values are distributions over atoms, shifted targets are projected to the atoms;
    a visual input.
    """

    def __init__(self, atoms: int = 11) -> None:
        super().__init__()
        self.register_buffer("atoms", torch.linspace(-2, 2, atoms))
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.outlet = nn.Linear(8 * 9, ACTIONS * atoms)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        images, labels = sampling.labelled_images(generator, 2 * batch_size, ACTIONS, 1, 8)
        actions = sampling.whole(generator, ACTIONS, 2 * batch_size)
        return images, actions, (actions == labels).float()

    def forward(self, images: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        logits = self.outlet(self.encoder(images)).unflatten(1, (ACTIONS, -1))
        scores = functional.log_softmax(logits, dim=2)
        with torch.no_grad():
            best = (scores.exp() * self.atoms).sum(dim=2).argmax(dim=1)
            later = scores.exp()[torch.arange(len(best), device=best.device), best]
            moved = (rewards.unsqueeze(1) + 0.5 * self.atoms).clamp(-2, 2)
            nearness = 1 - (moved.unsqueeze(2) - self.atoms).abs() / (self.atoms[1] - self.atoms[0])
            targets = (later.unsqueeze(2) * nearness.clamp(0, 1)).sum(dim=1)
        chosen = scores[torch.arange(len(actions), device=actions.device), actions]
        return -(targets * chosen).sum(dim=1).mean()


class SoftActorCritic(nn.Module):
    """Squashed Gaussian actions, two critics, frozen copies that judge the actor,
    and a learned temperature.
    """

    def __init__(self, width: int = 20, actions: int = 2) -> None:
        super().__init__()
        self.actions = actions
        self.actor = sampling.mlp(OBSERVATIONS, width, 2 * actions)
        self.critics = nn.ModuleList(sampling.mlp(OBSERVATIONS + actions, width, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(requires_grad=False)
        self.log_temperature = nn.Parameter(torch.tensor(-1.0))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        observations = sampling.normal(generator, batch_size * length, OBSERVATIONS)
        actions = torch.tanh(sampling.normal(generator, batch_size * length, self.actions))
        rewards = -(actions - observations[:, : self.actions].tanh()).square().sum(dim=1)
        return observations, actions, rewards, observations.roll(1, dims=1)

    def _act(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_scale = self.actor(observations).chunk(2, dim=1)
        log_scale = log_scale.clamp(-5, 2)
        noise = sampling.noise_like(mean)
        raw = mean + noise * log_scale.exp()
        squash = 2 * (0.6931 - raw - functional.softplus(-2 * raw))
        return torch.tanh(raw), (-0.5 * noise.square() - log_scale - 0.919 - squash).sum(dim=1)

    def forward(self, observations: Tensor, actions: Tensor, rewards: Tensor, following: Tensor) -> Tensor:
        temperature = self.log_temperature.exp()
        with torch.no_grad():
            later, later_scores = self._act(following)
            lowest = self._lowest(self.targets, following, later)
            targets = rewards + 0.9 * (lowest - temperature * later_scores)
        known = torch.cat([observations, actions], dim=1)
        critic_loss = sum(functional.mse_loss(critic(known).squeeze(1), targets) for critic in self.critics)
        own, scores = self._act(observations)
        values = self._lowest(self.targets, observations, own)
        actor_loss = (temperature.detach() * scores - values).mean()
        return critic_loss + actor_loss - (self.log_temperature * (scores.detach() - self.actions)).mean()

    def _lowest(self, critics: nn.ModuleList, observations: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([observations, actions], dim=1)
        return torch.cat([critic(inputs) for critic in critics], dim=1).amin(dim=1)


class RecurrentActorCritic(nn.Module):
    """A2C over an LSTM cell whose state is reset where an episode ends; returns are discounted inside."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(OBSERVATIONS, width)
        self.actor = nn.Linear(width, ACTIONS)
        self.critic = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        observations, actions, rewards = recorded(generator, batch_size, length)
        goes_on = (sampling.uniform(generator, batch_size, length) < 0.85).float()
        shape = (batch_size, length)
        return observations.view(*shape, -1), actions.view(shape), rewards.view(shape), goes_on

    def forward(self, observations: Tensor, actions: Tensor, rewards: Tensor, goes_on: Tensor) -> Tensor:
        hidden = torch.zeros(len(actions), self.actor.in_features, dtype=rewards.dtype, device=rewards.device)
        cell = hidden
        states = []
        for observation, kept in zip(observations.unbind(dim=1), goes_on.unbind(dim=1), strict=True):
            hidden, cell = self.cell(observation, (hidden, cell))
            states.append(hidden)
            hidden, cell = hidden * kept.unsqueeze(1), cell * kept.unsqueeze(1)
        together = torch.stack(states, dim=1)
        values = self.critic(together).squeeze(2)
        later, returns = values[:, -1].detach(), []
        for step in reversed(range(rewards.shape[1])):
            later = rewards[:, step] + 0.9 * goes_on[:, step] * later
            returns.insert(0, later)
        advantages = torch.stack(returns, dim=1) - values
        scores = functional.log_softmax(self.actor(together), dim=2)
        chosen = scores.gather(2, actions.unsqueeze(2)).squeeze(2)
        entropy = -(scores.exp() * scores).sum(dim=2).mean()
        return -(chosen * advantages.detach()).mean() + 0.5 * advantages.square().mean() - 0.01 * entropy


class GroupPolicy(nn.Module):
    """As GRPO: answers of a group are rewarded relative to it; a clipped ratio per token,
    a penalty to a frozen copy.
    """

    def __init__(self, vocabulary: int = 30, width: int = 12, group: int = 4) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.group = group
        self.policy = nn.ModuleList([nn.Embedding(vocabulary, width), nn.GRU(width, width, batch_first=True)])
        self.policy.append(nn.Linear(width, vocabulary))
        self.reference = copy.deepcopy(self.policy).requires_grad_(requires_grad=False)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        answers = sampling.tokens(generator, self.vocabulary, batch_size * self.group, length + 1)
        old_scores = -3.4 + 0.2 * sampling.normal(generator, batch_size * self.group, length)
        return answers, (answers % 5 == 0).float().mean(dim=1), old_scores

    def _scores(self, model: nn.ModuleList, answers: Tensor) -> Tensor:
        words, gru, outlet = model
        scores = functional.log_softmax(outlet(gru(words(answers[:, :-1]))[0]), dim=2)
        return scores.gather(2, answers[:, 1:].unsqueeze(2)).squeeze(2)

    def forward(self, answers: Tensor, rewards: Tensor, old_scores: Tensor) -> Tensor:
        groups = rewards.view(-1, self.group)
        advantages = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-3)
        advantages = advantages.view(-1, 1)
        scores = self._scores(self.policy, answers)
        with torch.no_grad():
            difference = self._scores(self.reference, answers)
        difference = difference - scores
        ratios = torch.exp(scores - old_scores)
        gain = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.2) * advantages)
        return (0.04 * (torch.exp(difference) - difference - 1) - gain).mean()
