"""Removing a DEP from a component's target makes its build fail. Uses a temporary copy of the tree.

Usage: missing_dep_test.py SOURCE CMAKE. Each object is compiled twice. The unchanged one must compile. Without the DEP,
compilation must fail because that component's header is missing.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# (component's folder, DEP, a source that uses it, a header that the compiler then misses)
CASES = [
    ("text/subword", "formats", "bpe.cc", "formats/"),
    ("cache_manager/prefix", "cache_manager_pool", "prefix_cache.cc", "cache_manager/pool/"),
    ("models/config", "formats", "config_reader.cc", "formats/"),
]
SOURCES = ["CMakeLists.txt", "CMakePresets.json", "cmake", "proto", "base", "formats", "text",
           "hub", "cache_manager", "kernels", "models", "runtime", "engine", "server", "assets",
           "LICENSE", "configs"]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main():
    source, cmake = pathlib.Path(sys.argv[1]), sys.argv[2]
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        tree, build = pathlib.Path(folder) / "tree", pathlib.Path(folder) / "build"
        for name in SOURCES:
            if (source / name).is_dir():
                shutil.copytree(source / name, tree / name)
            else:
                tree.mkdir(exist_ok=True)
                shutil.copy(source / name, tree / name)

        def configure():
            return run(cmake, "-G", "Ninja", "-S", tree, "-B", build, "-DQUIRE_CUDA=OFF",
                       "-DQUIRE_TESTS=OFF", "-DQUIRE_TOOLS=OFF")

        def compile_object(component, file):
            target = "quire_" + component.replace("/", "_")
            return run(cmake, "--build", build, "--target",
                       f"{component}/CMakeFiles/{target}.dir/{file}.o")

        status, output = configure()
        if status != 0:
            sys.exit(f"the copy cannot be configured:\n{output}")
        for component, _, file, _ in CASES:
            status, output = compile_object(component, file)
            if status != 0:
                failures.append(f"{component}/{file} does not compile as it is:\n{output}")
        for component, dep, _, _ in CASES:
            path = tree / component / "CMakeLists.txt"
            text = path.read_text(encoding="utf-8")
            shorter = re.sub(rf"^\s*{dep}\n", "", text, count=1, flags=re.MULTILINE)
            if shorter == text:
                sys.exit(f"{component} does not list {dep} on a line of its own")
            path.write_text(shorter, encoding="utf-8")
        status, output = configure()
        if status != 0:
            sys.exit(f"the copy without DEPS cannot be configured:\n{output}")
        for component, dep, file, header in CASES:
            status, output = compile_object(component, file)
            missing = re.search(r"fatal error: (\S+): No such file", output)
            if status == 0 or not missing or not missing.group(1).startswith(header):
                failures.append(f"{component}/{file} without {dep}: status {status}\n{output}")
    for failure in failures:
        print(failure)
    print(f"{len(CASES)} components without a DEP, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
