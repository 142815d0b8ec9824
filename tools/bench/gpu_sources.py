#!/usr/bin/env python3
"""Packs the sources of the CUDA kernels: `gpu_sources.py BUILD FOLDER`.

Copies the CUDA sources and the headers of this tree that they include to FOLDER/quire. Copies the headers of libraries
that a machine with a CUDA toolkit does not have to FOLDER/include, and the script that compiles the sources to
FOLDER/rebuild. Includes are read from ninja's record of the build. Exit status 1 for a header of unknown origin.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Headers of the C++ compiler, the C library and the CUDA toolkit. They are not packed: the GPU machine has its own.
OWN = re.compile(r"^/usr/(lib/|local/cuda|include/(c\+\+|x86_64-linux-gnu|aarch64-linux-gnu|asm-generic|linux)/|"
                 r"include/[^/]+\.h$)|^/opt/|/cuda[^/]*/")
PACKED = pathlib.Path("/usr/include/absl")


def included(build):
    """Returns units and the headers that they include, with links resolved."""
    objects = [f"{path.parent.relative_to(build).as_posix()}/{path.name.removesuffix('.ptxas')}"
               for path in sorted(build.glob("kernels/*/CMakeFiles/quire_kernels_*_gpu.dir/*.cu.o.ptxas"))]
    if not objects:
        sys.exit(f"{build}: no compiled kernels; was it built with CUDA?")
    listing = subprocess.run(["ninja", "-C", build, "-t", "deps", *objects], capture_output=True, text=True,
                             check=True).stdout
    return {(build / line.strip()).resolve() for line in listing.splitlines() if line.startswith("    ")}


def pack(build, folder):
    unknown = []
    for path in sorted(included(build)):
        if path.is_relative_to(ROOT):
            target = folder / "quire" / path.relative_to(ROOT)
        elif path.is_relative_to(PACKED):
            target = folder / "include" / path.relative_to(PACKED.parent)
        elif OWN.search(path.as_posix()):
            continue
        else:
            unknown.append(path)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tools" / "gpu_run" / "rebuild", folder)
    shutil.copy(ROOT / "LICENSE", folder)
    return unknown


def main():
    unknown = pack(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]))
    for path in unknown:
        print(f"{path}: neither in this tree nor in a packed library", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
