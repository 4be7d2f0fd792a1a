"""What looks like a secret is masked in all that a run leaves, and nothing else is."""

from pathlib import Path
from typing import Any

import pytest

from tests.making import make_record
from zbench.record import lines
from zbench.record.record import Failure
from zbench.record.secrets import MASK, mask_files, masked, masked_record

SECRET = "aB3dE5gH7jK9"


@pytest.mark.parametrize(
    "text",
    [
        "train.py --token {}", "train.py --hf-token={} --steps 3", "HF_TOKEN={} python train.py",
        "WANDB_API_KEY='{}' x", '{{"api_key": "{}"}}', "x --password {}", "postgresql://me:{}@host/db",
        "env A=1 DB_PASSWD={} x", "client_secret: {}",
    ],
)  # fmt: skip
def test_the_value_of_what_is_named_like_a_secret_is_masked(text: str) -> None:
    assert masked(text.format(SECRET)) == text.format(MASK)
    assert masked(masked(text.format(SECRET))) == text.format(MASK)


@pytest.mark.parametrize(
    "value",
    [
        "--tokenizer gpt2-medium-x", "--max-tokens 10240000", "time per token: 0.00123456",
        "pad_token=<|endoftext|>", {"eos_token": "<|endoftext|>"}, {"tokens_per_s": 3.5}, "--token {lr}",
        "Tokenizing token after token", {"optimizer": {"lr": 0.1}}, None, ["x", 1],
    ],
)  # fmt: skip
def test_what_is_no_secret_is_left(value: Any) -> None:
    assert masked(value) == value


def test_known_forms_keys_and_what_variables_hold_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", SECRET)
    assert masked(["said " + SECRET, "hf_" + "x1" * 12]) == ["said ***", "***"]
    assert masked({"options": {"access_key": "some long word"}}) == {"options": {"access_key": MASK}}


def test_records_and_logs_hold_no_secret(tmp_path: Path) -> None:
    text = f"train --token {SECRET}"
    record = make_record(
        config={"workload": {"command": text}}, error=Failure("crashed", text), warnings=[text]
    )
    assert SECRET not in lines.encode(record).decode()
    assert lines.decode_line(lines.encode(record)) == masked_record(record)
    (tmp_path / "rank0.log").write_bytes(b"\xff" + text.encode() + b"\r\nmore")
    (tmp_path / "rank1.log").write_text("nothing")
    mask_files(tmp_path)
    assert (tmp_path / "rank0.log").read_bytes() == b"\xfftrain --token ***\r\nmore"
    assert (tmp_path / "rank1.log").read_text() == "nothing"
