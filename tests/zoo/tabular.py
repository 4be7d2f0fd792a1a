"""Tables and time series: unscaled columns, categories, quantiles, survival, forecasts."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

COLUMNS = 8


def table(generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
    """Return columns [rows, COLUMNS] of scales from 0.01 to 100, and a bent noisy function of them [rows]."""
    columns = sampling.normal(generator, rows, COLUMNS)
    target = columns[:, 0] * columns[:, 1] + columns[:, 2].abs() + 0.2 * sampling.normal(generator, rows)
    return columns * torch.logspace(-2, 2, COLUMNS), target


class TabularMlp(nn.Module):
    """Embedded categories, BatchNorm over unscaled columns, dropout, and Huber regression."""

    def __init__(self, categories: tuple[int, ...] = (5, 40), width: int = 24) -> None:
        super().__init__()
        self.categories = categories
        self.embeddings = nn.ModuleList(nn.Embedding(count, 4) for count in categories)
        self.norm = nn.BatchNorm1d(COLUMNS)
        before = COLUMNS + 4 * len(categories)
        self.layers = nn.Sequential(
            *(nn.Linear(before, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)),
            *(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1)),
        )

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        columns, target = table(generator, 4 * batch_size)
        chosen = [sampling.skewed(generator, count, 4 * batch_size) for count in self.categories]
        return columns, torch.stack(chosen, dim=1), target + chosen[0]

    def forward(self, columns: Tensor, chosen: Tensor, target: Tensor) -> Tensor:
        embedded = [layer(index) for layer, index in zip(self.embeddings, chosen.unbind(dim=1), strict=True)]
        hidden = torch.cat([self.norm(columns), *embedded], dim=1)
        return functional.huber_loss(self.layers(hidden).squeeze(1), target)


class SelfNormalizing(nn.Module):
    """SELU, alpha dropout, LeCun initialisation, zero biases; quantiles at once (pinball loss)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.register_buffer("quantiles", torch.tensor([0.05, 0.5, 0.95]))
        self.layers = nn.Sequential(
            *(nn.Linear(COLUMNS, width), nn.SELU(), nn.AlphaDropout(0.05)),
            *(nn.Linear(width, width), nn.SELU(), nn.Linear(width, 3)),
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
                nn.init.zeros_(layer.bias)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        columns, target = table(generator, 4 * batch_size)
        return columns.sign() * torch.log1p(columns.abs()), target

    def forward(self, columns: Tensor, target: Tensor) -> Tensor:
        error = target.unsqueeze(1) - self.layers(columns)
        return torch.maximum(self.quantiles * error, (self.quantiles - 1) * error).mean()


class HighwayMaxout(nn.Module):
    """Gates that start closed, and the maximum of linear pieces; unscaled inputs; log-cosh."""

    def __init__(self, width: int = 12, pieces: int = 3) -> None:
        super().__init__()
        self.pieces = pieces
        self.inlet = nn.Linear(COLUMNS, width)
        self.maxout = nn.Linear(width, width * pieces)
        self.gate = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)
        self.outlet = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        return table(generator, 4 * batch_size)

    def forward(self, columns: Tensor, target: Tensor) -> Tensor:
        hidden = functional.hardtanh(self.inlet(columns), -3, 3)
        gate = torch.sigmoid(self.gate(hidden))
        hidden = gate * self.maxout(hidden).unflatten(1, (-1, self.pieces)).amax(dim=2) + (1 - gate) * hidden
        error = self.outlet(hidden).squeeze(1) - target
        return (error + functional.softplus(-2 * error) - 0.6931).mean()


