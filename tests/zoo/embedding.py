"""Large tables of which a step touches few rows: words, users, items, entities."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling


class SkipGram(nn.Module):
    """word2vec: negative sampling; the table of contexts starts as zero."""

    def __init__(self, words: int = 1500, width: int = 12) -> None:
        super().__init__()
        self.count = words
        self.words = nn.Embedding(words, width)
        self.contexts = nn.Embedding(words, width)
        nn.init.uniform_(self.words.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.contexts.weight)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        centres = sampling.skewed(generator, self.count, batch_size, length)
        negatives = sampling.skewed(generator, self.count, batch_size, length, 4)
        return centres, (centres * 7 + 3) % self.count, negatives

    def forward(self, centres: Tensor, contexts: Tensor, negatives: Tensor) -> Tensor:
        word = self.words(centres)
        right = (word * self.contexts(contexts)).sum(dim=2)
        wrong = (self.contexts(negatives) @ word.unsqueeze(3)).squeeze(3)
        return -(functional.logsigmoid(right) + functional.logsigmoid(-wrong).sum(dim=2)).mean()


class GloVe(nn.Module):
    """Logarithms of counts by dot products and two biases per word, weighed by the counts."""

    def __init__(self, words: int = 600, width: int = 10) -> None:
        super().__init__()
        self.count = words
        self.tables = nn.ModuleList(nn.Embedding(words, width) for _ in range(2))
        self.biases = nn.ModuleList(nn.Embedding(words, 1) for _ in range(2))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        pairs = sampling.skewed(generator, self.count, batch_size * length, 2)
        return pairs, (1 + 200 * sampling.uniform(generator, batch_size * length).pow(4)).floor()

    def forward(self, pairs: Tensor, counts: Tensor) -> Tensor:
        left, right = pairs.unbind(dim=1)
        fit = (self.tables[0](left) * self.tables[1](right)).sum(dim=1)
        fit = fit + self.biases[0](left).squeeze(1) + self.biases[1](right).squeeze(1)
        return ((counts / 100).clamp(max=1).pow(0.75) * (fit - counts.log()).square()).mean()


class DeepRecommendation(nn.Module):
    """As DLRM: bags of categories (sum), dense columns, all dot products between them, clicks."""

    def __init__(self, rows: tuple[int, ...] = (1000, 200, 10), width: int = 8) -> None:
        super().__init__()
        self.rows = rows
        self.bags = nn.ModuleList(nn.EmbeddingBag(count, width, mode="sum") for count in rows)
        for bag in self.bags:
            nn.init.uniform_(bag.weight, -(bag.num_embeddings**-0.5), bag.num_embeddings**-0.5)
        self.bottom = sampling.mlp(5, 16, width)
        pairs = len(rows) * (len(rows) + 1) // 2
        self.top = sampling.mlp(width + pairs, 16, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        dense = sampling.normal(generator, 4 * batch_size, 5)
        chosen = [sampling.skewed(generator, count, 4 * batch_size, 3) for count in self.rows]
        clicks = (sampling.uniform(generator, 4 * batch_size) < 0.1 + 0.3 * (dense[:, 0] > 0)).float()
        return dense, torch.stack(chosen, dim=1), clicks

    def forward(self, dense: Tensor, chosen: Tensor, clicks: Tensor) -> Tensor:
        bottom = functional.relu(self.bottom(dense))
        bags = [bag(rows) for bag, rows in zip(self.bags, chosen.unbind(dim=1), strict=True)]
        together = torch.stack([bottom, *bags], dim=1)
        row, column = torch.tril_indices(len(bags) + 1, len(bags) + 1, offset=-1, device=dense.device)
        products = (together @ together.transpose(1, 2))[:, row, column]
        logits = self.top(torch.cat([bottom, products], dim=1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits, clicks)


class FastText(nn.Module):
    """The mean of a bag of hashed words and a linear layer that starts as zero; bags differ in length."""

    def __init__(self, buckets: int = 2000, width: int = 10, classes: int = 4) -> None:
        super().__init__()
        self.buckets = buckets
        self.classes = classes
        self.bag = nn.EmbeddingBag(buckets, width, mode="mean", padding_idx=0)
        self.outlet = nn.Linear(width, classes)
        nn.init.zeros_(self.outlet.weight)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        words = sampling.skewed(generator, self.buckets, batch_size, length)
        words = words * (sampling.uniform(generator, batch_size, length) < 0.8)
        words[:, 0] = words[:, 0].clamp(min=1)
        return words, words[:, 0] % self.classes

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.outlet(self.bag(words)), labels)


class MatrixFactorization(nn.Module):
    """Ratings by dot products of users and items, biases of both, a global scalar,
    a penalty on touched rows.
    """

    def __init__(self, users: int = 800, items: int = 300, width: int = 8) -> None:
        super().__init__()
        self.counts = (users, items)
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.user_biases = nn.Embedding(users, 1)
        self.item_biases = nn.Embedding(items, 1)
        self.mean = nn.Parameter(torch.tensor(3.5))
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.user_biases, self.item_biases):
            nn.init.zeros_(table.weight)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        users, items = (sampling.skewed(generator, count, batch_size * length) for count in self.counts)
        return users, items, 1.0 + (users * 3 + items * 5) % 5

    def forward(self, users: Tensor, items: Tensor, ratings: Tensor) -> Tensor:
        user, item = self.users(users), self.items(items)
        biases = self.user_biases(users).squeeze(1) + self.item_biases(items).squeeze(1)
        error = (user * item).sum(dim=1) + biases + self.mean - ratings
        penalty = user.square().sum(dim=1) + item.square().sum(dim=1) + biases.square()
        return (error.square() + 0.02 * penalty).mean()


class FactorizationMachine(nn.Module):
    """Wide and deep: linear weights of categories, all their pairs, and a perceptron with BatchNorm."""

    def __init__(self, fields: int = 5, rows: int = 1200, width: int = 6) -> None:
        super().__init__()
        self.fields = fields
        self.rows = rows
        self.linear = nn.Embedding(rows, 1)
        self.factors = nn.Embedding(rows, width)
        self.deep = nn.Sequential(
            *(nn.Linear(fields * width, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)),
            nn.Linear(16, 1),
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        chosen = sampling.skewed(generator, self.rows, 4 * batch_size, self.fields)
        return chosen, (chosen.sum(dim=1) % 3 == 0).float()

    def forward(self, chosen: Tensor, labels: Tensor) -> Tensor:
        factors = self.factors(chosen)
        pairs = 0.5 * (factors.sum(dim=1).square() - factors.square().sum(dim=1)).sum(dim=1)
        logits = (
            self.linear(chosen).sum(dim=(1, 2)) + pairs + self.deep(factors.flatten(1)).squeeze(1) + self.bias
        )
        return functional.binary_cross_entropy_with_logits(logits, labels)


class Translations(nn.Module):
    """As TransE: relations move entities; a margin between true and corrupted triples, distances in L1."""

    def __init__(self, entities: int = 900, relations: int = 12, width: int = 10) -> None:
        super().__init__()
        self.counts = (entities, relations)
        self.entities = nn.Embedding(entities, width)
        self.relations = nn.Embedding(relations, width)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        heads = sampling.skewed(generator, self.counts[0], batch_size * length)
        relations = sampling.skewed(generator, self.counts[1], batch_size * length)
        tails = (heads + 17 * relations + 1) % self.counts[0]
        return heads, relations, tails, sampling.whole(generator, self.counts[0], batch_size * length)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor, corrupted: Tensor) -> Tensor:
        moved = functional.normalize(self.entities(heads), dim=1) + self.relations(relations)
        near = (moved - functional.normalize(self.entities(tails), dim=1)).abs().sum(dim=1)
        far = (moved - functional.normalize(self.entities(corrupted), dim=1)).abs().sum(dim=1)
        return functional.margin_ranking_loss(far, near, torch.ones_like(near), margin=1.0)


class SessionRanking(nn.Module):
    """A GRU over items of a session;
    the next item against random ones (Bayesian personalised ranking), tied.
    """

    def __init__(self, items: int = 1000, width: int = 12) -> None:
        super().__init__()
        self.count = items
        self.items = nn.Embedding(items, width, padding_idx=0)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.biases = nn.Embedding(items, 1)
        nn.init.zeros_(self.biases.weight)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        sessions = sampling.tokens(generator, self.count, batch_size, length + 1)
        return sessions, sampling.skewed(generator, self.count, batch_size, length)

    def forward(self, sessions: Tensor, negatives: Tensor) -> Tensor:
        hidden = functional.dropout(self.gru(self.items(sessions[:, :-1]))[0], 0.1, self.training)
        right, wrong = (
            (hidden * self.items(items)).sum(dim=2) + self.biases(items).squeeze(2)
            for items in (sessions[:, 1:], negatives)
        )
        return -functional.logsigmoid(right - wrong).mean()


class TwoTowers(nn.Module):
    """Users and items by towers over ids;
    the other items of the micro-batch are the negatives (sampled softmax).
    """

    def __init__(self, users: int = 700, items: int = 500, width: int = 8) -> None:
        super().__init__()
        self.counts = (users, items)
        self.users = nn.Sequential(
            nn.Embedding(users, width), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, width)
        )
        self.items = nn.Sequential(
            nn.Embedding(items, width), nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, width)
        )

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        users = sampling.skewed(generator, self.counts[0], 4 * batch_size)
        return users, (users * 11 + sampling.whole(generator, 3, 4 * batch_size)) % self.counts[1]

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        logits = self.users(users) @ self.items(items).T
        same = (items.unsqueeze(0) == items.unsqueeze(1)).logical_xor(
            torch.eye(len(items), dtype=torch.bool, device=items.device)
        )
        return functional.cross_entropy(
            logits.masked_fill(same, -1e4), torch.arange(len(items), device=items.device)
        )
