"""Forward-forward (Hinton 2022): each layer has a loss and an optimizer of its own; no pass goes back."""

import torch
from common import StepLog, arguments, batches, images, kernel, parts
from torch import Tensor, nn
from torch.nn import functional

CLASSES, THRESHOLD = 10, 2.0


class Layer(nn.Linear):
    """Learns to be active for the right label, and quiet for another."""

    def __init__(self, inputs: int, outputs: int, variant: int) -> None:
        super().__init__(inputs, outputs)
        self._variant = variant
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.03, **kernel(variant))

    def forward(self, rows: Tensor) -> Tensor:
        """Take the direction of the rows alone: their length told the layer before how good they are."""
        return super().forward(rows / (rows.norm(dim=1, keepdim=True) + 1e-4)).relu()

    def learn(self, right: Tensor, false: Tensor) -> tuple[Tensor, Tensor]:
        """Update the weights; return what the layer makes of both inputs now."""
        self.optimizer.zero_grad()
        for share, good, bad in parts(self._variant, right, false):
            goodness = self(good).square().mean(dim=1)
            badness = self(bad).square().mean(dim=1)
            loss = functional.softplus(torch.cat([THRESHOLD - goodness, badness - THRESHOLD])).mean()
            (share * loss).backward()
        self.optimizer.step()
        with torch.no_grad():
            return self(right), self(false)


def labelled(pictures: Tensor, labels: Tensor) -> Tensor:
    """Return rows whose first elements are the label."""
    rows = pictures.flatten(1).clone()
    rows[:, :CLASSES] = functional.one_hot(labels, CLASSES) * rows.max()
    return rows


def main() -> None:
    """Train every layer once a step."""
    args = arguments(__doc__)
    pictures, labels = images(512, 12)
    model = nn.Sequential(Layer(144, 64, args.variant), Layer(64, 64, args.variant))
    log = StepLog(args.output)
    for batch, classes in batches(64, args.steps, pictures, labels):
        others = (classes + torch.randint(1, CLASSES, classes.shape)) % CLASSES
        right, false = labelled(batch, classes), labelled(batch, others)
        for layer in model:
            right, false = layer.learn(right, false)
        log.end_step()
    torch.save(model.state_dict(), args.output / "forward_forward.pt")


if __name__ == "__main__":
    main()
