"""Small models and batches for engine tests; the same bits in every process.

A name may end in `@cuda`: then model and batches are there, and all runs under deterministic algorithms.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Batch = tuple[Tensor, ...]


class Mlp(nn.Module):
    """Three layers whose sizes share no factor with the layout's alignment."""

    def __init__(self, width: int = 37, inner: int = 53) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(13, width), nn.ReLU(), nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, 7)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def wide() -> Mlp:
    """Return weights large enough to be sent from where autograd left them, and read from a neighbour."""
    return Mlp(512, 512)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        x = x + self.out(
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        )
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A one-layer GPT whose head is tied to its embedding by a functional use."""

    def __init__(self, vocabulary: int = 61, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(1))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


class Odd(nn.Module):
    """Tied, frozen, unused, zero-sized and scalar parameters; one used twice; one gradient not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 24)
        self.frozen = nn.Linear(24, 24)
        self.unused = nn.Linear(24, 24)
        self.sometimes = nn.Linear(24, 24)
        self.twice = nn.Parameter(torch.randn(24, 24) / 5)
        self.empty = nn.Parameter(torch.zeros(0, 24))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.expanded = nn.Parameter(torch.randn(24) / 5)
        self.last = nn.Linear(24, 7)
        self.tied = nn.Linear(13, 24)
        self.tied.weight = self.first.weight
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        h = self.frozen(torch.tanh(self.first(x) + self.tied(x)))
        h = torch.tanh(h @ torch.cat([self.twice, self.empty])) @ self.twice.t()  # as MobileBERT's head
        if use:
            h = h + self.sometimes(h)
        return self.last(h * self.gain + self.expanded.expand(h.shape[0], 24))


class Checkpointed(Mlp):
    """Computes its activations again in backward, two of its layers in one piece."""

    def forward(self, x: Tensor) -> Tensor:
        for piece in (self.layers[:2], self.layers[2:]):
            x = checkpoint(piece, x, use_reentrant=False)
        return x


class Recomputing(nn.Module):
    """A block that computes again within its forward, as transformers' layers do since 5.24."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 24)
        self.down = nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._again, x, use_reentrant=False)  # type: ignore[no-any-return]

    def _again(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def recomputing() -> nn.Module:
    return nn.Sequential(nn.Linear(13, 16), *(Recomputing() for _ in range(7)), nn.Linear(16, 7))


class Mixed(nn.Module):
    """Parameters of three dtypes, and one whose memory is not in the order of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.narrow = nn.Linear(13, 40), nn.Linear(40, 24, dtype=torch.bfloat16)
        gain = torch.rand(24, dtype=torch.float16)
        crossed = torch.randn(24, 600).t()
        self.more = nn.ParameterDict({"gain": gain, "crossed": crossed})
        self.last = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = self.narrow(torch.tanh(self.first(x)).bfloat16())
        h = h.to(self.last.weight.dtype) * self.more.gain + self.more.crossed[: x.shape[0]]
        return self.last(h.to(self.last.weight.dtype))


class Outside(Mlp):
    """Its loss reads parameters while no forward runs."""

    def penalty(self) -> Tensor:
        """Return a term of the loss."""
        last = self.layers[4]
        assert isinstance(last, nn.Linear)
        return sum(((p.float() ** 2).sum() for p in (last.weight, last.bias)), torch.zeros(()))


class Wandering(nn.Module):
    """Runs its layers in another order at some steps, and one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(13, 40)
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(4))
        self.last = nn.Linear(40, 7)

    def forward(self, x: Tensor, usual: bool = True) -> Tensor:
        h = torch.tanh(self.first(x))
        for k in (0, 1, 2, 3) if usual else (2, 0, 2, 1, 3):
            h = torch.tanh(self.layers[k](h))
        return self.last(h)


class Part(nn.Module):
    """A block: layers, a list of layers within, and one that only some steps use."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 40)
        self.down = nn.Linear(40, width)
        self.several = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.sometimes = nn.Linear(width, width)

    def forward(self, x: Tensor, use: bool) -> Tensor:
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        for layer in self.several:
            x = torch.tanh(layer(x))
        return x + self.sometimes(x) if use else x


class Stack(nn.Module):
    """Blocks: called, called twice, computed again, not called but their layers; with tied, frozen and
    bfloat16 weights, and one that is read from outside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(13, 24), nn.Linear(24, 7)
        self.blocks = nn.ModuleList(Part() for _ in range(5))
        self.blocks[3].up.weight = self.blocks[1].up.weight
        self.blocks[2].down.requires_grad_(False)
        self.blocks[0].sometimes.bfloat16()
        for p in self.blocks[4].several.parameters():
            p.requires_grad_(False)

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        h = torch.tanh(self.first(x))
        narrow = self.blocks[0].sometimes
        h = self.blocks[0](h, False) + narrow(h.to(narrow.weight.dtype)).to(h.dtype)
        for _ in range(2):
            h = self.blocks[1](h, use)
        h = checkpoint(self.blocks[2], h, use, use_reentrant=False)
        h = h + functional.linear(h, self.blocks[4].several[1].weight)
        h = h + self.blocks[3].several[0](h) if use else self.blocks[3](h, use)
        return self.last(self.blocks[4](h, True))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "wide": wide,
    "gpt": Gpt,
    "odd": Odd,
    "odd-together": Odd,
    "checkpointed": Checkpointed,
    "recomputing": recomputing,
    "mixed": Mixed,
    "outside": Outside,
    "wandering": Wandering,
    "stack": Stack,
    "spiky": Mlp,
}


def make(name: str) -> nn.Module:
    """Return a model by name, seeded."""
    torch.manual_seed(7)
    name, device = placed(name)
    return MODELS[name]().to(device)


def placed(name: str) -> tuple[str, str]:
    """Return a model's name and its device; from then on a device's algorithms are deterministic."""
    name, _, device = name.partition("@")
    if device:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return name, device or "cpu"


def batch(name: str, step: int, micro: int, rank: int) -> Batch:
    """Return one micro-batch."""
    name, device = placed(name)
    return tuple(part.to(device) for part in _batch(name, step, micro, rank))


def _batch(name: str, step: int, micro: int, rank: int) -> Batch:
    g = torch.Generator().manual_seed(1000 * step + 100 * micro + rank)
    if name == "gpt":
        return torch.randint(61, (2, 9), generator=g), torch.randint(61, (2, 9), generator=g)
    use = torch.tensor((step + (rank if name == "odd" else 0)) % 3 != 0)
    spike = 3e4 if name == "spiky" and (step, micro, rank) == (2, 0, 1) else 1.0
    return torch.randn(5, 13, generator=g) * spike, torch.randn(5, 7, generator=g), use


def loss(model: nn.Module, data: Batch) -> Tensor:
    """Return the loss of one micro-batch; computed in float32."""
    if len(data) == 2:
        return functional.cross_entropy(model(data[0]).float().flatten(0, 1), data[1].flatten())
    dtype = next(model.parameters()).dtype
    if isinstance(model, Outside):
        return functional.mse_loss(model(data[0].to(dtype)).float(), data[1]) + 0.1 * model.penalty()
    outputs = (
        model(data[0].to(dtype), bool(data[2]))
        if isinstance(model, Odd | Wandering | Stack)
        else model(data[0].to(dtype))
    )
    return functional.mse_loss(outputs.float(), data[1])
