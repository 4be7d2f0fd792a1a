"""The programs, and a sweep of each program over its healthy variants."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
AXIS = "param_persistence_threshold"  # borrowed: an axis is a key of the engine, and scripts ignore this key


@dataclass(frozen=True, slots=True)
class Program:
    """A training program in this folder.

    checkpoint: what it saves in its output directory. variants: those that are compared with variant 0.
    world_size: the number of ranks, which torchrun starts if there are several.
    """

    name: str
    checkpoint: str
    variants: tuple[int, ...] = (1, 2)
    world_size: int = 1

    @property
    def command(self) -> str:
        """The template of the command."""
        launcher = "python" if self.world_size == 1 else TORCHRUN
        script = shlex.quote(str(FOLDER / f"{self.name}.py"))
        return f"{launcher} {script} --steps {{steps}} --variant {{{AXIS}}} --output {{output}}"

    def sweep(self, steps: int = 10) -> dict[str, Any]:
        """Return the document of a sweep: two steps of warm-up, and `steps` that are timed."""
        return {
            "name": self.name,
            "workload": {
                "command": self.command,
                "step_times": {"jsonl": "{output}/steps.jsonl"},
                "checkpoint": f"{{output}}/{self.checkpoint}",
            },
            "run": {
                "world_size": self.world_size,
                "warmup_steps": 2,
                "steps": steps,
                "repeats": 1,
                "threads_per_rank": 1,
                "timeout": "600s",
            },
            "engine": {AXIS: 0},
            "axes": {AXIS: list(self.variants)},
        }


TORCHRUN = "python -m torch.distributed.run --nproc-per-node {world_size} --master-port {port}"
HOGWILD = Program("hogwild", "hogwild.pt", variants=(0, 1))  # not even variant 0 has its own bits
PROGRAMS = (
    Program("actor_critic", "actor_critic.pth"),
    Program("autocast", "model.safetensors"),
    Program("dcgan", "gan.pth"),
    Program("ddp", "checkpoint.pt", world_size=2),
    Program("forward_forward", "forward_forward.pt"),
    Program("graph_attention", "gat.pt"),
    Program("graph_convolution", "gcn.safetensors"),
    HOGWILD,
    Program("mnist", "mnist_cnn.pt"),
    Program("mnist_rnn", "mnist_rnn.pt"),
    Program("regression", "regression.pt"),
    Program("reinforce", "policy.pt"),
    Program("resnet18", "checkpoint.pth"),
    Program("sequence_prediction", "sequence.pt", variants=(2,)),  # LBFGS has one kernel
    Program("siamese", "siamese.safetensors"),
    Program("vae", "vae.safetensors"),
    Program("word_lm_lstm", "model.pt"),
    Program("word_lm_transformer", "model.pt"),
)
