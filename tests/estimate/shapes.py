"""Models with the shapes of large ones: counts are per block, so few blocks show what many do."""

import torch
from torch import Tensor, nn
from torch.nn.functional import silu


class Linear(nn.Linear):
    """Without values: to write gigabytes takes longer than to simulate them."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is."""


class Embedding(nn.Embedding):
    """Without values, likewise."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is."""


class Block(nn.Module):
    """The parameters of a Llama's block, without its attention."""

    def __init__(self, width: int, hidden: int, key_width: int) -> None:
        super().__init__()
        self.q, self.o = (Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (Linear(width, key_width, bias=False) for _ in range(2))
        self.gate, self.up = (Linear(width, hidden, bias=False) for _ in range(2))
        self.down = Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        mixed = torch.cat([self.k(y), self.v(y)], dim=-1).mean(dim=-1, keepdim=True)
        x = x + self.o(self.q(y) * mixed)
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Returns its own loss."""

    def __init__(self, layers: int, width: int, hidden: int, key_width: int, vocabulary: int = 32000) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, hidden, key_width) for _ in range(layers))
        self.head = Linear(width, vocabulary, bias=False)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor]:
        return (torch.randint(0, 99, (size, length), generator=generator),)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).float().mean()


SHAPES = {
    "7B": {"width": 4096, "hidden": 11008, "key_width": 4096},
    "70B": {"width": 8192, "hidden": 28672, "key_width": 1024},
}
BLOCKS = {"7B": 32, "70B": 80}
