#!/usr/bin/env python3
"""Makes the model folders beside it that no one publishes: random weights and what transformers computes for them.

    python3 -m venv .venv && .venv/bin/pip install -r tests/testdata/models/requirements.txt
    .venv/bin/python tests/testdata/models/make_fixture.py make OUT [NAME ...]
    .venv/bin/python tests/testdata/models/make_fixture.py check FOLDER ...

make   writes OUT/NAME for each recipe of fixture_recipes.py, or for those named. Tokenizer and prompts are those of an
       older fixture. ../README.md says how the weights of a new one are left out.
check  computes everything that is recorded in a folder of build/ci/tests/testdata/models anew, from its config.json,
       its weights and its prompts, and says how far it is from the record; exits 1 if it is another result. Of
       folders that came from elsewhere (SWITCHES in fixture_recipes.py) this proves the method, of those made here
       that they are what `make` makes.

README.md beside this file says what is in a folder. All arithmetic is float32 on one thread of a CPU; another machine
may round the last digits otherwise, and then, rarely, accept another seed, since a seed is rejected when a decision of
the model is too close to call.
"""

import argparse
import json
import lzma
import os
import platform
import re
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

sys.dont_write_bytecode = True
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import safetensors
import tokenizers
import torch
import transformers
from fixture_compute import (
    GREEDY_TOKENS,
    Router,
    accuracy,
    distance,
    find_seed,
    init_weights,
    load_model,
    logits_of,
    new_model,
    record_prompts,
    rounded,
)
from fixture_recipes import BOS, EOS, PAD, RECIPES, SWITCHES, Draft, Recipe
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
# What `check` allows: machines round otherwise, and accuracy figures are made of such roundings.
MAX_RELATIVE = 3e-6
MAX_LOGPROB = 2e-4
MAX_FIGURE = 0.05


