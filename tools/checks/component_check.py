#!/usr/bin/env python3
"""Checks the dependencies of components, from CMakeLists.txt and all #include lines.

A component includes only headers of components in its DEPS. The build enforces this too (cmake/components.cmake), but
this check needs no compiler. It also checks three other rules. DEPS lists only components whose headers are included,
directly or through other headers. Components form no cycle. Third-party libraries are included only where the table
below allows it. Prints each violation as `file:line: message`. Exit status 1 if there is one.
"""

import argparse
import fnmatch
import pathlib
import re
import sys

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
FOLDERS = ["base", "formats", "hub", "text", "cache_manager", "kernels", "models", "runtime",
           "engine", "server", "tools"]

# Pattern of the included path -> files that may include it. Tests may include everything.
THIRD_PARTY = [
    (r"cublasLt", ["kernels/linear/cublaslt*"]),
    (r"cooperative_groups|dnnl|oneapi/", []),
    (r"cuda", ["base/device.*", "base/device_buffer.*", "base/stream.*", "base/device_graph.*",
               "base/device_timer.*", "base/cuda_status.*", "kernels/*"]),
    (r"highwayhash/", ["base/keyed_hash.cc"]),
    (r"hwloc", ["base/machine.cc"]),
    (r"hwy/", ["kernels/*_simd.cc", "kernels/*-inl.h", "kernels/backend/isa.cc"]),
    (r"google/protobuf/", ["text/sentencepiece/sentencepiece_file.cc", "server/*",
                           "tools/quire/*"]),
    (r"grpc|google/|quire/(config/)?v\d", ["server/*", "tools/quire/*"]),
    (r"(vllm|smg)/", ["server/vllm/*"]),
    (r"opentelemetry/", ["server/tracing/*"]),
    (r"yaml-cpp/", ["server/config/*"]),
    (r"boost/", ["server/edge/*", "server/http/*", "server/net/*"]),
    (r"curl/", ["hub/http_client.cc", "tools/quire/*"]),
    (r"CLI/", ["server/main.cc", "server/config/flags.cc", "server/config/usage_error.cc", "tools/*"]),
    (r"spdlog/|fmt/", ["base/logging.cc"]),
    (r"prometheus/", ["base/probe.cc"]),
    (r"xgrammar/|dlpack/", ["engine/constraint/grammar_library_xgrammar.cc"]),
    (r"nlohmann/", ["base/json_text.*", "engine/constraint/*", "formats/*", "text/*", "models/*",
                    "server/api/chat_translator.cc", "server/api/forced_calls.cc",
                    "server/api/structural_tag_json.cc", "server/dialects/*", "server/http/status_*",
                    "server/openai/*", "tools/bench/*", "tools/quire/*"]),
    (r"pcre2|utf8proc|sentencepiece", ["text/*"]),
    (r"benchmark/", ["tools/bench/*"]),
    (r"g(test|mock)/", []),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
GENERATED = re.compile(r"^(quire|vllm|smg|opentelemetry)/.*\.pb\.h$")
CALL = re.compile(r"^[ \t]*quire_(component|binary)\(\s*([^)]*)\)", re.MULTILINE)
LISTS = {"HDRS", "SRCS", "CUDA_HDRS", "CUDA_HOST", "CUDA_PORTABLE", "CUDA_SM90", "DEPS", "LIBS"}


class Component:
    """One quire_component or quire_binary of a CMakeLists.txt."""

    def __init__(self, kind, folder, words, where):
        self.name, self.where, self.files, self.deps = "", where, [], []
        current = None
        for word in words:
            if word == "NAME" or word in LISTS:
                current = word
            elif current == "NAME":
                self.name = word if kind == "component" else f"binary {word}"
            elif current == "DEPS":
                self.deps.append(word)
            elif current != "LIBS" and pathlib.PurePath(word).suffix in SUFFIXES:
                self.files.append(f"{folder}/{word}")


def components_of(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("CMakeLists.txt")):
            name = path.relative_to(root).as_posix()
            text = re.sub(r"#[^\n]*", "", path.read_text(encoding="utf-8"))
            for match in CALL.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield Component(match.group(1), name.rpartition("/")[0],
                                match.group(2).split(), f"{name}:{line}")


def read_includes(root):
    """Returns {file: [(line, included path)]} of every source."""
    includes = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                includes[path.relative_to(root).as_posix()] = [
                    (number, match.group(1)) for number, line in enumerate(lines, 1)
                    if (match := INCLUDE.match(line))]
    return includes


def reached(files, includes, owner):
    """Returns the components whose headers these files include, directly or through other headers."""
    seen, left, names = set(files), list(files), set()
    while left:
        name = left.pop()
        names.add(owner.get(name, name))
        for _, target in includes.get(name, []):
            if GENERATED.match(target):
                names.add("proto")
            elif target in includes and target not in seen:
                seen.add(target)
                left.append(target)
    return names


def third_party_errors(includes):
    for name, targets in includes.items():
        for line, target in targets:
            for pattern, places in THIRD_PARTY:
                if not re.match(pattern, target):
                    continue
                if not any(fnmatch.fnmatch(name, place) for place in places):
                    where = ", ".join(places) if places else "tests/"
                    yield (f'{name}:{line}: #include "{target}": this library may be included only '
                           f"in {where}")
                break


def find_cycle(graph):
    """Returns the components of one cycle, or None."""
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
    components, includes = list(components_of(root)), read_includes(root)
    owner = {file: component.name for component in components for file in component.files
             if not component.name.startswith("binary ")}
    names = {component.name for component in components} | {"proto"}
    errors = list(third_party_errors(includes))
    for component in components:
        met = reached(component.files, includes, owner)
        for dep in component.deps:
            if dep not in met:
                errors.append(f"{component.where}: {component.name} lists {dep} in DEPS, but includes no "
                              "header of it, directly or through other headers")
        for name in sorted((met & names) - {component.name, *component.deps}):
            errors.append(f"{component.where}: {component.name} includes a header of {name}, directly or "
                          "through other headers, but does not list it in DEPS")
    cycle = find_cycle({component.name: component.deps for component in components})
    if cycle:
        errors.append("components form a cycle: " + " -> ".join(cycle))
    return errors, len(components)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2])
    errors, count = check(parser.parse_args().root)
    for error in errors:
        print(error)
    print(f"component_check: {count} components, {len(errors)} violations")
    return 1 if errors or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
