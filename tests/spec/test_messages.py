"""Every mistake in a sweep file, a setting or a variable gets one message with its place and the remedy."""
# ruff: noqa: E501 - each message stands here as the user reads it, in one line

from collections.abc import Callable

import pytest

Refusal = Callable[..., str]
YAML = {
    "unknown key": (
        "run:\n  world_siz: 2\n",
        "sweep.yaml:2: run.world_siz: unknown key (did you mean 'world_size'?); rename or remove it",
    ),
    "key of another section": (
        "run: {steps: 2}\nzero_stage: 1\n",
        "sweep.yaml:2: zero_stage: unknown key here; move it to `engine.zero_stage`",
    ),
    "wrong type": (
        "run:\n  steps: many\n",
        "sweep.yaml:2: run.steps: expected a whole number, got 'many'; for example `steps: 8`",
    ),
    "misspelt choice": (
        "engine:\n  dtype: bfloat\n",
        "sweep.yaml:2: engine.dtype: expected float32, bfloat16 or float16, got 'bfloat'; did you mean bfloat16?",
    ),
    "duplicate axis values": (
        "axes:\n  reduce_bucket_size: [5e6,\n    2M,\n    5_000_000]\n",
        "sweep.yaml:4: axes.reduce_bucket_size[2]: 5000000 is on this axis twice; remove one",
    ),
    "unknown axis": (
        "axes:\n  zero_stag: [1]\n",
        "sweep.yaml:2: axes.zero_stag: unknown key 'zero_stag' (did you mean 'zero_stage'?);"
        " name a key of workload, run or engine, or a flag of workload.parameters",
    ),
    "axis that shapes no result": (
        "axes: {repeats: [1, 2]}\n",
        "sweep.yaml:1: axes.repeats: repeats affects no result and cannot be an axis; set it under `run:`",
    ),
    "combination that cannot exist": (
        "engine:\n  zero_stage: 1\n  offload_param: cpu\n",
        "sweep.yaml:3: engine.offload_param: offload_param needs sharded parameters;"
        " set zero_stage: 3 or offload_param: none",
    ),
    "no point can exist": (
        "engine: {offload_optimizer: cpu}\naxes:\n  lr: [1, 2]\n",
        "sweep.yaml:1: engine.offload_optimizer: none of the 2 points can exist; the first: offload_optimizer"
        " needs a sharded optimizer state; set zero_stage: 1, 2 or 3, or offload_optimizer: none",
    ),
    "billion points": (
        "axes:\n" + "".join(f"  {key}: [{', '.join(f'0.{i:04}' for i in range(1, 1001))}]\n" for key in
                            ("lr", "eps", "weight_decay")),
        "sweep.yaml:1: axes: the product has 1,000,000,000 points, more than 100,000;"
        " shorten an axis or set search.method",
    ),
    "empty file": ("# nothing\n", "sweep.yaml: this file is empty; write `axes:` first, or use `zbench init`"),
    "repeated key": (
        "run:\n  steps: 1\n  seed: 2\n  steps: 3\n",
        "sweep.yaml:4: run.steps: this key is given twice (first on line 2); remove one of them",
    ),
    "broken syntax": ("run: [1\n", "sweep.yaml:2: not YAML: expected ',' or ']', but got '<stream end>'; correct the syntax"),
    "tag that would run code": (
        "name: !!python/object/apply:os.system [ls]\n",
        "sweep.yaml:1: name: the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed; write a plain value",
    ),
    "name that leaves the directory": (
        "name: ../../etc\n",
        "sweep.yaml:1: name: expected letters, digits, '.', '_' and '-' (at most 100, not beginning with '.' or"
        " '-'), got '../../etc'; for example `name: sweep`",
    ),
    "unknown metric": (
        "objective:\n  maximize: tokens\n",
        "sweep.yaml:2: objective.maximize: unknown metric 'tokens' (did you mean 'tokens_per_s'?); metrics are"
        " tokens_per_s, samples_per_s, steps_per_s, tflops, mean_step_s, median_step_s,"
        " p95_step_s, worst_step_s, of_compute, peak_device_bytes,"
        " peak_host_bytes, peak_rss_bytes, error_ratio, max_abs_diff, verdict",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", YAML)
def test_yaml(mistake: str, refusal: Refusal) -> None:
    text, message = YAML[mistake]
    assert refusal(text) == message


def test_several_mistakes_are_all_listed(refusal: Refusal) -> None:
    message = refusal("run:\n  steps: 0\n  sead: 1\nengine: {dtype: half}\n")
    places = [line.split(": ")[:2] for line in message.splitlines()]
    assert sorted(places) == [
        ["sweep.yaml:2", "run.steps"],
        ["sweep.yaml:3", "run.sead"],
        ["sweep.yaml:4", "engine.dtype"],
    ]


OTHER_FORMATS = [
    ("json", '{"run":\n\t{"steps": "x"}}', " run.steps: expected a whole number, got 'x'; for example `steps: 8`"),
    ("json", '{"name": "x",\n run: {}}', "2: not JSON, which has no comments and no trailing commas: Expecting property name enclosed in double quotes; correct the syntax"),
    ("toml", "[engine.optimizer]\n\nlrr = 1\n", " engine.optimizer.lrr: unknown key (did you mean 'lr'?); rename or remove it"),
    ("toml", "[[exclude]]\nlr = 1\n[[exclude]]\nlrr = 1\n",
     " exclude[1].lrr: unknown key 'lrr' (did you mean 'lr'?); name a key of workload, run or engine,"
     " or a flag of workload.parameters"),
    ("toml", "[run]\nsteps = \n", " not TOML: Invalid value (at line 2, column 9); correct the syntax"),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "text", "message"), OTHER_FORMATS)
def test_json_and_toml(ending: str, text: str, message: str, refusal: Refusal) -> None:
    assert refusal(text, ending=ending) == f"sweep.{ending}:{message}"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps", "--set steps: expected KEY=VALUE, such as --set zero_stage=1"),
        ("stepz=3", "--set stepz=3: stepz: unknown key 'stepz' (did you mean 'steps'?)"),
        ("steps=x", "--set steps=x: run.steps: expected a whole number, got 'x'; for example `steps: 8`"),
        (
            "steps=[1",
            "--set steps=[1: not YAML: expected ',' or ']', but got '<stream end>'; correct the syntax",
        ),
        (
            "search.trial=3",
            "--set search.trial=3: search.trial: unknown key 'trial' (did you mean 'trials'?) in search",
        ),
        (
            "exclude.zero_stage=1",
            "--set exclude.zero_stage=1: exclude.zero_stage: exclude has no keys below it;"
            " write exclude=VALUE",
        ),
    ],
)
def test_settings_name_themselves(setting: str, message: str, refusal: Refusal) -> None:
    assert refusal("axes: {zero_stage: [0, 1]}\n", setting) == message


def test_environment_variables_name_themselves(refusal: Refusal) -> None:
    text = "axes: {zero_stage: [0, 1]}\n"
    assert refusal(text, ZBENCH_STEPS="x") == (
        "ZBENCH_STEPS: run.steps: expected a whole number, got 'x'; for example `steps: 8`"
    )
    assert refusal(text, ZBENCH_STEPZ="1") == (
        "ZBENCH_STEPZ: unknown key 'stepz' (did you mean 'steps'?); rename or unset this variable"
    )
