"""State space models and linear attention: recurrences without a nonlinearity in time."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling


class SequenceModel(nn.Module):
    """Base: a causal language model around `mix`, which maps hidden states [B, T, width] to their update."""

    def __init__(self, vocabulary: int = 60, width: int = 16, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width)
        self.norm = norm(width)
        self.last_norm = norm(width)
        self.outlet = nn.Linear(width, vocabulary, bias=False)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return (sampling.tokens(generator, self.vocabulary, batch_size, length + 1),)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words[:, :-1])
        hidden = hidden + self.mix(self.norm(hidden))
        return functional.cross_entropy(
            self.outlet(self.last_norm(hidden)).flatten(0, 1), words[:, 1:].flatten()
        )

    def mix(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError


def shifted(hidden: Tensor) -> Tensor:
    """Return the states of the position before, zeros first."""
    return functional.pad(hidden, (0, 0, 1, -1))


class DiagonalSsm(SequenceModel):
    """As S4D with real poles: one filter per channel, written as a matrix over time; a gated outlet."""

    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__(width=width)
        self.log_rates = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.log_steps = nn.Parameter(torch.linspace(-5, -1, width).unsqueeze(1))
        self.weights = nn.Parameter(torch.randn(width, states) * states**-0.5)
        self.direct = nn.Parameter(torch.randn(width))
        self.gated = nn.Linear(width, 2 * width)

    def mix(self, hidden: Tensor) -> Tensor:
        steps = torch.arange(hidden.shape[1], device=hidden.device)
        rates, sizes = -self.log_rates.exp(), self.log_steps.exp()
        powers = torch.exp((rates * sizes).unsqueeze(2) * steps.to(hidden.dtype))
        filters = ((self.weights * torch.expm1(rates * sizes) / rates).unsqueeze(2) * powers).sum(dim=1)
        distance = steps.unsqueeze(1) - steps
        matrix = torch.where(
            distance >= 0, filters[:, distance.clamp(min=0)], torch.zeros_like(filters[:1, :1, None])
        )
        hidden = torch.einsum("cts,bsc->btc", matrix, hidden) + self.direct * hidden
        return functional.glu(self.gated(functional.gelu(hidden)), dim=2)


class FourierSsm(SequenceModel):
    """As S4D with complex poles, held as real pairs; the filter is applied by a Fourier transform."""

    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__(width=width)
        self.log_decays = nn.Parameter(torch.log(0.5 * torch.ones(width, states)))
        self.frequencies = nn.Parameter(torch.pi * torch.arange(states).float().repeat(width, 1))
        self.log_steps = nn.Parameter(torch.rand(width, 1) * 3 - 4)
        self.weights = nn.Parameter(torch.randn(width, states, 2))
        self.merge = nn.Linear(width, width)

    def mix(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        steps = torch.arange(length, device=hidden.device).to(hidden.dtype) * self.log_steps.exp().unsqueeze(
            2
        )
        angles = self.frequencies.unsqueeze(2) * steps
        sizes = torch.exp(-self.log_decays.exp().unsqueeze(2) * steps)
        waves = self.weights[..., :1] * torch.cos(angles) - self.weights[..., 1:] * torch.sin(angles)
        filters = (sizes * waves).sum(dim=1)
        spectrum = torch.fft.rfft(hidden.transpose(1, 2), n=2 * length) * torch.fft.rfft(
            filters, n=2 * length
        )
        return self.merge(
            functional.gelu(torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2))
        )


class SelectiveScan(SequenceModel):
    """As Mamba: a causal convolution, steps and projections that depend on the input, a gate; RMSNorm."""

    def __init__(self, width: int = 16, states: int = 4, rank: int = 2) -> None:
        super().__init__(width=width, norm=nn.RMSNorm)
        self.rank = rank
        self.states = states
        self.inlet = nn.Linear(width, 4 * width, bias=False)
        self.convolution = nn.Conv1d(2 * width, 2 * width, 4, groups=2 * width, padding=3)
        self.selection = nn.Linear(2 * width, rank + 2 * states, bias=False)
        self.steps = nn.Linear(rank, 2 * width)
        nn.init.constant_(self.steps.bias, -2.0)
        self.log_rates = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(2 * width, 1))
        self.direct = nn.Parameter(torch.ones(2 * width))
        self.merge = nn.Linear(2 * width, width, bias=False)

    def mix(self, hidden: Tensor) -> Tensor:
        values, gates = self.inlet(hidden).chunk(2, dim=2)
        length = values.shape[1]
        values = functional.silu(self.convolution(values.transpose(1, 2))[..., :length].transpose(1, 2))
        steps, inlets, outlets = self.selection(values).split([self.rank, self.states, self.states], dim=2)
        steps = functional.softplus(self.steps(steps)).unsqueeze(3)
        decays = torch.exp(-steps * self.log_rates.exp())
        updates = steps * values.unsqueeze(3) * inlets.unsqueeze(2)
        state = torch.zeros_like(updates[:, 0])
        outputs = []
        for position in range(length):
            state = decays[:, position] * state + updates[:, position]
            outputs.append((state * outlets[:, position].unsqueeze(1)).sum(dim=2))
        return self.merge((torch.stack(outputs, dim=1) + self.direct * values) * functional.silu(gates))


class LinearAttention(SequenceModel):
    """Attention with the features elu + 1: running sums of keys and values,
    divided by the running sum of keys.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__(width=width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def mix(self, hidden: Tensor) -> Tensor:
        queries, keys, values = self.qkv(hidden).chunk(3, dim=2)
        queries, keys = functional.elu(queries) + 1, functional.elu(keys) + 1
        memory = (keys.unsqueeze(3) * values.unsqueeze(2)).cumsum(dim=1)
        norms = (queries * keys.cumsum(dim=1)).sum(dim=2, keepdim=True) + 1e-6
        return self.merge(torch.einsum("btk,btkv->btv", queries, memory) / norms)


class Rwkv(SequenceModel):
    """Token shift, a decay and a bonus per channel, sums kept stable by a running maximum;
    squared ReLU after it.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__(width=width)
        self.decay = nn.Parameter(torch.linspace(-3, 1, width))
        self.bonus = nn.Parameter(torch.full((width,), 0.3))
        self.shares = nn.Parameter(torch.rand(4, width))
        self.key, self.value, self.gate, self.merge = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.wide = nn.Linear(width, 2 * width, bias=False)
        self.narrow = nn.Linear(2 * width, width, bias=False)
        nn.init.zeros_(self.narrow.weight)

    def mix(self, hidden: Tensor) -> Tensor:
        before = shifted(hidden)
        keys, values, gates, wide = (torch.lerp(before, hidden, share) for share in self.shares.unbind())
        keys, values = self.key(keys), self.value(values)
        top = torch.full_like(keys[:, 0], -1e4)
        above, below = torch.zeros_like(top), torch.zeros_like(top)
        outputs = []
        for key, value in zip(keys.unbind(dim=1), values.unbind(dim=1), strict=True):
            highest = torch.maximum(top, key + self.bonus)
            old, new = torch.exp(top - highest), torch.exp(key + self.bonus - highest)
            outputs.append((old * above + new * value) / (old * below + new))
            decayed = top - self.decay.exp()
            top = torch.maximum(decayed, key)
            old, new = torch.exp(decayed - top), torch.exp(key - top)
            above, below = old * above + new * value, old * below + new
        mixed = self.merge(torch.sigmoid(self.gate(gates)) * torch.stack(outputs, dim=1))
        return mixed + self.narrow(functional.relu(self.wide(wide)).square())


class Retention(SequenceModel):
    """As RetNet: attention without softmax, a fixed decay per head in a buffer, GroupNorm per head,
    a gate.
    """

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__(width=width, norm=nn.RMSNorm)
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)
        self.head_norm = nn.GroupNorm(heads, width, affine=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.register_buffer("decays", 1 - 2.0 ** (-2.0 - torch.arange(heads)), persistent=False)

    def mix(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        queries, keys, values = self.qkv(hidden).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        steps = torch.arange(length, device=hidden.device)
        distance = (steps.unsqueeze(1) - steps).to(hidden.dtype)
        weights = torch.tril(self.decays.to(hidden.dtype).view(-1, 1, 1) ** distance.clamp(min=0))
        mixed = (queries @ keys.transpose(2, 3) * weights) @ values
        mixed = self.head_norm(mixed.transpose(1, 2).reshape(batch * length, width)).view(
            batch, length, width
        )
        return self.merge(functional.silu(self.gate(hidden)) * mixed)


class DeltaRule(SequenceModel):
    """As DeltaNet: a memory matrix that is corrected along normalised keys by learned amounts."""

    def __init__(self, width: int = 12) -> None:
        super().__init__(width=width, norm=nn.RMSNorm)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.amount = nn.Linear(width, 1)
        self.merge = nn.Linear(width, width, bias=False)

    def mix(self, hidden: Tensor) -> Tensor:
        queries, keys, values = functional.silu(self.qkv(hidden)).chunk(3, dim=2)
        keys = functional.normalize(keys, dim=2)
        amounts = torch.sigmoid(self.amount(hidden))
        memory = torch.zeros(len(hidden), *(2 * [hidden.shape[2]]), dtype=hidden.dtype, device=hidden.device)
        outputs = []
        for query, key, value, amount in zip(
            queries.unbind(1), keys.unbind(1), values.unbind(1), amounts.unbind(1), strict=True
        ):
            error = value - torch.einsum("bkv,bk->bv", memory, key)
            memory = memory + torch.einsum("bk,bv->bkv", key, amount * error)
            outputs.append(torch.einsum("bkv,bk->bv", memory, query))
        return self.merge(torch.stack(outputs, dim=1))


class MinimalGru(SequenceModel):
    """A GRU whose gates do not see the state; the running products and sums are taken in logs."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(width=width)
        self.gate = nn.Linear(width, width)
        self.candidate = nn.Linear(width, width)
        self.merge = nn.Linear(width, width)

    def mix(self, hidden: Tensor) -> Tensor:
        gates, candidates = self.gate(hidden), self.candidate(hidden)
        positive = torch.where(
            candidates >= 0, (candidates.clamp(min=0) + 0.5).log(), functional.logsigmoid(candidates)
        )
        decays = functional.logsigmoid(-gates).cumsum(dim=1)
        return self.merge(
            torch.exp(decays + torch.logcumsumexp(functional.logsigmoid(gates) + positive - decays, dim=1))
        )
