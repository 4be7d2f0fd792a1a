"""The host's time of a step at 8 ranks: what the engine's own code takes, beside FSDP2's.

    python -m tools.benchmarks.host_time [--rounds N] [--out FILE]

Llama-7B in miniature (32 blocks, each dimension over 32) computes almost nothing, and torch's "fake" group of
8 ranks sends nothing, so what is left is launching: modules, hooks, buckets, collectives. The engine has the
groups and buckets of a GPU. What ranks compare with one another is not checked, because nothing comes from
other ranks. Engines take turns; process time counts.
"""

import time
from collections.abc import Callable
from statistics import median
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import silu
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401 - registers the group

from tools.benchmarks import results
from zbench.engine import build_engine
from zbench.engine.assembly.build import Instruments
from zbench.engine.transport.collective_checks import Terms
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.spec.engine import EngineSpec

RANKS, LAYERS = 8, 32
WIDTH, INNER, WORDS = 128, 344, 1000  # of 4096, 11008, 32000
BLOCK = 200_000  # elements: no less than a block
COLUMNS = ("stage", "zbench, ms", "FSDP2, ms", "zbench over FSDP2")
Step = Callable[[], object]


class Block(nn.Module):
    """A block with Llama's weights: seven matrices and two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        self.first, self.second = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value, out = self.attention
        normed = self.first(hidden)
        hidden = hidden + out(query(normed) * key(normed) + value(normed))
        normed = self.second(hidden)
        inner: Tensor = self.down(silu(self.gate(normed)) * self.up(normed))
        return hidden + inner


class Model(nn.Module):
    """An embedding, the blocks, and a head; returns a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits.float().mean()


def fsdp2(tokens: Tensor, stage: int) -> Step:
    """Return a step of FSDP2; at stage 2 gathered weights stay until backward has used them."""
    mesh = init_device_mesh("cpu", (RANKS,))
    model = Model().bfloat16()
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=stage == 3)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def zbench(tokens: Tensor, stage: int) -> Step:
    """Return a step of the built-in engine, with the groups, buckets and transport of a GPU."""
    keys = {"zero_stage": stage, "dtype": "bfloat16", "reduction": "backend", "reduce_bucket_size": BLOCK}
    sizes = {"allgather_bucket_size": BLOCK, "prefetch_bucket_size": 2 * BLOCK}
    spec = EngineSpec.model_validate(keys | sizes | {"param_persistence_threshold": 2 * WIDTH})

    def transport(group: dist.ProcessGroup | None, *_: object) -> ProcessGroupCollectives:
        assert group is not None
        return ProcessGroupCollectives(group, torch.device("cpu"), in_rank_order=False)

    instruments = Instruments(transport=transport, device_type="cuda")
    model = Model()
    engine = build_engine(model, spec, dist.group.WORLD, instruments=instruments)

    def step() -> None:
        engine.backward(model(tokens))
        engine.step()

    return step


def main() -> None:
    """Measure, print the table, and write it."""
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="steps of each engine, in turns")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=HashStore(), rank=0, world_size=RANKS)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with mock.patch.object(Terms, "check"):
        steps = {(make.__name__, s): make(tokens, s) for s in (2, 3) for make in (zbench, fsdp2)}
        seconds: dict[tuple[str, int], list[float]] = {key: [] for key in steps}
        for number in range(given.rounds + 2):  # two to warm up
            for key, step in steps.items():
                began = time.process_time()
                step()
                if number >= 2:
                    seconds[key].append(time.process_time() - began)
    ms = {key: 1e3 * median(taken) for key, taken in seconds.items()}
    rows = []
    for stage in (2, 3):
        own, other = ms["zbench", stage], ms["fsdp2", stage]
        rows.append((stage, f"{own:.0f}", f"{other:.0f}", f"{own / other:.2f}"))
    text = results.table(COLUMNS, rows)
    samples = {f"{engine} stage {stage}": taken for (engine, stage), taken in seconds.items()}
    results.write(given.out, text, {"seconds": samples})
    print(text)


if __name__ == "__main__":
    main()
