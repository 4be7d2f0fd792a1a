"""What looks like a secret is masked in all that a run leaves, and nothing else is."""

import html
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.making import make_record
from zbench import masking
from zbench.masking import MASK, masked
from zbench.record import lines
from zbench.record.record import Failure
from zbench.record.secrets import mask_files, masked_record

SECRET = "aB3dE5gH7jK9"


@pytest.mark.parametrize(
    "text",
    [
        "train.py --token {}", "train.py --hf-token={} --steps 3", "HF_TOKEN={} python train.py",
        "WANDB_API_KEY='{}' x", '{{"api_key": "{}"}}', "x --password {}", "postgresql://me:{}@host/db",
        "env A=1 DB_PASSWD={} x", "client_secret: {}",
    ],
)  # fmt: skip
def test_a_value_named_like_a_secret_is_masked(text: str) -> None:
    assert masked(text.format(SECRET)) == text.format(MASK)
    assert masked(masked(text.format(SECRET))) == text.format(MASK)


@pytest.mark.parametrize(
    "value",
    [
        "--tokenizer gpt2-medium-x", "--max-tokens 10240000", "time per token: 0.00123456",
        "pad_token=<|endoftext|>", {"eos_token": "<|endoftext|>"}, {"tokens_per_s": 3.5}, "--token {lr}",
        "Tokenizing token after token", {"optimizer": {"lr": 0.1}}, None, ["x", 1], "my.pad_token=<|text|>",
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


@pytest.mark.parametrize("separator", ["\n", "\r", " "])
def test_a_log_above_64_mib_is_masked_as_a_stream(tmp_path: Path, separator: str) -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "abcdefgh\n" * 400 + "-----END RSA PRIVATE KEY-----"
    masking.learn({"api_key": SECRET, "password": "two\nlines of text"})
    secrets = [f"said {SECRET}", "said two\nlines of text", key, f"--token {SECRET[::-1]}"]
    filler = "0123456789" * 10 + separator
    log = tmp_path / "rank0.log"
    with log.open("w") as file:
        for number in range(72):  # a secret at every place relative to the ends of pieces
            file.write(filler * 10_380 + secrets[number % 4] + separator)
    assert log.stat().st_size > 72 << 20
    mask_files(tmp_path)
    text = log.read_bytes().decode()
    for secret in (SECRET, "lines of text", "abcdefgh", SECRET[::-1]):
        assert secret not in text
    assert text.count(filler) == 72 * 10_380
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.log"]


@pytest.mark.parametrize(
    "sweep",
    [
        {"workload": {"options": {"api_key": "{}"}}}, {"axes": {"options.api_key": ["{}"]}},
        {"workload": {"options": {"store": "https://user:{}@host/path"}}},
        {"workload": {"command": "train.py --token {} --steps 3"}}, "workload.options.api_key={}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("secret", [SECRET, "a\"b\\c'd é&<e", "two\nlines of it"])
def test_a_secret_of_a_sweep_is_masked_wherever_it_stands(sweep: Any, secret: str) -> None:
    text = json.dumps(sweep)
    if "{}-" in text or (("https" in text or "train" in text or text[0] == '"') and secret != SECRET):
        pytest.skip("no such address or command line")
    masking.learn(json.loads(text.replace("{}", json.dumps(secret)[1:-1])))
    for spelled in (secret, json.dumps(secret), repr(secret), quote(secret, safe=""), html.escape(secret)):
        assert masked(f"it said {spelled}, and more") in (
            f"it said {MASK}, and more", f'it said "{MASK}", and more', f"it said '{MASK}', and more",
        )  # fmt: skip


def test_a_password_of_digits_is_masked_but_no_document_breaks() -> None:
    assert masked({"password": 12345678, "steps": 12345678}) == {"password": MASK, "steps": 12345678}
    masking.learn({"password": 12345678})
    assert masked("it said 12345678") == f"it said {MASK}"
    assert masking.without_known_values('{"bytes": 12345678}', is_document=True) == '{"bytes": 12345678}'


LONG = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9" * 2
HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "form",
    [
        "hf_" + LONG, "ghp_" + LONG, "gho_" + LONG, "ghs_" + LONG, "github_pat_" + LONG, "glpat-" + LONG,
        "sk-" + LONG, "sk-ant-api03-" + LONG, "sk_live_" + LONG, "rk_test_" + LONG, "whsec_" + LONG,
        "xoxb-123456789012-" + LONG, "xapp-1-" + LONG, "AKIA" + "ABCD2345" * 2,
        "ASIA" + "ABCD2345" * 2, "AIza" + LONG, "ya29." + LONG, "GOCSPX-" + LONG, "npm_" + LONG,
        "pypi-" + LONG, "dckr_pat_" + LONG, "dop_v1_" + HEX, "shpat_" + LONG, f"SG.{LONG}.{LONG}",
        "key-" + HEX[:32], "sq0atp-" + LONG, "lin_api_" + LONG, "secret_" + LONG, "ntn_" + LONG,
        "hvs." + LONG, "r8_" + LONG,
        "gsk_" + LONG, "nvapi-" + LONG, "PMAK-" + LONG, "dapi" + HEX[:32], "rubygems_" + HEX, "figd_" + LONG,
        "glsa_" + LONG, f"eyJ{LONG}.eyJ{LONG}.{LONG}",
    ],
)  # fmt: skip
def test_keys_of_known_forms_are_masked_wherever_they_stand(form: str) -> None:
    assert masked(f"login with {form}, then train") == "login with ***, then train"
    assert masked(f"https://host/path?x={form}") == "https://host/path?x=***"


@pytest.mark.parametrize(
    "name",
    [
        "PGPASSWORD", "accessToken", "dbPassword", "clientSecret", "MYSQL_PWD", "hftoken",
        "AWS_SECRET_ACCESS_KEY", "apikey", "azureAccountKey", "x-api-key", "engine.auth_token", "private-key",
        "PassPhrase", "credentials",
    ],
)  # fmt: skip
def test_names_of_secrets_are_known_in_every_spelling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert masked({name: SECRET}) == {name: MASK}
    assert masked(f'{{"{name}": "{SECRET}"}}') == f'{{"{name}": "***"}}'
    assert masked(f"--{name} {SECRET} --steps 3") == f"--{name} *** --steps 3"
    monkeypatch.setenv(name.replace("-", "_").replace(".", "_"), SECRET)
    assert masked(f"the program said {SECRET}") == "the program said ***"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer ***"),
        (f"Authorization: Basic {SECRET}==", "Authorization: Basic ***"),
        ('log "{\\"token\\": \\"' + SECRET + '\\"}"', 'log "{\\"token\\": \\"***\\"}"'),
        ("password: 12345678", "password: ***"),
        ('password="two words" x', 'password="***" x'),
        ('password="two words"', 'password="***"'),
        (f'token="{SECRET} torn\nand "more"', 'token="*** torn\nand "more"'),
        ("redis://:pass@host", "redis://:***@host"),
        ("PWD=/home/me/project", "PWD=/home/me/project"),
        ("--token $HF_TOKEN", "--token $HF_TOKEN"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END", "-----BEGIN RSA PRIVATE KEY-----***-----END"),
    ],
)
def test_a_value_ends_where_its_notation_says(text: str, clean: str) -> None:
    assert masked(text) == clean
    assert masked(clean) == clean


@pytest.mark.timeout(100)  # in quadratic time each of these takes ten minutes or more
@pytest.mark.parametrize(
    ("unit", "clean"),
    [
        ('"token":"abcdefgh",', '"token":"***",'), ('"token":"ab",', '"token":"ab",'),
        ("a", "a"), ("x.y-", "x.y-"), ("--token ", "--token "), ("://a:", "://a:"), (" ", " "),
    ],
)  # fmt: skip
def test_a_line_of_a_megabyte_is_masked(unit: str, clean: str) -> None:
    count = 1_000_000 // len(unit)
    assert masked(unit * count) == clean * count
