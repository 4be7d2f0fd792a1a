"""A siamese network: one trunk sees two images, and a head says whether their classes are equal."""

import torch
from common import SEED, StepLog, arguments, batches, images, kernel
from safetensors.torch import save_file
from torch import Tensor, nn


class Siamese(nn.Module):
    """A convolutional trunk with BatchNorm, applied to each image, and a head over both features."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 8, 3, 1, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
        self.head.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.constant_(module.bias, 0.01)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Return [B]: how probable it is that the classes are equal."""
        features = [self.trunk(pictures).flatten(1) for pictures in (one, other)]
        return self.head(torch.cat(features, dim=1))[:, 0]


def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Return two sets of images, and 1 where their classes are equal: in half of the pairs."""
    random = torch.Generator().manual_seed(SEED)
    pictures, labels = images(384, 12)
    partners = torch.randint(len(labels), labels.shape, generator=random)
    for row in range(0, len(labels), 2):
        alike = (labels == labels[row]).nonzero()[:, 0]
        partners[row] = alike[torch.randint(len(alike), (1,), generator=random)]
    return pictures, pictures[partners], (labels == labels[partners]).to(pictures.dtype)


def main() -> None:
    """Train in one layout or the other."""
    args = arguments(__doc__)
    layout = torch.channels_last if args.variant == 2 else torch.contiguous_format
    model = Siamese().to(memory_format=layout)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0, **kernel(args.variant, "foreach"))
    loss_of = nn.BCELoss()
    log = StepLog(args.output)
    for one, other, equal in batches(48, args.steps, *pairs()):
        optimizer.zero_grad()
        guess = model(one.contiguous(memory_format=layout), other.contiguous(memory_format=layout))
        loss_of(guess, equal).backward()
        optimizer.step()
        log.end_step()
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, args.output / "siamese.safetensors")


if __name__ == "__main__":
    main()
