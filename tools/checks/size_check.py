#!/usr/bin/env python3
"""Fails if the tracked files have more than 40 MiB in total.

Every clone contains each byte forever. Test data that a script can generate is generated when the tests are built
(tests/testdata/README.md). Outside a git checkout, for example in an unpacked archive, all files count except those that
.gitignore names.
"""

import argparse
import os
import pathlib
import subprocess
import sys

LIMIT_MIB = 40
LARGEST = 10  # number of files that a failure lists
IGNORED_AT_ROOT = {".git", "build", ".venv"}


def tracked_files(root):
    command = ["git", "-C", root, "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return [root / name for name in names if name]


def all_files(root):
    for folder, folders, names in os.walk(root):
        ignored = IGNORED_AT_ROOT if pathlib.Path(folder) == root else set()
        folders[:] = [name for name in folders if name not in ignored | {"__pycache__"}]
        yield from (pathlib.Path(folder) / name for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = pathlib.Path(__file__).resolve()
    parser.add_argument("--root", type=pathlib.Path, default=here.parents[2])
    root = parser.parse_args().root.resolve()
    is_checkout = (root / ".git").exists()
    files = tracked_files(root) if is_checkout else list(all_files(root))
    # Ignore tracked files that are deleted in the work tree.
    sizes = {path: path.lstat().st_size for path in files if os.path.lexists(path)}
    kind = "tracked files" if is_checkout else "files, no git checkout"
    if not sizes:
        sys.exit(f"{root}: no {kind}")
    total = sum(sizes.values()) / 2**20
    print(f"{len(sizes)} {kind}: {total:.2f} MiB of at most {LIMIT_MIB} MiB")
    if total > LIMIT_MIB:
        for path in sorted(sizes, key=sizes.get, reverse=True)[:LARGEST]:
            print(f"  {path.relative_to(root)}: {sizes[path] / 2**20:.2f} MiB")
        sys.exit(1)


if __name__ == "__main__":
    main()
