"""Actor-critic: a network with two heads learns to balance a pole; a step is an episode."""

import torch
from cartpole import CartPole
from common import SEED, StepLog, arguments, kernel, parts
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

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


def play(model: ActorCritic, game: CartPole) -> tuple[Tensor, Tensor, list[float]]:
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


def main() -> None:
    """Play and learn; in variant 2 from one half of an episode after the other."""
    args = arguments(__doc__)
    model, game = ActorCritic(), CartPole(SEED)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, **kernel(args.variant))
    log = StepLog(args.output)
    for _ in range(args.steps):
        states, actions, rewards = play(model, game)
        optimizer.zero_grad()
        for _, *some in parts(args.variant, states, actions, returns(rewards)):
            loss_of(model, *some).backward()
        optimizer.step()
        log.end_step()
    state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(state, args.output / "actor_critic.pth")


if __name__ == "__main__":
    main()
