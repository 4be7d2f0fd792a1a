"""Graph networks on random small graphs.
The graphs of a micro-batch are one graph without edges between them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo import sampling

FEATURES = 6
CLASSES = 3


def random_graphs(generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, Tensor]:
    """Return nodes [batch_size, length, FEATURES] and edges [batch_size, 2 * length, 2], int64,
    some of them twice.
    """
    nodes = sampling.normal(generator, batch_size, length, FEATURES)
    return nodes, sampling.skewed(generator, length, batch_size, 2 * length, 2)


def one_graph(nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes [N, F] and the sources and targets [E] of the edges of all graphs."""
    offsets = torch.arange(len(nodes), device=edges.device).view(-1, 1, 1) * nodes.shape[1]
    sources, targets = (edges + offsets).flatten(0, 1).unbind(dim=1)
    return nodes.flatten(0, 1), sources, targets


def summed(messages: Tensor, targets: Tensor, nodes: int) -> Tensor:
    """Return the sums of the messages [E, ...] that reach each node, [nodes, ...]."""
    zeros = torch.zeros((nodes, *messages.shape[1:]), dtype=messages.dtype, device=messages.device)
    return zeros.index_add(0, targets, messages)


class Gcn(nn.Module):
    """Neighbours averaged by the roots of their degrees, with loops; classes of nodes; dropout."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width, bias=False)
        self.second = nn.Linear(width, CLASSES, bias=False)
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(CLASSES))])

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        nodes, edges = random_graphs(generator, batch_size, length)
        return nodes, edges, nodes[..., :CLASSES].argmax(dim=2)

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        hidden, sources, targets = one_graph(nodes, edges)
        loops = torch.arange(len(hidden), device=edges.device)
        sources, targets = torch.cat([sources, loops]), torch.cat([targets, loops])
        degrees = torch.bincount(targets, minlength=len(hidden)).to(hidden.dtype)
        weights = (degrees[sources] * degrees[targets]).rsqrt().unsqueeze(1)
        for layer, bias in zip((self.first, self.second), self.biases, strict=True):
            if layer is self.second:
                hidden = functional.dropout(functional.relu(hidden), 0.5, self.training)
            hidden = summed(layer(hidden)[sources] * weights, targets, len(hidden)) + bias
        return functional.cross_entropy(hidden, labels.flatten())


class Gat(nn.Module):
    """Attention over incoming edges in several heads, a softmax per node; several labels per node."""

    def __init__(self, heads: int = 2, width: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.values = nn.Linear(FEATURES, heads * width, bias=False)
        self.source_score = nn.Parameter(torch.empty(heads, width))
        self.target_score = nn.Parameter(torch.empty(heads, width))
        nn.init.xavier_uniform_(self.source_score)
        nn.init.xavier_uniform_(self.target_score)
        self.outlet = nn.Linear(heads * width, CLASSES)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        nodes, edges = random_graphs(generator, batch_size, length)
        return nodes, edges, (nodes[..., :CLASSES] > 0).float()

    def forward(self, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
        features, sources, targets = one_graph(nodes, edges)
        loops = torch.arange(len(features), device=edges.device)
        sources, targets = torch.cat([sources, loops]), torch.cat([targets, loops])
        values = self.values(features).unflatten(1, (self.heads, -1))
        score = (values * self.source_score).sum(dim=2)[sources] + (values * self.target_score).sum(dim=2)[
            targets
        ]
        score = functional.leaky_relu(score, 0.2)
        index = targets.unsqueeze(1).expand_as(score)
        lowest = torch.full_like(score[: len(features)], -torch.inf)
        highest = lowest.scatter_reduce(0, index, score.detach(), "amax")
        weights = torch.exp(score - highest[targets])
        weights = weights / summed(weights, targets, len(features))[targets]
        hidden = summed(weights.unsqueeze(2) * values[sources], targets, len(features)).flatten(1)
        return functional.binary_cross_entropy_with_logits(
            self.outlet(functional.elu(hidden)), labels.flatten(0, 1)
        )


class GinLayer(nn.Module):
    """A node plus the sum of its neighbours through a perceptron with BatchNorm after biased linear
    layers.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.layers = nn.Sequential(
            *(nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()),
            *(nn.Linear(after, after), nn.BatchNorm1d(after), nn.ReLU()),
        )

    def forward(self, nodes: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        return self.layers((1 + self.epsilon) * nodes + summed(nodes[sources], targets, len(nodes)))


class Gin(nn.Module):
    """Isomorphism network; a number per graph from the sums of all layers (L1)."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.first = GinLayer(FEATURES, width)
        self.second = GinLayer(width, width)
        self.outlet = nn.Linear(2 * width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        nodes, edges = random_graphs(generator, batch_size, length)
        return nodes, edges, (edges[..., 0] < edges[..., 1]).float().mean(dim=1)

    def forward(self, nodes: Tensor, edges: Tensor, numbers: Tensor) -> Tensor:
        features, sources, targets = one_graph(nodes, edges)
        first = self.first(features, sources, targets)
        second = self.second(first, sources, targets)
        graphs = torch.cat([first, second], dim=1).view(*nodes.shape[:2], -1).sum(dim=1)
        return functional.l1_loss(self.outlet(graphs).squeeze(1), numbers)


class MessagePassing(nn.Module):
    """Edge features make the matrices of messages, a GRU cell updates nodes, twice with the same weights."""

    def __init__(self, width: int = 8, edge_features: int = 2) -> None:
        super().__init__()
        self.edge_features = edge_features
        self.inlet = nn.Linear(FEATURES, width)
        self.matrices = sampling.mlp(edge_features, 16, width * width)
        self.update = nn.GRUCell(width, width)
        self.readout = nn.Linear(width, 2 * width)
        self.outlet = nn.Linear(width, 1)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        nodes, edges = random_graphs(generator, batch_size, length)
        strengths = sampling.normal(generator, batch_size, 2 * length, self.edge_features)
        return nodes, edges, strengths, nodes.mean(dim=(1, 2)) + strengths.mean(dim=(1, 2))

    def forward(self, nodes: Tensor, edges: Tensor, strengths: Tensor, numbers: Tensor) -> Tensor:
        features, sources, targets = one_graph(nodes, edges)
        hidden = functional.relu(self.inlet(features))
        width = hidden.shape[1]
        matrices = self.matrices(strengths.flatten(0, 1)).view(-1, width, width)
        for _ in range(2):
            messages = torch.bmm(matrices, hidden[sources].unsqueeze(2)).squeeze(2)
            hidden = self.update(summed(messages, targets, len(hidden)), hidden)
        gates, values = self.readout(hidden).chunk(2, dim=1)
        graphs = (torch.sigmoid(gates) * values).view(*nodes.shape[:2], -1).mean(dim=1)
        return functional.mse_loss(self.outlet(graphs).squeeze(1), numbers)


class GraphSage(nn.Module):
    """The largest message of the neighbours, normalised outputs;
    links against random pairs by dot products.
    """

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.pool = nn.Linear(FEATURES, width)
        self.outlet = nn.Linear(FEATURES + width, width)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        nodes, edges = random_graphs(generator, batch_size, length)
        return nodes, edges, sampling.whole(generator, length, batch_size, 2 * length, 2)

    def forward(self, nodes: Tensor, edges: Tensor, others: Tensor) -> Tensor:
        features, sources, targets = one_graph(nodes, edges)
        messages = functional.relu(self.pool(features))[sources]
        zeros = torch.zeros(len(features), messages.shape[1], dtype=messages.dtype, device=messages.device)
        largest = zeros.scatter_reduce(0, targets.unsqueeze(1).expand_as(messages), messages, "amax")
        hidden = functional.normalize(self.outlet(torch.cat([features, largest], dim=1)), dim=1)
        _, unlinked_sources, unlinked_targets = one_graph(nodes, others)
        linked = (hidden[sources] * hidden[targets]).sum(dim=1) * self.scale
        unlinked = (hidden[unlinked_sources] * hidden[unlinked_targets]).sum(dim=1) * self.scale
        return -functional.logsigmoid(linked).mean() - functional.logsigmoid(-unlinked).mean()


class RelationalGcn(nn.Module):
    """Matrices per relation from shared bases; triples scored by a diagonal bilinear form."""

    def __init__(self, width: int = 8, relations: int = 4, bases: int = 2) -> None:
        super().__init__()
        self.relations = relations
        self.inlet = nn.Linear(FEATURES, width)
        self.bases = nn.Parameter(torch.empty(bases, width, width))
        self.mixture = nn.Parameter(torch.empty(relations, bases))
        self.loop = nn.Linear(width, width)
        self.diagonals = nn.Parameter(torch.empty(relations, width))
        for parameter in (self.bases, self.mixture, self.diagonals):
            nn.init.xavier_normal_(parameter)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        nodes, edges = random_graphs(generator, batch_size, length)
        kinds = sampling.skewed(generator, self.relations, batch_size, 2 * length)
        return nodes, edges, kinds, sampling.whole(generator, 2, batch_size, 2 * length).float()

    def forward(self, nodes: Tensor, edges: Tensor, kinds: Tensor, valid: Tensor) -> Tensor:
        features, sources, targets = one_graph(nodes, edges)
        kinds = kinds.flatten()
        hidden = self.inlet(features)
        matrices = torch.einsum("rb,bij->rij", self.mixture, self.bases)
        messages = torch.einsum("ei,eij->ej", hidden[sources], matrices[kinds])
        counts = torch.bincount(targets, minlength=len(hidden)).clamp(min=1).to(hidden.dtype).unsqueeze(1)
        hidden = functional.relu(self.loop(hidden) + summed(messages, targets, len(hidden)) / counts)
        scores = (hidden[sources] * self.diagonals[kinds] * hidden[targets]).sum(dim=1)
        return functional.binary_cross_entropy_with_logits(scores, valid.flatten())


class Forces(nn.Module):
    """As SchNet: radial filters between atoms; the energy, and the forces as its derivative,
    through two backwards.
    """

    def __init__(self, width: int = 8, kinds: int = 3, radii: int = 6) -> None:
        super().__init__()
        self.kinds = kinds
        self.radii = radii
        self.atoms = nn.Embedding(kinds, width)
        self.filters = sampling.mlp(radii, width, width, activation=nn.Softplus)
        self.update = sampling.mlp(width, width, width, activation=nn.Softplus)
        self.energy = sampling.mlp(width, width, 1, activation=nn.Softplus)

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        kinds = sampling.whole(generator, self.kinds, batch_size, 6)
        positions = 1.5 * sampling.normal(generator, batch_size, 6, 3)
        return kinds, positions, positions.square().sum(dim=(1, 2)) * 0.1, -0.2 * positions

    def forward(self, kinds: Tensor, positions: Tensor, energies: Tensor, forces: Tensor) -> Tensor:
        positions = positions.detach().requires_grad_()
        shifts = positions.unsqueeze(2) - positions.unsqueeze(1)
        distances = (shifts.square().sum(dim=3, keepdim=True) + 1e-3).sqrt()
        centres = torch.linspace(0, 4, self.radii, device=positions.device).to(positions.dtype)
        filters = self.filters(torch.exp(-2 * (distances - centres).square()))
        hidden = self.atoms(kinds)
        hidden = hidden + self.update((filters * hidden.unsqueeze(1)).sum(dim=2))
        energy = self.energy(hidden).sum(dim=(1, 2))
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return functional.mse_loss(energy, energies) + 10 * functional.mse_loss(-gradient, forces)
