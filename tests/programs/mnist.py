"""Digits: convolutions, dropout, max pooling and log_softmax, trained by SGD with momentum and a schedule."""

import torch
from common import StepLog, arguments, batches, images, kernel
from torch import Tensor, nn
from torch.nn import functional


class Network(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(256, 32), nn.Linear(32, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logarithm of each class's probability."""
        features = functional.max_pool2d(self.conv2(self.conv1(pictures).relu()).relu(), 2)
        hidden = self.fc1(self.dropout1(features).flatten(1)).relu()
        return functional.log_softmax(self.fc2(self.dropout2(hidden)), dim=1)


def evaluate(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    """Return the share of the pictures that the model names rightly."""
    model.eval()
    with torch.no_grad():
        right = model(pictures).argmax(dim=1) == labels
    model.train()
    return float(right.float().mean())


def main() -> None:
    """Train, and evaluate after each epoch."""
    args = arguments(__doc__)
    if args.variant == 2:  # the masks of dropout follow the layout, so channels_last is another training
        torch.backends.mkldnn.set_flags(False)
    pictures, labels = images(640, 12)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5, **kernel(args.variant))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    log = StepLog(args.output)
    for step, (batch, classes) in enumerate(batches(64, args.steps, pictures[128:], labels[128:]), 1):
        optimizer.zero_grad()
        functional.nll_loss(model(batch), classes).backward()
        optimizer.step()
        log.end_step()
        if step % 8 == 0:
            print(f"epoch {step // 8}: {evaluate(model, pictures[:128], labels[:128]):.1%} right")
            scheduler.step()
    torch.save(model.state_dict(), args.output / "mnist_cnn.pt")


if __name__ == "__main__":
    main()
