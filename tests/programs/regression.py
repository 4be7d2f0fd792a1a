"""Regression: a polynomial of degree 4 is found by gradient descent, written out without torch.optim."""

import torch
from common import SEED, StepLog, arguments, parts
from torch import Tensor, nn
from torch.nn import functional

DEGREE, LEARNING_RATE = 4, 0.1


def powers(points: Tensor) -> Tensor:
    """Return [N, DEGREE]: the powers of each point from the first on."""
    return torch.stack([points**exponent for exponent in range(1, DEGREE + 1)], dim=1)


def descend(parameters: list[nn.Parameter], *, at_once: bool) -> None:
    """Move all parameters against their gradients, one after another or by one call."""
    with torch.no_grad():
        if at_once:
            gradients = [parameter.grad for parameter in parameters]
            torch._foreach_add_(parameters, gradients, alpha=-LEARNING_RATE)
        else:
            for parameter in parameters:
                parameter.add_(parameter.grad, alpha=-LEARNING_RATE)


def main() -> None:
    """Fit the answers of a hidden polynomial; each step has new points."""
    args = arguments(__doc__)
    coefficients, constant = torch.randn(DEGREE, 1) * 5, torch.randn(1) * 5
    model = nn.Linear(DEGREE, 1)
    random = torch.Generator().manual_seed(SEED)
    log = StepLog(args.output)
    for _ in range(args.steps):
        points = powers(torch.randn(33, generator=random))
        answers = points @ coefficients + constant
        model.zero_grad()
        for share, inputs, wanted in parts(args.variant, points, answers):
            (share * functional.smooth_l1_loss(model(inputs), wanted)).backward()
        descend(list(model.parameters()), at_once=args.variant == 1)
        log.end_step()
    torch.save(model.state_dict(), args.output / "regression.pt")


if __name__ == "__main__":
    main()