def write_json(path: Path, value: dict) -> None:
    """Lists of numbers stay on one line."""
    text = json.dumps(value, indent=1 if path.name == "reference.json" else 2, ensure_ascii=False)
    if path.name == "reference.json":
        text = re.sub(r"\[\n\s*([-0-9.eE+,\s]*?)\n\s*\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    path.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> dict:
    """The records of this folder are packed, those of a folder of the build are not."""
    if not path.exists():
        return json.loads(lzma.decompress(path.with_name(path.name + ".xz").read_bytes()))
    return json.loads(path.read_text(encoding="utf-8"))


def write_model(folder: Path, config: dict, tensors: dict) -> None:
    write_json(folder / "config.json", config)
    save_file(dict(sorted(tensors.items())), folder / "model.safetensors", metadata={"format": "pt"})


def published_tensors(model) -> dict:
    """By their published names and in the published layout, rounded to the stored type."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(f"{folder}/model.safetensors")
    return {
        name: (tensor if "e_score_correction_bias" in name else tensor.bfloat16()).contiguous()
        for name, tensor in tensors.items()
    }


def feature_checks(config: dict, tensors: dict, switches: dict, sequences: list, full: list) -> list[dict]:
    """What each switch changes of the logits of all tokens of all sequences."""
    checks = []
    for feature, switch in switches.items():
        draft = Draft(config, tensors)
        switch(draft)
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), draft.config, draft.tensors)
            changed = load_model(folder)
        for change in draft.patches:
            change(changed)
        relative, largest = distance([logits_of(changed, sequence) for sequence in sequences], full)
        checks.append(
            {"feature": feature, "max_abs_logit_change": rounded(largest, 4), "relative_change": rounded(relative, 4)}
        )
    return checks


def computed_with() -> dict:
    return {
        "python": platform.python_version(), "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
        "safetensors": safetensors.__version__, "numpy": np.__version__, "device": "cpu, one thread",
        "weights": "as stored (bfloat16) and converted to float32",
        "compute": "float32, eager attention, eager experts, no key/value cache (the cached tokens are the same)",
        "decoding": f"argmax, {GREEDY_TOKENS} tokens, end-of-sequence ids do not stop it",
    }  # fmt: skip


def records(folder: Path, switches: dict, prompts: list[dict]) -> tuple[dict, dict]:
    """What reference.json says of a model on disk, and the tensors of reference.safetensors."""
    config = read_json(folder / "config.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = load_model(folder)
    router = Router(model)
    rows, arrays, sequences, full = record_prompts(model, tokenizer, prompts, config["eos_token_id"])
    router.close()
    tensors = load_file(folder / "model.safetensors")
    return {
        "vocab_size": config["vocab_size"],
        "tokenizer_vocab_size": tokenizer.get_vocab_size(),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "logits_std": rounded(torch.cat(full).std().item(), 4),
        "min_margin": min(row["min_margin"] for row in rows),
        "min_routing_margin": router.margin(),
        "computed_with": computed_with(),
        "accuracy": accuracy(folder, model, prompts, sequences, full),
        "feature_checks": feature_checks(config, tensors, switches, sequences, full),
        "prompts": rows,
    }, arrays


def make(out: Path, name: str, recipe: Recipe) -> None:
    folder, source = out / name, HERE / recipe.source
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / file, folder / file)
    generation = {"_from_model_config": True, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    version = {"transformers_version": recipe.config["transformers_version"]}
    write_json(folder / "generation_config.json", {**generation, **version})

    prompts = read_json(source / "reference.json")["prompts"]
    vocabulary = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    model = new_model(recipe.config)
    first = zlib.crc32(name.encode()) % 1_000_000
    seed = find_seed(model, recipe, vocabulary, prompts, first)
    init_weights(model, recipe.config, recipe.gains, vocabulary, seed)
    write_model(folder, recipe.config, published_tensors(model))
    probe = prompts[3]["token_ids"]
    if not torch.equal(logits_of(model, probe), logits_of(load_model(folder), probe)):
        raise RuntimeError(f"{name}: the weights on disk are not those that were drawn")

    record, arrays = records(folder, recipe.switches, prompts)
    head = {"format_version": 1, "name": name, "family": recipe.family, "features": recipe.features, "seed": seed}
    write_json(folder / "reference.json", {**head, "stored_dtype": "bfloat16", **record})
    save_file(arrays, folder / "reference.safetensors", metadata={"format": "pt"})
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes for its own user alone
    checks = "; ".join(f"{c['feature']} {c['relative_change']}" for c in record["feature_checks"])
    print(f"{name}: seed {seed} ({seed - first} rejected), margin {record['min_margin']}, of routers "
          f"{record['min_routing_margin']}, {record['accuracy']}, {checks}", flush=True)  # fmt: skip


def differing_rows(got: list[dict], want: list[dict]) -> list[str]:
    """What differs between two lists of prompts; log-probabilities may differ by rounding."""
    found = []
    for a, b in zip(got, want, strict=True):
        exact = [key for key in b if key not in ("greedy_logprobs", "margins", "min_margin", "top5_logprobs")]
        found += [f"{b['id']}.{key}" for key in exact if a[key] != b[key]]
        for key in ("greedy_logprobs", "top5_logprobs"):
            if np.shape(a[key]) != np.shape(b[key]) or not np.allclose(a[key], b[key], rtol=0, atol=MAX_LOGPROB):
                found.append(f"{b['id']}.{key}")
    return found


def far_figures(got: dict, want: dict) -> list[str]:
    """Figures of accuracy and of feature checks that are not those recorded."""
    def figures(record):
        changes = {check["feature"]: check["relative_change"] for check in record["feature_checks"]}
        errors = {key: value["relative_error"] for key, value in record["accuracy"].items()}
        return {**changes, **errors, "logits_std": record["logits_std"]}

    a, b = figures(got), figures(want)
    found = sorted(set(a) ^ set(b))
    return found + [key for key in set(a) & set(b) if abs(a[key] - b[key]) > MAX_FIGURE * b[key]]


def check(folder: Path) -> bool:
    name = folder.name
    recipe = RECIPES[name]() if name in RECIPES else None
    if recipe is None and name not in SWITCHES:
        sys.exit(f"{name}: no switches are known for it; known: {', '.join([*RECIPES, *SWITCHES])}")
    want = read_json(folder / "reference.json")
    got, arrays = records(folder, recipe.switches if recipe else SWITCHES[name], want["prompts"])
    found = differing_rows(got["prompts"], want["prompts"]) + far_figures(got, want)
    recorded = load_file(folder / "reference.safetensors")
    same_bits = 0
    for key in sorted(set(recorded) | set(arrays)):
        if key not in recorded or key not in arrays or recorded[key].shape != arrays[key].shape:
            found.append(key)
            continue
        same_bits += torch.equal(arrays[key], recorded[key])
        if distance([arrays[key]], [recorded[key]])[0] > MAX_RELATIVE:
            found.append(key)

    config = read_json(folder / "config.json")
    model = new_model(config)
    init_weights(model, config, recipe.gains if recipe else {}, want["tokenizer_vocab_size"], want["seed"])
    drawn, stored = published_tensors(model), load_file(folder / "model.safetensors")
    if set(drawn) != set(stored) or not all(torch.equal(drawn[key], stored[key]) for key in stored):
        found.append("weights drawn from the recorded seed")
    print(f"{name}: {same_bits} of {len(recorded)} tensors have the same bits; "
          + (f"DIFFERENT: {', '.join(found)}" if found else "all that is recorded is found again"), flush=True)  # fmt: skip
    return not found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make")
    maker.add_argument("out", type=Path)
    maker.add_argument("names", nargs="*", help=", ".join(RECIPES))
    checker = commands.add_parser("check")
    checker.add_argument("folders", nargs="+", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "check":
        sys.exit(0 if all([check(folder.resolve()) for folder in arguments.folders]) else 1)
    unknown = set(arguments.names) - set(RECIPES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(RECIPES)}")
    for name in arguments.names or RECIPES:
        make(arguments.out, name, RECIPES[name]())


if __name__ == "__main__":
    main()
