"""Small models, one for each way in which a step falls into graphs."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.engine.cases import when_backward_passes

WIDTH, VOCABULARY = 8, 12


class Block(nn.Module):
    """A residual layer; `broken` ends the captured graph inside it."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(self.norm(x)).relu()
        if self.broken:
            torch._dynamo.graph_break()
        return x + y


class Tied(nn.Module):
    """Embedding and head share one weight; with `broken`, they and the layers are three graphs."""

    def __init__(self, *, broken: bool = False, depth: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.broken = broken

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.broken:
            torch._dynamo.graph_break()
        for block in self.blocks:
            x = block(x)
        if self.broken:
            torch._dynamo.graph_break()
        return (x @ self.embed.weight.t()).logsumexp(-1).mean()


class Layers(nn.Module):
    """Broken inside every layer: one graph serves all layers, the embedding and the head stay uncompiled."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(broken=True) for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).logsumexp(-1).mean()


class WithoutReduction(nn.Module):
    """Three graphs of which the one at `place` (0, 1, 2) needs backward but has no parameter."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        layers = [self.first, self.second]
        layers.insert(self.place, nn.functional.gelu)
        x = layers[0](x)
        torch._dynamo.graph_break()
        x = layers[1](x)
        torch._dynamo.graph_break()
        return layers[2](x).square().mean()


class Checkpointed(nn.Module):
    """Recomputes its layers in backward."""

    def __init__(self, *, broken: bool = False, reentrant: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(broken=broken) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


class PartlyTrained(nn.Module):
    """Frozen and unused parameters, one without a gradient, and one that only uncompiled code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.trained = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Parameter(torch.ones(5))
        self.read_in_vain = nn.Parameter(torch.ones(WIDTH))
        self.outside = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.trained(self.frozen(x) + self.read_in_vain.detach())
        return scaled_outside(x, self.outside).square().mean()


@torch._dynamo.disable
def scaled_outside(x: Tensor, scale: Tensor) -> Tensor:
    """Multiply in plain Python: dynamo captures none of this."""
    return x * scale


class Crossed(nn.Module):
    """Two branches whose gradients are ready in opposite order on even and odd ranks; with `faulty` backward
    fails between them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, swapped: bool, faulty: bool = False) -> Tensor:
        inner, outer = (self.second, self.first) if swapped else (self.first, self.second)
        x = inner(x)
        if faulty:
            x = blow(x)
        torch._dynamo.graph_break()
        return outer(x).square().mean()


class Wide(nn.Module):
    """Weights so large that each fills a bucket of its own, and is sent from where backward left it."""

    def __init__(self, depth: int = 3, width: int = 384) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x).relu()
        return x.square().mean()


@torch._dynamo.disable
def blow(x: Tensor) -> Tensor:
    """Fail in backward, outside of compiled code."""
    return when_backward_passes(_fail)(x)


def _fail() -> None:
    raise ZeroDivisionError("a fault in backward")


def tokens(rank: int = 0, length: int = 6, batch: int = 2) -> Tensor:
    """Return [batch, length] token numbers, different on every rank."""
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(rank))


def vectors(rank: int = 0, length: int = 6) -> Tensor:
    """Return [length, WIDTH] inputs, different on every rank."""
    return torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(rank))
