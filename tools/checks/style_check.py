#!/usr/bin/env python3
"""Checks the rules of docs/style.md that can be checked on text.

Checks lengths of files and functions, columns of C++, folders that include each other, sources outside the build, TODOs
without an issue number, `#pragma once`, disabled tests, C++ features that we do not use, dead links, functions that
docs/architecture.md names, sleeps in tests, `virtual` outside the files of docs/style.md, unused error reasons, and types
with equal full names. Prints each violation as `file:line: message`. Exit status 1 if there is one.
"""

import argparse
import ast
import fnmatch
import itertools
import pathlib
import re
import sys

FOLDERS = ["base", "formats", "hub", "text", "cache_manager", "kernels", "models", "runtime", "engine", "server", "tools",
           "tests", "assets", "proto", "scripts", "cmake"]
PAGE_FOLDERS = ["docs", "assets", "kernels", "tools", "deploy"]
CPP = {".h", ".cc", ".cu", ".cuh"}
CHECKED = CPP | {".py", ".proto", ".cmake", ".sh"}

MAX_COLUMNS = 100
MAX_FILE_LINES = 900
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 120
KERNEL_FILES = ["*.cu", "*.cuh", "kernels/*_cpu.cc", "kernels/*_simd.cc", "kernels/cpu/*"]

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
DISABLED = re.compile(r"\bDISABLED_|^\s*#\s*if\s+0\b|\bDISABLED\s+(TRUE|ON)\b|mark\.skip\(")
# Applied to code without comments and strings.
BANNED = [
    (re.compile(r"\bthrow\b"), "we never throw; return absl::Status"),
    (re.compile(r"\busing\s+namespace\s+(?!std::(\w+_)?literals\b)"), "no `using namespace`"),
    (re.compile(r"\bstd::format\b|\bstd::views\b|\bco_(await|yield|return)\b"),
     "not accepted by every compiler that we support"),
    (re.compile(r"\babsl::Mutex\b"), "use base/mutex.h, which ThreadSanitizer understands"),
    (re.compile(r"\bno_unique_address\b"),
     "nvcc 13.0 passes a class with such members to kernels in another layout than the host's"),
]

# Deadlines and ages use monotonic time (base/clock.h). Only these files may read the wall clock: they show it, write it
# into a message, or compare it with a date in a file.
WALL_CLOCK = re.compile(r"\babsl::(Now|GetCurrentTimeNanos)\b|\bsystem_clock::now\b"
                        r"|\bgettimeofday\b|\bCLOCK_REALTIME\b|\bstd::time\(")
WALL_CLOCK_READERS = [
    "base/clock.cc",                         # the clock itself
    "base/logging.cc",                       # times of log lines
    "server/auth/certificate_store.cc", "server/main.cc",  # validity of certificates
    "server/config/layered_config.cc", "server/engine_stack.cc",  # load times that are shown
    "server/http/session_exchange.cc",       # the Date header
    "tests/*", "tools/*",
]

# Files with two implementations of an interface (docs/style.md, section 2). Tests may declare virtual functions.
VIRTUAL_FILES = ["base/clock.h", "engine/constraint/constraint.h", "kernels/comm/communicator.h",
                 "runtime/step/step_runner.h", "server/http/http_message.h", "server/http/http_session.h",
                 "server/net/transport.h", "server/openai/answer_writer.h", "tools/quire/bench_target.h"]
VIRTUAL = re.compile(r"\bvirtual\b")

# Tests wait through the helpers of these files.
WAITING_FILES = ["tests/testing/waiting.h", "tests/testing/waiting.py"]
SLEEP = re.compile(r"\b(?:SleepFor|sleep_for|sleep_until|nanosleep|clock_nanosleep|usleep)\b|\bsleep\s*\(")
SHELL_SLEEP = re.compile(r"(?:^|[;&|(]|\b(?:do|then|else)\b)[ \t]*sleep[ \t]+\S", re.MULTILINE)


def source_files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if not path.is_file() or "testdata" in parts or "__pycache__" in parts:
                continue
            if path.suffix in CHECKED or path.name == "CMakeLists.txt" or parts[0] == "scripts":
                yield "/".join(parts)


def blank(match):
    """Replaces everything except line ends by spaces, so that positions do not change."""
    return re.sub(r"[^\n]", " ", match.group(0))