class CoxSurvival(nn.Module):
    """The partial likelihood of events in time over the whole micro-batch: no constant has an effect."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.layers = sampling.mlp(COLUMNS, width, 1, activation=nn.Tanh)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        columns = sampling.normal(generator, 4 * batch_size, COLUMNS)
        times = -torch.log(sampling.uniform(generator, 4 * batch_size) + 1e-3) * torch.exp(-columns[:, 0])
        seen = (sampling.uniform(generator, 4 * batch_size) < 0.7).float()
        seen[0] = 1
        return columns, times, seen

    def forward(self, columns: Tensor, times: Tensor, seen: Tensor) -> Tensor:
        order = times.argsort(descending=True)
        risks = self.layers(columns).squeeze(1)[order]
        return -((risks - torch.logcumsumexp(risks, dim=0)) * seen[order]).sum() / seen.sum()


class OrdinalRegression(nn.Module):
    """One score against rising thresholds, which are running sums of positive steps."""

    def __init__(self, levels: int = 5) -> None:
        super().__init__()
        self.levels = levels
        self.score = nn.Linear(COLUMNS, 1, bias=False)
        self.first = nn.Parameter(torch.tensor(-1.0))
        self.steps = nn.Parameter(torch.zeros(levels - 2))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        columns = sampling.normal(generator, 4 * batch_size, COLUMNS)
        return columns, (columns[:, :3].sum(dim=1) + 2).long().clamp(0, self.levels - 1)

    def forward(self, columns: Tensor, levels: Tensor) -> Tensor:
        rises = torch.cat([self.first.view(1), functional.softplus(self.steps)]).cumsum(dim=0)
        logits = self.score(columns) - rises
        above = (levels.unsqueeze(1) > torch.arange(self.levels - 1, device=levels.device)).to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(logits, above, reduction="none").sum(dim=1).mean()


class MultiTask(nn.Module):
    """Three losses of different scales, weighed by learned log-variances of shape []."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(COLUMNS, width), nn.LayerNorm(width), nn.GELU())
        self.heads = nn.ModuleList([nn.Linear(width, 1), nn.Linear(width, 4), nn.Linear(width, 1)])
        self.log_variances = nn.ParameterList(nn.Parameter(torch.zeros(())) for _ in range(3))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        columns, target = table(generator, 4 * batch_size)
        return columns, 100 * target, columns[:, :4].argmax(dim=1), (target > 0).float()

    def forward(self, columns: Tensor, numbers: Tensor, classes: Tensor, labels: Tensor) -> Tensor:
        number, logits, logit = (head(self.trunk(columns)) for head in self.heads)
        losses = (
            functional.mse_loss(number.squeeze(1), numbers),
            functional.cross_entropy(logits, classes),
            functional.binary_cross_entropy_with_logits(logit.squeeze(1), labels),
        )
        pairs = zip(losses, self.log_variances, strict=True)
        return torch.stack([torch.exp(-variance) * loss + variance for loss, variance in pairs]).sum()


