"""The whole way of a new user, in a fresh environment and outside the clone: from a model to a trained step.

    python tools/whole_way.py [--wheel FILE] [--shared | --deepspeed] [--deepspeed-python PYTHON]

Installs the wheel and follows the README alone, command by command, in an empty folder that holds what its
reader has. Then writes a sweep from a transformers config (`init`), runs it, tunes it under a memory limit,
exports the best for DeepSpeed and trains a step with that in DeepSpeed, where it is installed. Then the same
from a ds_config, exported to FSDP2. Ends with the status of the first command that fails.

--shared shows the new environment the packages of this one, and installs the wheel alone (no network).
--deepspeed installs DeepSpeed in the new environment, so that a step is trained there with the exported file.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}
MY_MODULE = """
import torch

class Model(torch.nn.Sequential):
    def make_batch(self, generator, micro_batch_size, sequence_length):
        return (torch.randn(micro_batch_size, 16, generator=generator),)

    def forward(self, x):
        return (super().forward(x) - x).square().mean()

def make_model():
    return Model(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
"""
FEW = ["--set", "steps=2", "--set", "warmup_steps=1", "--set", "repeats=1", "--set", "run.device=cpu"]
QUICK = [*FEW, "--set", "sequence_length=32"]
DEEPSPEED_STEP = """
import json, os, socket, torch
with socket.create_server(("127.0.0.1", 0)) as probe:
    port = str(probe.getsockname()[1])
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", port), ("DS_ACCELERATOR", "cpu")):
    os.environ.setdefault(name, value)
import deepspeed
config = json.load(open("ds_config.json"))
deepspeed.init_distributed("gloo")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
before = [p.detach().clone() for p in model.parameters()]
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(engine.gradient_accumulation_steps()):
    engine.backward(engine(torch.ones(2, 8, dtype=next(model.parameters()).dtype)).mean())
    engine.step()
with deepspeed.zero.GatheredParameters(list(model.parameters())):
    trained = [not torch.equal(a, b.float()) for a, b in zip(before, model.parameters())]
assert any(trained)
print("trained a step in DeepSpeed", deepspeed.__version__)
"""
FSDP2_STEP = """
import torch, torch.distributed as dist
from torch import nn
import fsdp2_trial as exported
dist.init_process_group("gloo", store=dist.FileStore("store", 1), rank=0, world_size=1)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
before = [p.detach().clone() for p in model.parameters()]
sharded = exported.shard(model, 1, "cpu")
optimizer = exported.make_optimizer(sharded)
steps = exported.GRADIENT_ACCUMULATION_STEPS
exported.step(sharded, optimizer, (sharded(torch.ones(2, 4)).float().mean() for _ in range(steps)))
assert all(not torch.equal(a, p.full_tensor()) for a, p in zip(before, sharded.parameters())), "not trained"
dist.destroy_process_group()
print("trained a step in FSDP2, torch", torch.__version__)
"""


class Traveller:
    """Runs commands in a directory outside the clone, with a fresh environment's programs."""

    def __init__(self, place: Path) -> None:
        self.place, self.environment = place / "work", place / "environment"
        self.place.mkdir()

    @property
    def python(self) -> str:
        return str(self.environment / "bin" / "python")

    def install(self, wheel: Path, *, shared: bool, more: tuple[str, ...] = ()) -> None:
        """Make the environment and install the wheel in it, and more packages where none are shared."""
        venv.EnvBuilder(symlinks=True, with_pip=not shared).create(self.environment)
        if not shared:
            self.run([self.python, "-m", "pip", "install", "--quiet", f"{wheel}[hf]", *more])
            return
        base = str(self.environment)
        packages = sysconfig.get_path("purelib", "venv", {"base": base, "platbase": base})
        own = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
        Path(packages, "shared.pth").write_text("\n".join(own))
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps"]
        self.run([*pip, "--force-reinstall", "--no-index", str(wheel)])
        self.run([self.python, "-c", f"import zbench; assert zbench.__file__.startswith({base!r}), zbench"])

    def zbench(self, *words: str, accept: tuple[int, ...] = (0,)) -> None:
        """Run a zbench command."""
        self.run([str(self.environment / "bin" / "zbench"), *words], accept=accept)

    def run(self, command: list[str], accept: tuple[int, ...] = (0,)) -> None:
        """Run a command; ends this script with its status where that is not accepted."""
        print("+", " ".join(word if len(word) < 80 else "..." for word in command), flush=True)
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        clean = {key: value for key, value in os.environ.items() if key not in hidden}
        status = subprocess.run(command, cwd=self.place, env=clean, check=False).returncode
        if status not in accept:
            raise SystemExit(status)


def build_wheel(place: Path) -> Path:
    """Return a wheel of the clone."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, str(ROOT), "-w", str(place)], check=True)
    (wheel,) = place.glob("zbench-*.whl")
    return wheel


def from_the_readme(way: Traveller) -> None:
    """Run the README's commands with few steps, in order, without those that need commits or a cluster."""
    torchrun = way.environment / "bin" / "torchrun"
    if not torchrun.exists():  # packages that are shown to an environment bring no programs
        torchrun.write_text(f'#!/bin/sh\nexec {way.python} -m torch.distributed.run "$@"\n')
        torchrun.chmod(0o755)
    (way.place / "my_module.py").write_text(MY_MODULE)
    page = (ROOT / "docs" / "own-script.md").read_text()
    for name, kind in (("train.py", "python"), ("own.yaml", "yaml")):
        (way.place / name).write_text(re.findall(rf"```{kind}\n(.*?)```", page, flags=re.DOTALL)[0])
    readme = (ROOT / "README.md").read_text()
    for line in re.findall(r"(?:^    |`)(zbench [^`#\n]+)", readme, flags=re.MULTILINE):
        words = shlex.split(line)[1:]
        if not {"--paired", "--slurm"} & {*words}:
            shorter = {"sweep": [] if "--resume" in words or "own.yaml" in words else FEW, "tune": FEW}
            budget = ["--budget", "2trials"] if words[0] == "tune" else []
            way.zbench(*words, *shorter.get(words[0], []), *budget)


def from_a_transformers_config(way: Traveller, deepspeed_python: str | None) -> None:
    """config.json -> sweep -> tune under a limit -> ds_config.json -> a step in DeepSpeed."""
    (way.place / "config.json").write_text(json.dumps(CONFIG))
    way.zbench("init", "model.yaml", "--from", "config.json")
    way.zbench("sweep", "model.yaml", "-q", *QUICK, "--set", "axes.zero_stage=[1]")
    way.zbench("tune", "model.yaml", "-q", "--memory", "1Gi", "--budget", "2trials", *QUICK)
    way.zbench("export", "last", "--trial", "best", "--to", "deepspeed", "--output", "ds_config.json")
    if deepspeed_python is None:
        print("DeepSpeed is not installed: no step is trained with ds_config.json")
        return
    way.run([deepspeed_python, "-c", DEEPSPEED_STEP])


def from_a_ds_config(way: Traveller) -> None:
    """ds_config.json -> sweep -> FSDP2 code -> a step in FSDP2."""
    (way.place / "theirs.json").write_text(json.dumps(DS_CONFIG))
    way.zbench("init", "theirs.yaml", "--from", "theirs.json")
    way.zbench("sweep", "theirs.yaml", "-q", *QUICK, "--set", "axes.zero_stage=[2,3]", "--set", "exclude=[]",
               "--set", "axes.offload_optimizer=[none]")  # fmt: skip
    way.zbench("export", "last", "--trial", "best", "--to", "fsdp2", "--output", "fsdp2_trial.py")
    way.run([way.python, "-c", FSDP2_STEP])


def main() -> None:
    """Go the way, in a directory that is removed afterwards."""
    parser = argparse.ArgumentParser(description="Go the whole way of a new user, outside the clone.")
    parser.add_argument("--wheel", type=Path, help="install this wheel instead of building one")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--shared", action="store_true", help="show the environment this one's packages")
    kind.add_argument("--deepspeed", action="store_true", help="install DeepSpeed in the environment")
    parser.add_argument("--deepspeed-python", help="an interpreter that has DeepSpeed")
    options = parser.parse_args()
    own = sys.executable if importlib.util.find_spec("deepspeed") else None
    with tempfile.TemporaryDirectory(prefix="zbench-way-") as scratch:
        wheel = options.wheel.absolute() if options.wheel else build_wheel(Path(scratch))
        way = Traveller(Path(scratch))
        way.install(wheel, shared=options.shared, more=("deepspeed",) if options.deepspeed else ())
        installed = way.python if options.deepspeed else own
        from_the_readme(way)
        from_a_transformers_config(way, options.deepspeed_python or installed)
        from_a_ds_config(way)
    print("the whole way: ok")


if __name__ == "__main__":
    main()
