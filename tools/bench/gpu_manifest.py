#!/usr/bin/env python3
"""Writes bundle.txt of a bundle (scripts/gpu_bundle): `gpu_manifest.py FOLDER VERSION ARCHS`.

The runner (tools/gpu_run/run.py) compares every file with bundle.txt before it starts anything.
"""

import pathlib
import sys
import zlib


def write(folder, version, archs):
    lines = [f"quire {version}", f"archs {archs}"]
    for path in sorted(folder.rglob("*")):
        # Sources may be changed (sources/rebuild).
        is_source = path.relative_to(folder).parts[0] == "sources"
        if path.is_file() and path.name != "bundle.txt" and not is_source:
            content = path.read_bytes()
            lines.append(f"file {zlib.crc32(content):08x} {len(content)} "
                         f"{path.relative_to(folder).as_posix()}")
    (folder / "bundle.txt").write_text("\n".join([*lines, "end", ""]), encoding="utf-8")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3])
