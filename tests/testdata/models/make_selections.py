#!/usr/bin/env python3
"""Records which keys transformers selects in the fixtures whose layers have an indexer.

    .venv/bin/python tests/testdata/models/make_selections.py build/ci/tests/testdata/models/NAME [...]

Writes NAME/selections.json beside this file. The queries are the tokens of a prompt and all recorded greedy tokens but
the last. A query that sees at most index_topk keys selects them all and is left out. Of each other query four
hexadecimal digits are recorded: FNV-1a of the selected keys in ascending order, two bytes each (little-endian), with
both halves of its 32 bits combined by exclusive or. Needs the packages of requirements.txt.
"""

import json
import sys
from pathlib import Path

import torch
from fixture_compute import load_model
from make_fixture import read_json

HERE = Path(__file__).resolve().parent


def digest(keys: list[int]) -> str:
    value = 0x811C9DC5
    for key in sorted(keys):
        for byte in key.to_bytes(2, "little"):
            value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return f"{(value >> 16) ^ (value & 0xFFFF):04x}"


def selections(folder: Path) -> dict:
    """By prompt and layer, the digests of the queries in order."""
    model = load_model(folder)
    topk = model.config.index_topk
    selected = {}
    for name, module in model.named_modules():
        if name.endswith(".indexer"):
            layer = name.split(".")[2]
            module.register_forward_hook(lambda _, __, keys, layer=layer: selected.update({layer: keys[0].tolist()}))
    found = {}
    for prompt in read_json(folder / "reference.json")["prompts"]:
        tokens = prompt["token_ids"] + prompt["greedy_token_ids"][:-1]
        with torch.no_grad():
            model(torch.tensor([tokens]), use_cache=False)
        found[prompt["id"]] = {
            layer: "".join(digest(keys) for keys in rows[topk:]) for layer, rows in sorted(selected.items())
        }
    return found


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        text = json.dumps(selections(folder), indent=1)
        (HERE / folder.name / "selections.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
