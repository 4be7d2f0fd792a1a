"""The scripts of docs/training.md train with what `zbench export` writes."""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec
from zbench.spec.targets import TARGETS

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
SCRIPTS = {
    re.match(r"# (\w+)\.py: ", code).group(1): code  # type: ignore[union-attr]
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
}
FILES = {"deepspeed": "ds_config.json", "hf-trainer": "training_args.json", "fsdp2": "fsdp2_trial.py"}
FILES["accelerate"] = "accelerate.yaml"
ENGINE = {"zero_stage": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
DEEPSPEED = os.environ.get("DEEPSPEED_PYTHON") or (
    sys.executable if importlib.util.find_spec("deepspeed") else None
)


def test_each_target_has_a_command_and_a_script() -> None:
    assert set(FILES) == set(TARGETS)
    for target, file in FILES.items():
        assert f"zbench export last --trial best --to {target} --output {file}" in PAGE
        script = f"train_{target.removeprefix('hf-')}"
        compile(SCRIPTS[script], script, "exec")


def losses(place: Path, target: str, engine: dict[str, Any], python: str, ranks: int = 2) -> list[float]:
    """Export for a target, run its script on the page as `ranks` processes, and return the printed losses."""
    document = {"engine": engine, "run": {"world_size": ranks, "device": "cpu"}}
    trial = expand(SweepSpec.model_validate(document)).trials[0]
    (place / FILES[target]).write_text(TARGETS[target](trial).text)
    script = f"train_{target.removeprefix('hf-')}"
    (place / f"{script}.py").write_text(SCRIPTS[script])
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env = variables | {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu", "WANDB_MODE": "disabled"}
    done = subprocess.run(
        [*torchrun, f"{script}.py"], cwd=place, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if target == "accelerate":
        assert f"processes {ranks}" in done.stdout
    return [float(text) for text in re.findall(r"loss ([\d.]+)", done.stdout)]


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("target", "offload"),
    [("hf-trainer", "none"), *itertools.product(("accelerate", "fsdp2"), ("none", "cpu"))],
)
def test_the_script_trains(target: str, offload: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    engine = ENGINE | {"offload_optimizer": offload} | ({"zero_stage": 0} if target == "hf-trainer" else {})
    assert losses(tmp_path, target, engine, sys.executable)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(DEEPSPEED is None, reason="DeepSpeed is not installed, and DEEPSPEED_PYTHON names none")
@pytest.mark.parametrize("offload", ["none", "cpu"])
@pytest.mark.parametrize("target", ["deepspeed", "hf-trainer"])
def test_the_script_trains_with_deepspeed(target: str, offload: str, tmp_path: Path) -> None:
    assert losses(tmp_path, target, ENGINE | {"offload_optimizer": offload}, str(DEEPSPEED))
