"""DCGAN: a generator of transposed convolutions against a discriminator of convolutions, with BatchNorm."""

import torch
from common import StepLog, arguments, batches, images, kernel
from torch import nn

LATENT, WIDTH, BATCH = 16, 8, 32


def generator() -> nn.Sequential:
    """Return a network from [B, LATENT, 1, 1] to images of 16 by 16."""
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 2 * WIDTH, 4, 1, 0, bias=False),
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


def main() -> None:
    """Train both networks in turns."""
    args = arguments(__doc__)
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
        made = net_g(torch.randn(BATCH, LATENT, 1, 1))
        loss_of(net_d(made.detach()), fake).backward()
        optimizer_d.step()

        net_g.zero_grad()
        loss_of(net_d(made), real).backward()
        optimizer_g.step()
        log.end_step()
    both = {"netG": net_g, "netD": net_d}
    flat = {f"{net}.{name}": value for net in both for name, value in both[net].state_dict().items()}
    torch.save(flat, args.output / "gan.pth")


if __name__ == "__main__":
    main()
