"""ResNet-18 (He et al. 2016), an eighth as wide, with BatchNorm; SGD with momentum and a schedule."""

from itertools import pairwise

import torch
from common import StepLog, arguments, batches, images, kernel
from torch import Tensor, nn

WIDTH = 8


class Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, features: Tensor) -> Tensor:
        """Take and return [B, C, H, W]."""
        hidden = self.bn1(self.conv1(features)).relu()
        return (self.bn2(self.conv2(hidden)) + self.downsample(features)).relu()


class ResNet18(nn.Module):
    """A stem, four layers of two blocks, and a linear head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = [WIDTH, WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH]
        self.layers = nn.ModuleList(
            nn.Sequential(Block(before, after, 1 if before == after else 2), Block(after, after, 1))
            for before, after in pairwise(widths)
        )
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return a score for each class."""
        features = self.stem(pictures)
        for layer in self.layers:
            features = layer(features)
        return self.fc(features.mean(dim=(2, 3)))


def main() -> None:
    """Train in one layout or the other."""
    args = arguments(__doc__)
    layout = torch.channels_last if args.variant == 2 else torch.contiguous_format
    model = ResNet18(10).to(memory_format=layout)
    pictures, labels = images(256, 32, channels=3)
    sgd = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4, **kernel(args.variant)}
    optimizer = torch.optim.SGD(model.parameters(), **sgd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    log = StepLog(args.output)
    for batch, classes in batches(32, args.steps, pictures, labels):
        scores = model(batch.contiguous(memory_format=layout))
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, classes).backward()
        optimizer.step()
        scheduler.step()
        log.end_step()
    state = {"arch": "resnet18", "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, args.output / "checkpoint.pth")


if __name__ == "__main__":
    main()
