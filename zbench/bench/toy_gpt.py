"""A small GPT for benchmarks; torch only, so that any interpreter with torch can run it."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm attention (heads of 64) and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        y: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return y


class Gpt(nn.Module):
    """Embedding, blocks, head. `forward(ids, targets)` [B, T] each returns the mean cross-entropy."""

    def __init__(self, layers: int, width: int, vocabulary: int = 1024) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def make(layers: int, width: int) -> Gpt:
    """Return a seeded model."""
    torch.manual_seed(0)
    return Gpt(layers, width)


def batch(step: int, size: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return seeded (ids, targets) [size, length]."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(vocabulary, (size, length + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]
