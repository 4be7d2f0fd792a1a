"""REINFORCE (Williams 1992): a policy learns to balance a pole; a step is an episode."""

import torch
from cartpole import CartPole
from common import SEED, StepLog, arguments, kernel
from torch import Tensor, nn
from torch.distributions import Categorical

DISCOUNT = 0.99


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


def returns(rewards: list[float]) -> Tensor:
    """Return the discounted sum of each step's later rewards, with mean 0 and deviation 1."""
    sums = list[float]()
    for reward in reversed(rewards):
        sums.insert(0, reward + DISCOUNT * (sums[0] if sums else 0.0))
    values = torch.tensor(sums)
    return (values - values.mean()) / (values.std() + torch.finfo(torch.float32).eps)


def main() -> None:
    """Play and learn."""
    args = arguments(__doc__)
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
    main()
