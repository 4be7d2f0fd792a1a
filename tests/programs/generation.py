"""Programs that learn a distribution, and one whose layers learn alone."""

from argparse import Namespace

import torch
from common import StepLog, batches, images, kernel, parts, run
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


def vae(args: Namespace) -> None:
    """A variational autoencoder (Kingma and Welling 2014) of small images.

    Train; the loss is a sum, so parts of a batch need no weights. They draw the same noise in turn.
    """
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


NOISE, WIDTH, BATCH = 16, 8, 32


def generator() -> nn.Sequential:
    """Return a network from [B, NOISE, 1, 1] to images of 16 by 16."""
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 2 * WIDTH, 4, 1, 0, bias=False),
        nn.BatchNorm2d(2 * WIDTH),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator() -> nn.Sequential:
    """Return a network from images to the probability that each is real."""
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * WIDTH),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * WIDTH, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
        nn.Sigmoid(),
    )


def initialize(module: nn.Module) -> None:
    """Draw the weights as the paper does."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def dcgan(args: Namespace) -> None:
    """DCGAN: a generator of transposed convolutions against a discriminator of convolutions, with BatchNorm.

    Train both networks in turns.
    """
    layout = torch.channels_last if args.variant == 2 else torch.contiguous_format
    makers = [generator(), discriminator()]
    net_g, net_d = (net.apply(initialize).to(memory_format=layout) for net in makers)
    adam = {"lr": 2e-4, "betas": (0.5, 0.999), **kernel(args.variant)}
    optimizer_g = torch.optim.Adam(net_g.parameters(), **adam)
    optimizer_d = torch.optim.Adam(net_d.parameters(), **adam)
    loss_of, real, fake = nn.BCELoss(), torch.ones(BATCH), torch.zeros(BATCH)
    pictures = images(256, 16)[0] * 2 - 1

    log = StepLog(args.output)
    for (batch,) in batches(BATCH, args.steps, pictures):
        net_d.zero_grad()
        loss_of(net_d(batch.contiguous(memory_format=layout)), real).backward()
        made = net_g(torch.randn(BATCH, NOISE, 1, 1))
        loss_of(net_d(made.detach()), fake).backward()
        optimizer_d.step()

        net_g.zero_grad()
        loss_of(net_d(made), real).backward()
        optimizer_g.step()
        log.end_step()
    both = {"netG": net_g, "netD": net_d}
    flat = {f"{net}.{name}": value for net in both for name, value in both[net].state_dict().items()}
    torch.save(flat, args.output / "gan.pth")


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


def forward_forward(args: Namespace) -> None:
    """Forward-forward (Hinton 2022): each layer has a loss and an optimizer of its own; no pass goes back.

    Train every layer once a step.
    """
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
    run(vae, dcgan, forward_forward)
