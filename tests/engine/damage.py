"""Damaged copies of safetensors files, drawn: cut, flipped, with other headers or tensors."""

import json
from pathlib import Path

import torch
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=6)
JSON = st.recursive(
    PLAIN | st.sampled_from(["F32", "I64", -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
WAYS = ("cut", "flip", "length", "header", "facts", "retype", "reshape", "exchange", "rename", "noise")


def damage(file: Path, data: st.DataObject) -> str:
    """Damage a file in one drawn way and say which."""
    way = data.draw(st.sampled_from(WAYS), label="way")
    content = file.read_bytes()
    if way == "cut":
        file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    elif way == "flip":
        place = data.draw(st.integers(0, len(content) - 1))
        flipped = content[place] ^ (1 << data.draw(st.integers(0, 7)))
        file.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
    elif way == "length":
        length = data.draw(st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 100_000_001, 0]))
        file.write_bytes(length.to_bytes(8, "little") + content[8:])
    elif way == "noise":
        file.write_bytes(data.draw(st.binary(max_size=64)))
    elif way == "header":
        _change_header(file, content, data)
    else:
        _change_tensors(file, way, data)
    return way


def _change_header(file: Path, content: bytes, data: st.DataObject) -> None:
    """Replace one value of the header, and write it with its true length."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    key = data.draw(st.sampled_from(sorted(header)))
    inner = header[key]
    if data.draw(st.booleans()):
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(JSON)
    else:
        header[key] = data.draw(JSON)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def _change_tensors(file: Path, way: str, data: st.DataObject) -> None:
    """Write a sound file whose tensors or facts are not what they should be."""
    tensors = load_file(file)
    with safe_open(file, framework="pt") as opened:
        facts = dict(opened.metadata() or {})
    names = sorted(tensors)
    one, other = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
    if way == "facts" and facts:
        key = data.draw(st.sampled_from(sorted(facts)))
        facts[key] = data.draw(st.text(max_size=8) | JSON.map(json.dumps))
    elif way == "retype":
        kinds = [torch.int64, torch.float64, torch.bool, torch.float16, torch.int32]
        tensors[one] = tensors[one].to(data.draw(st.sampled_from(kinds)))
    elif way == "reshape":
        shapes = st.lists(st.integers(0, 4), max_size=4)
        tensors[one] = torch.zeros(data.draw(shapes), dtype=tensors[one].dtype)
    elif way == "exchange":
        tensors[one], tensors[other] = tensors[other].clone(), tensors[one].clone()
    else:
        name = data.draw(st.text(max_size=12).filter(lambda text: text != "__metadata__"))
        tensors[name] = tensors.pop(one)
    save_file(tensors, file, facts)