# Raw strings first, because they may contain quotes and comment markers. A quote between digits is a separator.
NOT_CODE = re.compile(
    r'R"(?P<tag>[^\s()\\]*)\(.*?\)(?P=tag)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'", re.DOTALL)
# The same for languages with # comments.
HASH_TEXT = re.compile(r"""#[^\n]*|\"{3}.*?\"{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""",
                       re.DOTALL)
AFTER_INITIALIZER = re.compile(r"\s*[,{]")
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)


def code_only(text):
    """Returns C++ without comments, strings and preprocessor lines, at the same positions."""
    return PREPROCESSOR.sub(blank, NOT_CODE.sub(blank, text))


def opens_function(head):
    """Returns whether a brace after `head`, the text since the last statement, begins a function body."""
    head = re.sub(r"\boperator\s*[^\w\s(]+", "operator", re.sub(r"\[\[.*?\]\]", " ", head))
    while True:  # empty all parentheses, because default arguments contain =
        shorter = re.sub(r"\((?!\))[^()]*\)", "()", head)
        if shorter == head:
            break
        head = shorter
    head = re.sub(r"^\s*template\s*<.*?>\s*(?=\w)", "", head, flags=re.DOTALL).strip()
    if re.match(r"(namespace|class|struct|union|enum|extern)\b", head):
        return re.search(r"\w\s*\(\)[\s\w&]*$", head) is not None and "alignas" not in head
    return "()" in head and "=" not in head


def cpp_functions(text):
    """Yields (first line, lines of the body) of every outermost function in C++ `text`."""
    code = code_only(text)
    stack, head_start, parens = [], 0, 0
    in_function = 0
    for position, char in enumerate(code):
        if char in "()":
            parens += 1 if char == "(" else -1
        elif char == "{":
            is_function = not in_function and not parens and opens_function(
                code[head_start:position])
            stack.append((position, is_function, head_start))
            in_function += is_function
            head_start = position + 1
        elif char == "}" and stack:
            start, is_function, head = stack.pop()
            in_function -= is_function
            head_start = position + 1
            if is_function and AFTER_INITIALIZER.match(code, position + 1):
                head_start = head  # a_{1} of a constructor, whose body follows
            elif is_function:
                first = code.count("\n", 0, start) + 1
                yield first, code.count("\n", start, position) + 1
        elif char == ";" and not parens:
            head_start = position + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def check_lengths(name, text):
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{name}:1: file has {lines} lines, the limit is {MAX_FILE_LINES}"
    suffix = pathlib.PurePath(name).suffix
    is_kernel = any(fnmatch.fnmatch(name, pattern) for pattern in KERNEL_FILES)
    limit = MAX_KERNEL_LINES if is_kernel else MAX_FUNCTION_LINES
    functions = (cpp_functions(text) if suffix in CPP
                 else python_functions(text) if suffix == ".py" else ())
    for line, length in functions:
        if length > limit:
            yield f"{name}:{line}: function has {length} lines, the limit is {limit}"