class ObliviousTrees(nn.Module):
    """Soft decision trees: each level has a choice of columns, a threshold and a temperature."""

    def __init__(self, trees: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.depth = depth
        self.choices = nn.Parameter(torch.randn(COLUMNS, trees, depth))
        self.thresholds = nn.Parameter(torch.zeros(trees, depth))
        self.log_temperatures = nn.Parameter(torch.zeros(trees, depth))
        self.leaves = nn.Parameter(torch.randn(trees, 2**depth))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        columns, target = table(generator, 4 * batch_size)
        return columns.tanh(), target

    def forward(self, columns: Tensor, target: Tensor) -> Tensor:
        chosen = torch.einsum("nc,ctd->ntd", columns, torch.softmax(self.choices, dim=0))
        right = torch.sigmoid((chosen - self.thresholds) * torch.exp(-self.log_temperatures))
        shares = torch.ones_like(right[..., :1])
        for level in right.split(1, dim=2):
            shares = torch.cat([shares * level, shares * (1 - level)], dim=2)
        return functional.mse_loss((shares * self.leaves).sum(dim=2).mean(dim=1), target)


class FeatureTransformer(nn.Module):
    """Each column is a token: a scale and a shift per column, a class token, pre-norm layers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.randn(COLUMNS, width) * width**-0.5)
        self.shifts = nn.Parameter(torch.zeros(COLUMNS, width))
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 2, 24, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.outlet = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        columns, target = table(generator, 2 * batch_size)
        return columns.tanh(), target

    def forward(self, columns: Tensor, target: Tensor) -> Tensor:
        hidden = columns.unsqueeze(2) * self.scales + self.shifts
        hidden = torch.cat([self.token.expand(len(hidden), -1, -1), hidden], dim=1)
        return functional.mse_loss(self.outlet(self.encoder(hidden)[:, 0]).squeeze(1), target)


class Series(nn.Module):
    """Base: 16 + 4 values of a trend, a season and noise; series differ in scale by a factor of 100."""

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        time = torch.arange(20) / 4
        slope, phase, size = sampling.uniform(generator, 3, batch_size, 1).unbind()
        series = (
            slope * time + torch.sin(3 * time + 6 * phase) + 0.1 * sampling.normal(generator, batch_size, 20)
        )
        series = series * 10 ** (2 * size - 1)
        return series[:, :16], series[:, 16:]


class NBeats(Series):
    """Blocks that subtract what they explain and add forecasts; sMAPE."""

    def __init__(self, width: int = 20, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(sampling.mlp(16, width, width, 20) for _ in range(blocks - 1))
        self.last_block = sampling.mlp(16, width, width, 4)

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        forecast = torch.zeros_like(future)
        for block in self.blocks:
            explained, added = block(past).split([16, 4], dim=1)
            past, forecast = past - explained, forecast + added
        forecast = forecast + self.last_block(past)
        return (
            2 * (forecast - future).abs() / (forecast.abs() + future.abs()).detach().clamp(min=0.1)
        ).mean()


class DecompositionLinear(Series):
    """As DLinear: one linear map for the moving average, one for the rest; both start as averages."""

    def __init__(self) -> None:
        super().__init__()
        self.trend = nn.Linear(16, 4)
        self.season = nn.Linear(16, 4)
        for layer in (self.trend, self.season):
            nn.init.constant_(layer.weight, 1 / 16)

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        padded = functional.pad(past.unsqueeze(1), (2, 2), mode="replicate")
        trend = functional.avg_pool1d(padded, 5, stride=1).squeeze(1)
        return functional.mse_loss(self.trend(trend) + self.season(past - trend), future)


class ReversibleNorm(Series):
    """Each series is normalised by itself, and the forecast is put back, with a learned scale and shift."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))
        self.layers = sampling.mlp(16, width, 4)

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        mean = past.mean(dim=1, keepdim=True).detach()
        deviation = (past.var(dim=1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        hidden = self.layers((past - mean) / deviation * self.scale + self.shift)
        return functional.l1_loss((hidden - self.shift) / (self.scale + 1e-4) * deviation + mean, future)


class CountForecast(nn.Module):
    """As DeepAR: a GRU over counts, whose next value is negative binomial;
    mean and dispersion by softplus.
    """

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.gru = nn.GRU(1, width, batch_first=True)
        self.mean = nn.Linear(width, 1)
        self.dispersion = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        rates = torch.exp(
            1 + torch.sin(torch.arange(length + 1) * 0.7) + sampling.normal(generator, batch_size, 1)
        )
        return (torch.poisson(rates.clamp(max=60), generator=generator),)

    def forward(self, counts: Tensor) -> Tensor:
        hidden = self.gru(torch.log1p(counts[:, :-1]).unsqueeze(2))[0]
        mean = functional.softplus(self.mean(hidden)).squeeze(2) + 1e-3
        size = 1 / (functional.softplus(self.dispersion(hidden)).squeeze(2) + 1e-2)
        values = counts[:, 1:]
        score = torch.lgamma(values + size) - torch.lgamma(size) - torch.lgamma(values + 1)
        score = score + size * (size / (size + mean)).log() + values * (mean / (size + mean)).log()
        return -score.mean()
