#!/usr/bin/env python3
"""Makes the folder of test data that the tests read, and checks it. Needs numpy.

    generate.py OUT          makes OUT anew
    generate.py --check OUT  exits 1 unless the generated files of OUT are those of generated.sha256
    generate.py --head FILE  writes FILE.head, which takes the place of a fixture's weights here

OUT has a link to every file beside this script, NAME unpacked for every NAME.xz, and the files
that are not kept because a seed gives them:

- NAME for a file NAME.head of models/, embeddings/models/ and gguf/models/. The head is the beginning of a safetensors
  file (its JSON) or of a GGUF file (up to the first random tensor), as the library wrote it. Behind
  it come the weights (weights.py).
- the checkpoints of formats/models, by make_models.py.
"""

import argparse
import hashlib
import json
import lzma
import os
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True

from weights import of_checkpoint, of_gguf

HERE = pathlib.Path(__file__).resolve().parent
SUMS = HERE / "generated.sha256"


def read_json(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def link_files(out: pathlib.Path) -> list[pathlib.Path]:
    """Links to all files but heads; returns the heads. Links are relative: a tree may be moved.

    A file NAME.xz is unpacked as NAME instead.
    """
    heads = []
    for folder, folders, files in os.walk(HERE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        source = pathlib.Path(folder)
        target = out / source.relative_to(HERE)
        target.mkdir(parents=True)
        for name in files:
            if name.endswith(".head"):
                heads.append(source / name)
            elif name.endswith(".xz"):
                unpacked = lzma.decompress((source / name).read_bytes())
                (target / name.removesuffix(".xz")).write_bytes(unpacked)
            else:
                (target / name).symlink_to(os.path.relpath(source / name, target))
    return sorted(heads)


def reference_of(folder: pathlib.Path) -> dict:
    """What the weights of a generated folder are drawn by; embedders have their records apart,
    without the vocabulary."""
    if folder.parent.parent.name != "embeddings":
        return read_json(folder / "reference.json")
    records = folder.parent.parent / "reference"
    reference = read_json(records / f"{folder.name}.json")
    tokenizer = read_json(folder / "tokenizer.json")
    ids = [*tokenizer["model"]["vocab"].values(), *(one["id"] for one in tokenizer["added_tokens"])]
    return {**reference, "tokenizer_vocab_size": max(ids) + 1}


def write_checkpoint(folder: pathlib.Path, heads: list[pathlib.Path], target: pathlib.Path) -> None:
    """One model in one or more safetensors files."""
    texts = {head: head.read_bytes() for head in heads}
    parsed = {head: json.loads(text) for head, text in texts.items()}
    tensors = {
        name: entry
        for head in heads
        for name, entry in parsed[head].items()
        if name != "__metadata__"
    }
    data = of_checkpoint(
        folder.name,
        read_json(folder / "config.json"),
        reference_of(target),
        tensors,
    )
    for head, text in texts.items():
        own = sorted(
            set(parsed[head]) & set(tensors), key=lambda name: tensors[name]["data_offsets"]
        )
        body = b"".join(data[name] for name in own)
        (target / head.stem).write_bytes(len(text).to_bytes(8, "little") + text + body)


def write_gguf(folder: pathlib.Path, head: pathlib.Path, target: pathlib.Path) -> None:
    reference = read_json(folder / "reference.json")
    content = bytearray(head.read_bytes())
    data = of_gguf(reference)
    for tensor in sorted(reference["tensors"], key=lambda tensor: tensor["offset"]):
        if tensor["name"] in data:
            begin = reference["header"]["data_offset"] + tensor["offset"]
            content += bytes(begin - len(content)) + data[tensor["name"]]
    (target / head.stem).write_bytes(
        content + bytes(-len(content) % (reference["header"]["alignment"]))
    )


def generate(out: pathlib.Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    heads = link_files(out)
    for folder in sorted({head.parent for head in heads}):
        own, target = (
            [head for head in heads if head.parent == folder],
            out / folder.relative_to(HERE),
        )
        if folder.parent in (HERE / "models", HERE / "embeddings" / "models"):
            write_checkpoint(folder, own, target)
        elif folder.parent == HERE / "gguf" / "models" and len(own) == 1:
            write_gguf(folder, own[0], target)
        else:
            sys.exit(f"{folder}: no rule for the weights of a model there")
    make_models, source = (
        HERE / "formats" / "make_models.py",
        out / "models" / "llama-gqa-tied-bf16",
    )
    subprocess.run(
        [sys.executable, make_models, "--checkpoints", source, out / "formats" / "models"],
        check=True,
    )


def differences(out: pathlib.Path, sums: str) -> list[str]:
    """What is wrong with the generated files of a folder."""
    wanted = {name: total for total, name in (line.split("  ", 1) for line in sums.splitlines())}
    unpacked = {out / path.relative_to(HERE).with_suffix("") for path in HERE.rglob("*.xz")}
    files = [
        path
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.is_symlink() and path not in unpacked
    ]
    found = {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    return (
        [f"{name}: not generated" for name in sorted(set(wanted) - set(found))]
        + [f"{name}: generated and not in {SUMS.name}" for name in sorted(set(found) - set(wanted))]
        + [
            f"{name}: SHA-256 {found[name]}, not {wanted[name]}"
            for name in found
            if wanted.get(name, found[name]) != found[name]
        ]
    )


def write_head(path: pathlib.Path) -> None:
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        head = content[8 : 8 + int.from_bytes(content[:8], "little")]
    else:
        reference = read_json(path.parent / "reference.json")
        begins = [
            tensor["offset"]
            for tensor in reference["tensors"]
            if tensor["name"] != "rope_freqs.weight"
        ]
        head = content[: reference["header"]["data_offset"] + min(begins)]
    path.with_name(path.name + ".head").write_bytes(head)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true")
    action.add_argument("--head", action="store_true")
    parser.add_argument("path", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.head:
        write_head(arguments.path)
    elif arguments.check:
        found = differences(arguments.path, SUMS.read_text(encoding="utf-8"))
        print("\n".join(found) or "every generated file has its recorded sum")
        sys.exit(1 if found else 0)
    else:
        generate(arguments.path.resolve())


if __name__ == "__main__":
    main()
