"""A variational autoencoder (Kingma and Welling 2014) of small images."""

import torch
from common import StepLog, arguments, batches, images, kernel, parts
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

PIXELS, LATENT = 144, 8


class Autoencoder(nn.Module):
    """Encodes an image as a distribution, draws from it, and decodes what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(PIXELS, 48)
        self.mean, self.log_variance = nn.Linear(48, LATENT), nn.Linear(48, LATENT)
        self.decoder, self.pixels = nn.Linear(LATENT, 48), nn.Linear(48, PIXELS)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the decoded images, and means and logarithms of variances."""
        hidden = self.encoder(pictures.flatten(1)).relu()
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        drawn = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return self.pixels(self.decoder(drawn).relu()).sigmoid(), mean, log_variance


def loss_of(model: Autoencoder, pictures: Tensor) -> Tensor:
    """Return the sum over images of what was decoded wrongly, and of the distance from a normal one."""
    decoded, mean, log_variance = model(pictures)
    wrong = functional.binary_cross_entropy(decoded, pictures.flatten(1), reduction="sum")
    return wrong - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()


def main() -> None:
    """Train; the loss is a sum, so parts of a batch need no weights. They draw the same noise in turn."""
    args = arguments(__doc__)
    pictures, _ = images(512, 12)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **kernel(args.variant))
    log = StepLog(args.output)
    for (batch,) in batches(64, args.steps, pictures):
        optimizer.zero_grad()
        for _, some in parts(args.variant, batch):
            loss_of(model, some).backward()
        optimizer.step()
        log.end_step()
    save_file(model.state_dict(), args.output / "vae.safetensors")


if __name__ == "__main__":
    main()
