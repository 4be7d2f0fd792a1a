"""Programs that learn to balance a pole; a step is an episode."""

import math
from argparse import Namespace

import numpy as np
import torch
from common import SEED, StepLog, kernel, parts, run
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

GRAVITY, FORCE, SECONDS = 9.8, 10.0, 0.02
CART, POLE, HALF_LENGTH = 1.0, 0.1, 0.5


class CartPole:
    """Pushes go left or right; an episode ends where the pole or the cart is too far, or after `longest`."""

    def __init__(self, seed: int, longest: int = 60) -> None:
        self._random = np.random.default_rng(seed)
        self._longest = longest
        self._state = np.zeros(4)
        self._time = 0

    def reset(self) -> np.ndarray:
        """Begin an episode; return [4]: position, speed, angle and angular speed."""
        self._state, self._time = self._random.uniform(-0.05, 0.05, 4), 0
        return self._state.astype(np.float32)

    def push(self, action: int) -> tuple[np.ndarray, float, bool]:
        """Push to the left (0) or right (1); return the state, the reward, and whether the episode ended."""
        _, speed, angle, turning = self._state
        mass = CART + POLE
        thrust = (FORCE if action else -FORCE) + POLE * HALF_LENGTH * turning**2 * math.sin(angle)
        upper = GRAVITY * math.sin(angle) - math.cos(angle) * thrust / mass
        twist = upper / (HALF_LENGTH * (4 / 3 - POLE * math.cos(angle) ** 2 / mass))
        pull = (thrust - POLE * HALF_LENGTH * twist * math.cos(angle)) / mass
        self._state = self._state + SECONDS * np.array([speed, pull, turning, twist])
        self._time += 1
        fallen = abs(self._state[0]) > 2.4 or abs(self._state[2]) > math.radians(12)
        return self._state.astype(np.float32), 1.0, bool(fallen or self._time >= self._longest)


DISCOUNT = 0.99


class ActorCritic(nn.Module):
    """Chooses a push, and says how much reward it expects."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 64)
        self.actor, self.critic = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Take [..., 4]; return the probability of each push, and the expected sum of rewards."""
        hidden = self.body(states).relu()
        return self.actor(hidden).softmax(dim=-1), self.critic(hidden)[..., 0]


def play_episode(model: ActorCritic, game: CartPole) -> tuple[Tensor, Tensor, list[float]]:
    """Play an episode; return the states, the pushes and the rewards."""
    state, ended = game.reset(), False
    states, actions, rewards = [], [], []
    while not ended:
        states.append(torch.from_numpy(state))
        with torch.no_grad():
            action = Categorical(model(states[-1])[0]).sample()
        actions.append(action)
        state, reward, ended = game.push(int(action))
        rewards.append(reward)
    return torch.stack(states), torch.stack(actions), rewards


def returns(rewards: list[float]) -> Tensor:
    """Return the discounted sum of each step's later rewards, with mean 0 and deviation 1."""
    sums = list[float]()
    for reward in reversed(rewards):
        sums.insert(0, reward + DISCOUNT * (sums[0] if sums else 0.0))
    values = torch.tensor(sums)
    return (values - values.mean()) / (values.std() + torch.finfo(torch.float32).eps)


def loss_of(model: ActorCritic, states: Tensor, actions: Tensor, values: Tensor) -> Tensor:
    """Return the sum of both heads' losses over some steps."""
    chances, expected = model(states)
    advantages = (values - expected).detach()
    of_actor = -Categorical(chances).log_prob(actions) * advantages
    return (of_actor + functional.smooth_l1_loss(expected, values, reduction="none")).sum()


def actor_critic(args: Namespace) -> None:
    """Actor-critic: a network with two heads learns to balance a pole; a step is an episode.

    Play and learn; in variant 2 from one half of an episode after the other.
    """
    model, game = ActorCritic(), CartPole(SEED)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, **kernel(args.variant))
    log = StepLog(args.output)
    for _ in range(args.steps):
        states, actions, rewards = play_episode(model, game)
        optimizer.zero_grad()
        for _, *some in parts(args.variant, states, actions, returns(rewards)):
            loss_of(model, *some).backward()
        optimizer.step()
        log.end_step()
    state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(state, args.output / "actor_critic.pth")


class Policy(nn.Module):
    """Gives the probability of each push."""

    def __init__(self) -> None:
        super().__init__()
        self.affine1, self.dropout, self.affine2 = nn.Linear(4, 64), nn.Dropout(0.6), nn.Linear(64, 2)

    def forward(self, state: Tensor) -> Tensor:
        """Take [1, 4] and return [1, 2]."""
        return self.affine2(self.dropout(self.affine1(state)).relu()).softmax(dim=1)


def play(policy: Policy, game: CartPole) -> tuple[list[Tensor], list[float]]:
    """Play an episode; return the logarithms of the chosen probabilities, and the rewards."""
    state, ended = game.reset(), False
    logarithms, rewards = [], []
    while not ended:
        choice = Categorical(policy(torch.from_numpy(state)[None]))
        action = choice.sample()
        logarithms.append(choice.log_prob(action))
        state, reward, ended = game.push(int(action))
        rewards.append(reward)
    return logarithms, rewards


def reinforce(args: Namespace) -> None:
    """REINFORCE (Williams 1992): a policy learns to balance a pole; a step is an episode.

    Play and learn.
    """
    policy, game = Policy(), CartPole(SEED)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2, **kernel(args.variant))
    log = StepLog(args.output)
    for _ in range(args.steps):
        logarithms, rewards = play(policy, game)
        terms = [-logarithm * value for logarithm, value in zip(logarithms, returns(rewards), strict=True)]
        optimizer.zero_grad()
        for loss in terms if args.variant == 2 else [torch.cat(terms).sum()]:
            loss.backward()
        optimizer.step()
        log.end_step()
    torch.save(policy.state_dict(), args.output / "policy.pt")


if __name__ == "__main__":
    run(actor_critic, reinforce)