def check_lines(name, text):
    if name.endswith("style_check.py") or name.endswith("style_check_test.py"):
        return  # they contain the words that they search for
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{name}:{number}: unfinished work without an issue number, as in TODO(#12)"
        if DISABLED.search(line):
            yield f"{name}:{number}: disabled code or test"
    if pathlib.PurePath(name).suffix not in CPP:
        return
    is_header = name.endswith((".h", ".cuh")) and not name.endswith("-inl.h")  # Highway's toggle
    if is_header and not text.startswith("#pragma once\n"):
        yield f"{name}:1: a header begins with #pragma once"
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_COLUMNS:
            yield f"{name}:{number}: line has {len(line)} columns, the limit is {MAX_COLUMNS}"
    reads_wall_clock = any(fnmatch.fnmatch(name, reader) for reader in WALL_CLOCK_READERS)
    for number, line in enumerate(code_only(text).splitlines(), 1):
        for pattern, why in BANNED:
            if pattern.search(line):
                yield f"{name}:{number}: {why}"
        if WALL_CLOCK.search(line) and not reads_wall_clock:
            yield f"{name}:{number}: reads wall time; use MonotonicNow() of base/clock.h"
        if VIRTUAL.search(line) and name not in VIRTUAL_FILES and not name.startswith("tests/"):
            yield f"{name}:{number}: a virtual function, in a file that docs/style.md does not name"


def check_sleeps(name, text):
    """Finds sleeps in tests, except in strings and comments."""
    suffix = pathlib.PurePath(name).suffix
    if not name.startswith("tests/") or name in WAITING_FILES:
        return
    if suffix in CPP:
        pattern, code = SLEEP, code_only(text)
    else:
        pattern, code = SHELL_SLEEP if suffix == ".sh" else SLEEP, HASH_TEXT.sub(blank, text)
    for match in pattern.finditer(code):
        line = code.count("\n", 0, match.end()) + 1
        yield f"{name}:{line}: a test does not sleep; wait with tests/testing/waiting.{{h,py}}"


def check_own_header(root, name, text):
    """A source includes its own header first, so that the header compiles on its own."""
    path = pathlib.PurePath(name)
    header = path.with_suffix(".h")
    if path.suffix != ".cc" or not (root / header).is_file():
        return
    first = re.search(r"^#\s*include[^\n]*", text, re.MULTILINE)
    if first and first.group(0) != f'#include "{header}"':
        line = text.count("\n", 0, first.start()) + 1
        yield f"{name}:{line}: the first include of a source is its own header, {header}"


def check_in_build(root, names):
    """Every C++ file must be in the CMakeLists.txt of its folder or of a parent folder."""
    listed = {}
    for name in names:
        if name.endswith("CMakeLists.txt"):
            text = re.sub(r"#[^\n]*", "", (root / name).read_text(encoding="utf-8"))
            listed[name[:-len("CMakeLists.txt")]] = set(re.split(r"[\s()\"]+", text))
    included = set()
    for name in names:
        if pathlib.PurePath(name).suffix in CPP:
            included |= set(re.findall(r'#\s*include "([^"]+)"',
                                       (root / name).read_text(encoding="utf-8")))
    for name in names:
        if pathlib.PurePath(name).suffix not in CPP:
            continue
        folders = [folder for folder in listed if name.startswith(folder)]
        if any(name[len(folder):] in listed[folder] for folder in folders):
            continue
        # Headers of tests and tools belong to no library, but must be included.
        if name.startswith(("tests/", "tools/")) and name.endswith(".h") and name in included:
            continue
        yield f"{name}:1: the file is not in the build"


# A comparison with a reason does not count as a use.
COMPARISON = re.compile(r"\bHasReason\((?:[^()]|\([^()]*\))*\)|(?:\bcase|[=!]=)\s*(?:\w+::)*Reason::k\w+"
                        r"|\bReason::k\w+(?=\s*[=!]=)")


def check_reasons(root, names):
    """Every reason of base/error_reason.h must be returned by some source."""
    header = root / "base" / "error_reason.h"
    if not header.exists():
        return
    body = re.search(r"enum class Reason\b[^{]*\{(.*?)\}", header.read_text(encoding="utf-8"), re.DOTALL)
    given = set()
    for name in names:
        if pathlib.PurePath(name).suffix in CPP and not name.startswith(("tests/", "base/error_reason.")):
            code = code_only((root / name).read_text(encoding="utf-8"))
            given |= set(re.findall(r"\bReason::(k\w+)", COMPARISON.sub(blank, code)))
    for reason in re.findall(r"^\s*(k\w+)", body.group(1), re.MULTILINE):
        if reason not in given:
            yield f"base/error_reason.h:1: no source returns {reason}"


def check_mutual_folders(root, names):
    """No two folders with the same parent include each other."""
    edges = {}
    for name in names:
        if pathlib.PurePath(name).suffix not in CPP or name.startswith("tests/"):
            continue
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        for match in re.finditer(r'^[ \t]*#\s*include "([^"]+)"', text, re.MULTILINE):
            mine, theirs = name.split("/")[:-1], match.group(1).split("/")[:-1]
            same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1],
                                                zip(mine, theirs))))
            if same < len(mine) and same < len(theirs):
                line = text.count("\n", 0, match.start()) + 1
                pair = ("/".join(mine[:same + 1]), "/".join(theirs[:same + 1]))
                edges.setdefault(pair, f"{name}:{line}")
    for (mine, theirs), where in sorted(edges.items()):
        if mine < theirs and (theirs, mine) in edges:
            back = edges[(theirs, mine)]
            yield f"{where}: {mine} and {theirs} include each other (the way back: {back})"


NAMESPACE = re.compile(r"(?:inline\s+)?namespace\b\s*([\w:]*)$")
TYPE = re.compile(r"\b(?:class|struct|union|enum)\s+(?:(?:alignas|[A-Z]\w*)\s*\([^)]*\)\s*)?(\w+)(?:\s+final)?"
                  r"\s*(?::(?!:).*)?$", re.DOTALL)


