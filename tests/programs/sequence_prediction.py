"""Sine waves continued by two LSTM cells in float64; LBFGS calls the loss several times a step."""

import torch
from common import StepLog, arguments, parts
from torch import Tensor, nn

WIDTH = 12


class Sequence(nn.Module):
    """Reads a wave value by value, and gives the next one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, waves: Tensor) -> Tensor:
        """Take and return [waves, times]."""
        first, second = ([waves.new_zeros(len(waves), WIDTH)] * 2 for _ in range(2))
        outputs = []
        for value in waves.split(1, dim=1):
            first = self.lstm1(value, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


def waves(count: int, times: int) -> Tensor:
    """Return [count, times]: sine waves with phases of their own."""
    phases = torch.randint(-80, 80, (count, 1))
    return torch.sin((torch.arange(times) + phases).double() / 5)


def main() -> None:
    """Fit all waves at once."""
    args = arguments(__doc__)
    data = waves(9, 21)
    inputs, targets = data[:, :-1], data[:, 1:]
    model = Sequence().double()
    loss_of = nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=6)

    def closure() -> float:
        """Return the loss, and leave its gradients."""
        optimizer.zero_grad()
        total = 0.0
        for share, some, wanted in parts(args.variant, inputs, targets):
            loss = share * loss_of(model(some), wanted)
            loss.backward()
            total += float(loss)
        return total

    log = StepLog(args.output)
    for _ in range(args.steps):
        optimizer.step(closure)
        log.end_step()
    torch.save(model.state_dict(), args.output / "sequence.pt")


if __name__ == "__main__":
    main()
