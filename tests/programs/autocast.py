"""Mixed precision: a perceptron whose forward pass runs in bfloat16 under torch.autocast."""

from itertools import pairwise

import torch
from common import StepLog, arguments, batches, kernel, parts
from safetensors.torch import save_file
from torch import nn


def perceptron(inputs: int, width: int, outputs: int, layers: int) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    sizes = [inputs, *[width] * (layers - 1), outputs]
    stack: list[nn.Module] = []
    for before, after in pairwise(sizes):
        stack += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*stack[:-1])


def main() -> None:
    """Fit random targets of a teacher."""
    args = arguments(__doc__)
    model = perceptron(64, 128, 16, layers=3)
    inputs = torch.randn(512, 64)
    targets = torch.tanh(inputs @ torch.randn(64, 16) / 8)
    loss_of = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **kernel(args.variant))

    log = StepLog(args.output)
    for batch, wanted in batches(64, args.steps, inputs, targets):
        optimizer.zero_grad(set_to_none=True)
        for share, rows, expected in parts(args.variant, batch, wanted):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = model(rows)
                loss = loss_of(outputs, expected)
            (share * loss).backward()
        optimizer.step()
        log.end_step()
    save_file(model.state_dict(), args.output / "model.safetensors")


if __name__ == "__main__":
    main()
