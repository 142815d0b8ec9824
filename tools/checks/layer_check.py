#!/usr/bin/env python3
"""Proves on the text of every #include that layers are used in one direction only.

The rules are those of docs/architecture.md, section "Layers": which folder may include which, which
subfolders may see each other, which file may include which third-party library, and no include cycle.
Each violation is printed as `file:line: the include: why`. Exit status 1 when there is one.
"""

import argparse
import fnmatch
import pathlib
import re
import sys

# A folder may include itself, and what stands here.
LAYERS = {
    "base": [],
    "cache_manager": ["base"],
    "kernels": ["base"],  # and the views of cache_manager, see allowed_views()
    "models": ["base", "cache_manager", "kernels"],
    "engine": ["base", "cache_manager", "kernels", "models"],
    "assets": ["base"],
    "server": ["base", "cache_manager", "kernels", "models", "engine", "assets"],
    "tools": ["base", "cache_manager", "kernels", "models", "engine", "assets", "server"],
    "tests": ["base", "cache_manager", "kernels", "models", "engine", "assets", "server", "tools"],
}
VIEW_TARGET = "quire_kv_view"

# Subfolder -> the other subfolders of its layer that it may include; "." is the files directly in the
# layer's folder. A file directly in the folder may include every subfolder.
SIBLINGS = {
    "models/checkpoint": ["text"],  # its strict JSON reader
    "models/text": [],
    "models/families": ["."],
    "models/blocks": ["."],
    "kernels/cpu": ["."],
    "kernels/cuda": ["."],
    "engine/request": [],
    "engine/output": ["request"],
    "engine/scheduler": ["request", "output"],
    "engine/step": ["request", "output", "scheduler"],
    "server/auth": ["."],
    "server/config": [".", "auth"],
    "server/api": [".", "auth", "config"],
    "server/grpc": [".", "api", "auth", "config"],
    "server/http": [".", "api", "auth", "config"],
    "server/openai": [".", "api", "auth", "config", "http"],
    "server/vllm": [".", "api", "auth", "config", "grpc"],
    "tools/quire": [],
}
# Below these, only the named folders may be included at all.
ALONE = {"models/text": ["base", "models/text"]}
# Of server/, the tools may use its configuration only.
TOOLS_SERVER = "server/config/"

# Pattern of the included path -> where it may stand. Tests may include everything.
THIRD_PARTY = [
    (r"cublasLt", ["kernels/cuda/*"]),
    (r"nccl", ["kernels/collective_nccl.cc"]),
    (r"cuda|cooperative_groups", ["base/device.*", "base/device_buffer.*", "base/stream.*",
                                  "base/device_graph.*", "base/cuda_status.*", "kernels/*"]),
    (r"hwy/", ["kernels/*_simd.cc", "kernels/cpu/*", "tools/bench/bench_kernels.cc"]),
    (r"dnnl|oneapi/", ["tools/bench/bench_kernels.cc"]),
    (r"google/protobuf/io/", ["text/sentencepiece/sentencepiece_file.cc", "server/*", "tools/quire/*"]),
    (r"grpc|google/(?!protobuf/io/)|quire/(config/)?v\d", ["server/*", "tools/quire/*"]),
    (r"(vllm|smg)/", ["server/vllm/*"]),
    (r"yaml-cpp/", ["server/config/*"]),
    (r"boost/", ["server/http/*"]),
    (r"curl/", ["tools/quire/*"]),
    (r"CLI/", ["server/main.cc", "server/config/flags.cc", "tools/*"]),
    (r"spdlog/|fmt/", ["base/logging.cc"]),
    (r"prometheus/", ["base/probe.cc", "server/metrics_exporter.cc"]),
    (r"nlohmann/", ["models/*", "engine/constraint/*", "engine/trace.cc", "server/api/chat_translator.cc",
                    "server/http/status_*", "server/openai/*", "tools/quire/*"]),
    (r"pcre2|utf8proc|sentencepiece", ["models/text/*"]),
    (r"benchmark/", ["tools/bench_*.cc"]),
    (r"g(test|mock)/", []),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def source_files(root):
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("*")):
            if path.suffix in SUFFIXES and "testdata" not in path.parts:
                yield path.relative_to(root).as_posix()


def includes_of(root, name):
    """Yields (line number, included path) of one file."""
    text = (root / name).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def allowed_views(root):
    """The headers of the target quire_kv_view, as paths from the root."""
    cmake = root / "cache_manager" / "CMakeLists.txt"
    if not cmake.exists():
        return set()
    match = re.search(r"NAME\s+" + VIEW_TARGET + r"\s+HDRS\s+([^)]*?)(?:SRCS|DEPS|\))",
                      cmake.read_text(encoding="utf-8"))
    return {"cache_manager/" + name for name in match.group(1).split()} if match else set()


def subfolder(path):
    """`models/text` for models/text/x.h, `models` for models/x.h."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def project_error(name, target, views):
    """Why the file `name` may not include the project's file `target`, or None."""
    layer, other = name.split("/")[0], target.split("/")[0]
    if layer == "tests":
        return None
    mine, theirs = subfolder(name), subfolder(target)
    if mine in ALONE and theirs not in ALONE[mine]:
        return f"{mine} may include {' and '.join(ALONE[mine])} only"
    if layer == "kernels" and other == "cache_manager":
        return None if target in views else f"kernels may include the headers of {VIEW_TARGET} only"
    if layer != other:
        if other not in LAYERS[layer]:
            return f"{layer} may not include {other}"
        if layer == "tools" and other == "server" and not target.startswith(TOOLS_SERVER):
            return f"tools may include {TOOLS_SERVER} only, of server"
        return None
    if mine == theirs or mine == layer:
        return None
    short = theirs.split("/")[1] if "/" in theirs else "."
    if short not in SIBLINGS.get(mine, []):
        return f"{mine} may not include {theirs}"
    return None


def third_party_error(name, target):
    if name.startswith("tests/"):
        return None
    for pattern, places in THIRD_PARTY:
        if re.match(pattern, target):
            if not any(fnmatch.fnmatch(name, place) for place in places):
                where = ", ".join(places) if places else "tests/"
                return f"this library may be included only in {where}"
            return None
    return None


def find_cycle(graph):
    """Returns the files of one include cycle, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        for target in graph.get(node, []):
            cycle = visit(target)
            if cycle:
                return cycle
        path.pop()
        done.add(node)
        return None

    for start in graph:
        cycle = visit(start)
        if cycle:
            return cycle
    return None


def check(root):
    errors, graph, views = [], {}, allowed_views(root)
    for name in source_files(root):
        graph[name] = []
        for line, target in includes_of(root, name):
            is_project = target.split("/")[0] in LAYERS
            why = (project_error if is_project else third_party_error)(
                name, target, *([views] if is_project else []))
            if why:
                errors.append(f"{name}:{line}: #include \"{target}\": {why}")
            if is_project and (root / target).exists():
                graph[name].append(target)
            elif is_project and target.split("/")[0] != "assets":
                errors.append(f"{name}:{line}: #include \"{target}\": there is no such file")
    cycle = find_cycle(graph)
    if cycle:
        errors.append("include cycle: " + " -> ".join(cycle))
    return errors, len(graph)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    errors, count = check(root)
    for error in errors:
        print(error)
    print(f"layer_check: {count} files, {len(errors)} violations")
    return 1 if errors or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