def linked_types(text):
    """Yields (full name, line) of the types that C++ `text` defines in named namespaces."""
    code, scopes, start = code_only(text), [], 0
    for match in re.finditer(r"[{};]", code):
        head = code[start:match.start()].strip()
        start = match.end()
        if match.group(0) == "}" and scopes:
            scopes.pop()
        elif match.group(0) == "{":
            space, found = NAMESPACE.match(head), TYPE.search(head)
            if found and all(scopes):
                yield "::".join([*scopes, found.group(1)]), code.count("\n", 0, match.start()) + 1
            scopes.append(space.group(1) if space else "")


def check_linked_types(root, names):
    """No two files may define types with equal full names, which would violate the one-definition rule."""
    owners = {}
    for name in names:
        # The emulator's headers replace the headers with the same name.
        if pathlib.PurePath(name).suffix not in CPP or name.startswith("tests/cuda_emulator/include/"):
            continue
        for found, line in linked_types((root / name).read_text(encoding="utf-8", errors="replace")):
            other = owners.setdefault(found, name)
            if other != name:
                yield f"{name}:{line}: {other} defines a {found}, too"


def pages(root):
    found = {page for folder in PAGE_FOLDERS for page in (root / folder).rglob("*.md")}
    return sorted(found.union(root.glob("*.md")))


def anchors(text):
    """Yields the anchors that GitHub creates for the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?)\s*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL),
                              re.MULTILINE):
        heading = re.sub(r"\]\([^)]*\)", "", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return found


def check_links(root):
    """Every relative link of a page must lead to an existing file and heading."""
    for page in pages(root):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for link in re.findall(r"(?:\]\(|\b(?:src|srcset)=\")([^)\s\"]+)", line):
                target, _, anchor = link.partition("#")
                if re.match(r"[a-z]+:", target):
                    continue
                where = f"{page.relative_to(root).as_posix()}:{number}: "
                path = page.parent / target if target else page
                if not path.exists():
                    yield f"{where}dead link {target}"
                elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
                    yield f"{where}no heading #{anchor} in {target or page.name}"


def check_paths(root):
    """Every path that a page names must exist; {a,b} and * stand for any text."""
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name != "build"}
    for page in pages(root):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for path in re.findall(r"`([\w.-]+/[\w./{},*-]+)`", line):
                pattern = re.sub(r"\{[^}]*\}", "*", path).rstrip("/")
                if path.split("/")[0] in folders and not any(root.glob(pattern)):
                    yield f"{page.relative_to(root).as_posix()}:{number}: no file {path}"


def check_functions(root):
    """Every function that docs/architecture.md names with a file must be in that file.

    The page writes `A::B` (x/y.cc), or | `A::B` | x/y.cc | in the rows of a table."""
    page = root / "docs" / "architecture.md"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    for match in re.finditer(r"`([\w:]+)`(?:\s+\(| \| )([\w./-]+\.(?:cc|cu|h))(?:\)| \|)", text):
        path = root / match.group(2)
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        *scopes, name = match.group(1).split("::")
        if re.search(rf"\b{name}\s*\(", source) and all(re.search(rf"\b{scope}\b", source) for scope in scopes):
            continue
        line = text.count("\n", 0, match.start()) + 1
        yield f"docs/architecture.md:{line}: no {match.group(1)} in {match.group(2)}"


def check_openings(root):
    """Every page of docs/ and kernels/ begins with its readers and with what they can do after it."""
    for page in sorted([*(root / "docs").rglob("*.md"), *(root / "kernels").rglob("*.md")]):
        text = re.sub(r"<!--.*?-->\n*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        paragraphs = text.split("\n\n", 2)
        opening = paragraphs[1] if len(paragraphs) > 1 else ""
        if not (opening.startswith("For ") and re.search(r"\b[Aa]fter\s+(it|this\s+page)\b", opening)):
            yield (f"{page.relative_to(root).as_posix()}:3: a page opens with its readers (`For ...`) "
                   "and with what they can do after it")


def check(root):
    names = list(source_files(root))
    errors = []
    for name in names:
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        errors += check_lengths(name, text)
        errors += check_lines(name, text)
        errors += check_own_header(root, name, text)
        errors += check_sleeps(name, text)
    errors += check_in_build(root, names)
    errors += check_reasons(root, names)
    errors += check_mutual_folders(root, names)
    errors += check_linked_types(root, names)
    errors += check_links(root)
    errors += check_openings(root)
    errors += check_paths(root)
    errors += check_functions(root)
    return errors, len(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2])
    arguments = parser.parse_args()
    errors, count = check(arguments.root)
    for error in errors:
        print(error)
    print(f"style_check: {count} files, {len(errors)} violations")
    return 1 if errors or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
