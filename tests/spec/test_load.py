import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.errors import SpecError
from zbench.spec.document import parse_scalar
from zbench.spec.load import load_sweep, sweep_from_mapping
from zbench.spec.sweep import SweepSpec
from zbench.spec.trial import config_id

Loaded = Callable[..., SweepSpec]
TEXT = """
run: {world_size: 2, timeout: 2min}
engine: {optimizer: {lr: 1e-3}}
axes:
  zero_stage: [0, 1]
  optimizer.eps: [1e-8, 1e-6]
"""


def test_the_three_formats_say_the_same(loaded: Loaded) -> None:
    axes = {"zero_stage": [0, 1], "optimizer.eps": [1e-8, 1e-6]}
    data = {"run": {"world_size": 2, "timeout": "2min"}, "engine": {"optimizer": {"lr": 0.001}}, "axes": axes}
    as_json = json.dumps(data, indent="\t")
    as_toml = """
[run]
world_size = 2
timeout = "2min"
[engine.optimizer]
lr = 1e-3
[axes]
zero_stage = [0, 1]
"optimizer.eps" = [1e-8, 1e-6]
"""
    sweeps = [loaded(TEXT), loaded(as_json, ending="json"), loaded(as_toml, ending="toml")]
    assert sweeps[0] == sweeps[1] == sweeps[2]
    assert sweeps[0].run.timeout == 120
    assert sweeps[0].axes == {"zero_stage": [0, 1], "eps": [1e-8, 1e-6]}
    assert sweeps[0].name == "sweep"


@pytest.mark.parametrize(("stem", "name"), [("my run (2)", "my-run-2"), ("---", "sweep")])
def test_a_sweep_is_named_after_its_file(stem: str, name: str, tmp_path: Path) -> None:
    (tmp_path / f"{stem}.yaml").write_text("{}")
    assert load_sweep(tmp_path / f"{stem}.yaml", (), {}).name == name


def test_command_line_beats_environment_beats_file_beats_defaults(loaded: Loaded) -> None:
    text = "run: {steps: 1, seed: 1, world_size: 1}\n"
    sweep = loaded(text, "steps=3", ZBENCH_STEPS="2", ZBENCH_RUN__SEED="2", ZBENCH_OUTPUT_DIR="elsewhere")
    assert (sweep.run.steps, sweep.run.seed, sweep.run.world_size, sweep.run.warmup_steps) == (3, 2, 1, 2)


@pytest.mark.parametrize("setting", ["zero_stage=1", "axes.engine.zero_stage=[1]"])
def test_setting_a_key_that_is_an_axis_pins_the_axis(setting: str, loaded: Loaded) -> None:
    assert loaded(TEXT, setting).axes["zero_stage"] == [1]


def test_settings_reach_every_section(loaded: Loaded) -> None:
    texts = ["name=other", "search.method=random", "engine=mine:build", "verify.mode=off"]
    texts += ["objective.minimize=median_step_s", "objective.maximize=[]", "optimizer.betas=[0.5, 0.9]"]
    texts += ["axes.reduce_bucket_size=[1e6, 5M]", "exclude=[{zero_stage: 1}]"]
    sweep = loaded(TEXT, *texts)
    assert (sweep.name, sweep.search.method, sweep.verify.mode) == ("other", "random", "off")
    assert (sweep.engine.engine, sweep.engine.optimizer.betas) == ("mine:build", (0.5, 0.9))
    assert sweep.objective.minimize == ["median_step_s"]
    assert sweep.axes["reduce_bucket_size"] == [10**6, 5 * 10**6]
    assert sweep.exclude == [{"zero_stage": 1}]


def test_yaml_is_version_1_2(loaded: Loaded) -> None:
    sweep = loaded("engine: {compile: off, offload_optimizer: none, optimizer: {lr: 1e-4}}\n")
    assert (sweep.engine.compile, sweep.engine.optimizer.lr) == ("off", 1e-4)
    assert parse_scalar("010", "here") == 10
    assert parse_scalar("2020-01-01", "here") == "2020-01-01"


floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | floats | st.text(max_size=8)
keys = st.text("xyz", min_size=1, max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
SET_KEYS = ["steps", "axes.lr", "exclude", "axes", "run", "engine", "objective", "optimizer.betas"]


@settings(max_examples=50)
@given(st.sampled_from(SET_KEYS), values)
def test_any_setting_makes_a_sweep_or_a_clear_error(key: str, value: object) -> None:
    with suppress(SpecError):
        sweep = sweep_from_mapping({"axes": {"zero_stage": [0, 1]}}, [f"{key}={json.dumps(value)}"], {})
        assert isinstance(sweep, SweepSpec)


def test_half_a_character_is_no_text(refusal: Callable[..., str]) -> None:
    """No file can be written with it, so neither a value nor a key of a user's own may hold it."""
    for text in ('{"name": "a\\ud800"}', '{"workload": {"options": {"a\\ud800": 1}}}'):
        assert "is not valid text; correct it" in refusal(text, ending="json")


@pytest.mark.parametrize(
    ("key", "taken", "refused", "limit"),
    [
        ("sequence_length", "1", "0", " of at least 1"),
        ("param_persistence_threshold", "0", "-1", " of at least 0"),
        ("separate", "99%", "100%", " of less than 1"),
        ("machine.link_attained", "1", "1.5", " of at most 1"),
        ("offload_ratio", "1", "auto", ""),
    ],
)
def test_a_value_beyond_its_limit_is_refused_with_it(key: str, taken: str, refused: str, limit: str) -> None:
    machine = {"machine": {"flops": 1, "memory_bandwidth": 1}}
    assert sweep_from_mapping(machine, [f"{key}={taken}"], {}).name == "sweep"
    with pytest.raises(SpecError, match=f"expected a number{limit}, got "):
        sweep_from_mapping(machine, [f"{key}={refused}"], {})


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
@pytest.mark.parametrize("key", ["lr", "axes.options.x", "ds_config", "exclude"])
def test_no_key_takes_a_number_that_no_record_can_hold(key: str, value: str) -> None:
    """A record is JSON: there an infinite option would become null, and be another trial."""
    text = {"axes.options.x": f"[1, {value}]", "exclude": f"[{{lr: {value}}}]"}.get(key, value)
    with pytest.raises(SpecError, match=r"expected a finite number, got (-?inf|nan)"):
        sweep_from_mapping({"workload": {"model": "mine:build"}}, [f"{key}={text}"], {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        config_id({"workload": {"options": {"x": float("nan")}}})


BASE = """\
name: base
workload: {model: mlp, micro_batch_size: 4}
engine:
  zero_stage: 1
  optimizer: {name: adamw, lr: 0.01}
axes: {offload_optimizer: [none, cpu], overlap_comm: [true, false]}
"""


def extending(tmp_path: Path, text: str, base: str = BASE) -> SweepSpec:
    (tmp_path / "shared").mkdir(exist_ok=True)
    (tmp_path / "shared" / "base.yaml").write_text(base)
    (tmp_path / "own.yaml").write_text(f"extends: shared/base.yaml\n{text}")
    return load_sweep(tmp_path / "own.yaml", (), {})


def test_a_files_own_keys_replace_those_that_it_extends(tmp_path: Path) -> None:
    sweep = extending(tmp_path, "engine: {optimizer: {lr: 0.5}}\naxes: {overlap_comm: [true]}\n")
    assert (sweep.name, sweep.workload.model, sweep.engine.zero_stage) == ("own", "mlp", 1)
    assert (sweep.engine.optimizer.name, sweep.engine.optimizer.lr) == ("adamw", 0.5)
    assert sweep.axes == {"offload_optimizer": ["none", "cpu"], "overlap_comm": [True]}
    (tmp_path / "third.yaml").write_text("extends: own.yaml\nworkload: {micro_batch_size: 8}\n")
    third = load_sweep(tmp_path / "third.yaml", (), {})
    assert (third.workload.micro_batch_size, third.engine.optimizer.lr) == (8, 0.5)


@pytest.mark.parametrize(
    ("text", "base", "place", "says"),
    [
        ("engine: {zero_stage: 9}\n", BASE, "own.yaml:2: engine.zero_stage", ""),
        ("", BASE.replace("stage: 1", "stage: 9"), "shared/base.yaml:4: engine.zero_stage", ""),
        ("", "a: [", "shared/base.yaml:1", "not YAML"),
        ("", "extends: ../own.yaml\n", "shared/base.yaml:1: extends",
         "expected the path of a sweep file that does not extend this one, got '../own.yaml'"),
        ("", "extends: gone.yaml\n", "shared/base.yaml:1: extends", "got 'gone.yaml'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_of_the_file_that_has_it(
    tmp_path: Path, text: str, base: str, place: str, says: str
) -> None:
    with pytest.raises(SpecError) as refused:
        extending(tmp_path, text, base)
    assert str(refused.value).startswith(f"{tmp_path / place}")
    assert says in str(refused.value)


SECRET = "machine example.org login x password SECRETPASS"


@pytest.mark.parametrize(
    "content",
    [
        SECRET, "root:$6$SECRETPASS:19000:0:7:::\n", "login: SECRETPASS\n", "SECRETPASS: x\n",
        "a: *SECRETPASS\n", "a: 'SECRETPASS\n", "SECRETPASS: 1\nSECRETPASS: 2\n", "a: !SECRETPASS x\n",
        "machine: {SECRETPASS: 1}\nextends: gone\n", "machine: SECRETPASS\nlogin: x\n", "[SECRETPASS]\n",
        "SECRETPASS", "{[SECRETPASS]: 1}", "a: {SECRETPASS: 1, SECRETPASS: 2}", "workload: !!int SECRETPASS",
        '{"SECRETPASS": 1, "SECRETPASS": 2}', '{"login": "SECRETPASS"}', "SECRETPASS = 1\nSECRETPASS = 2\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".json", ".toml"])
@pytest.mark.parametrize(
    "text", ["extends: theirs\n", "machine: theirs\n", "workload: {model: 'hf:theirs'}\n"]
)
def test_messages_show_nothing_of_a_file_that_a_sweep_names(
    tmp_path: Path, text: str, suffix: str, content: str
) -> None:
    (tmp_path / f"theirs{suffix}").write_text(content)
    (tmp_path / "own.yaml").write_text(text.replace("theirs", f"theirs{suffix}"))
    with pytest.raises(SpecError) as refused:
        load_sweep(tmp_path / "own.yaml", (), {})
    assert not set(SECRET.split()) - {"machine", "x"} & set(str(refused.value).split())
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("key", ["extends: pipe", "machine: pipe", "workload: {data: {text: pipe}}"])
def test_nothing_waits_for_a_pipe_that_a_sweep_names(tmp_path: Path, key: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "own.yaml").write_text(f"{key}\n")
    with pytest.raises(SpecError):
        load_sweep(tmp_path / "own.yaml", (), {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "name: 0x{}"),
        ("a.json", '{{"name": {}}}'),
    ],
)
def test_a_number_of_too_many_digits_is_refused_in_words(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text.format("1" * 5000))
    with pytest.raises(SpecError, match="too many digits"):
        load_sweep(tmp_path / name, (), {})
    with pytest.raises(SpecError, match="too many digits"):
        sweep_from_mapping({"axes": {"zero_stage": [0]}}, [f"name=0x{'f' * 5000}"], {})
