#!/usr/bin/env python3
"""Checks the schemas in proto/: naming, comments, types, and that the published API only grows.

The rules are those of docs/api.md, section "Rules for the schema". proto/published.txt lists the published API, one line
per message, field, enum value and method. A listed element that is missing from the schema, or an element of the schema
that is not listed, is a violation. After adding elements, `proto_check.py --write` adds their lines; it refuses to remove
lines. The field numbers in docs/api.md must be those of the schema.

Needs protoc and python3-protobuf. Exit status 1 when there is a violation.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2

Field = descriptor_pb2.FieldDescriptorProto
UNSIGNED = {Field.TYPE_UINT32: "uint32", Field.TYPE_UINT64: "uint64",
            Field.TYPE_FIXED32: "fixed32", Field.TYPE_FIXED64: "fixed64"}
NUMBERS = {Field.TYPE_INT32, Field.TYPE_INT64, Field.TYPE_SINT32, Field.TYPE_SINT64,
           Field.TYPE_DOUBLE, Field.TYPE_FLOAT}
# Field numbers in descriptor.proto, which are the elements of a source path.
FILE_MESSAGE, FILE_ENUM, FILE_SERVICE = 4, 5, 6
MESSAGE_FIELD, MESSAGE_NESTED, MESSAGE_ENUM, MESSAGE_ONEOF = 2, 3, 4, 8
# Packages of other projects: only comments, sizes and published elements are checked.
FOREIGN = ("vllm.", "smg.", "opentelemetry.")
PASCAL, SNAKE = r"[A-Z][A-Za-z0-9]*", r"[a-z][a-z0-9]*(_[a-z0-9]+)*"
MAX_LINES, MAX_COLUMNS = 600, 100


class Checker:
    """Collects the violations and the published lines of one file."""

    def __init__(self, file, root):
        self.file = file
        self.is_foreign = file.package.startswith(FOREIGN)
        self.errors = []
        self.published = []
        self.lines = {}
        self.comments = set()
        for location in file.source_code_info.location:
            path = tuple(location.path)
            self.lines[path] = location.span[0] + 1
            if (location.leading_comments + location.trailing_comments).strip():
                self.comments.add(path)
        self.text = (root / file.name).read_text(encoding="utf-8")

    def error(self, path, message):
        self.errors.append(f"proto/{self.file.name}:{self.lines.get(tuple(path), 1)}: {message}")

    def rule(self, path, message):
        """Reports a violation of a rule that applies only to quire's own API."""
        if not self.is_foreign:
            self.error(path, message)

    def named(self, path, kind, name, pattern):
        if not self.is_foreign and not re.fullmatch(pattern, name):
            self.error(path, f"{kind} {name} does not match {pattern}")
        if tuple(path) not in self.comments:
            self.error(path, f"{kind} {name} has no comment")

    def run(self):
        self.check_file()
        package = self.file.package
        for i, message in enumerate(self.file.message_type):
            self.check_message([FILE_MESSAGE, i], package, message)
        for i, enum in enumerate(self.file.enum_type):
            self.check_enum([FILE_ENUM, i], package, enum)
        for i, service in enumerate(self.file.service):
            self.check_service([FILE_SERVICE, i], package, service)

    def check_file(self):
        folder = self.file.name.rsplit("/", 1)[0]
        if self.file.package != folder.replace("/", "."):
            self.error([2], f"package {self.file.package} is not the directory {folder}")
        if not re.fullmatch(r"v\d+((alpha|beta)\d*)?", self.file.package.rsplit(".", 1)[-1]):
            self.rule([2], f"package {self.file.package} does not end in a version")
        lines = self.text.splitlines()
        if len(lines) > MAX_LINES:
            self.error([], f"file has {len(lines)} lines, the limit is {MAX_LINES}")
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                self.errors.append(f"proto/{self.file.name}:{number}: line has {len(line)} columns, "
                                   f"the limit is {MAX_COLUMNS}")

    def check_message(self, path, scope, message):
        if message.options.map_entry:
            return
        name = f"{scope}.{message.name}"
        self.named(path, "message", message.name, PASCAL)
        self.published.append(f"message {name}")
        for reserved in message.reserved_range:
            for number in range(reserved.start, reserved.end):
                self.published.append(f"reserved {name} {number}")
        self.published += [f"reserved {name} {text}" for text in message.reserved_name]
        for i, field in enumerate(message.field):
            self.check_field(path + [MESSAGE_FIELD, i], name, message, field)
        synthetic = {f.oneof_index for f in message.field if f.proto3_optional}
        for i, oneof in enumerate(message.oneof_decl):
            if i not in synthetic:
                self.named(path + [MESSAGE_ONEOF, i], "oneof", oneof.name, SNAKE)
        for i, nested in enumerate(message.nested_type):
            self.check_message(path + [MESSAGE_NESTED, i], name, nested)
        for i, enum in enumerate(message.enum_type):
            self.check_enum(path + [MESSAGE_ENUM, i], name, enum)

    def check_field(self, path, scope, message, field):
        self.named(path, "field", field.name, SNAKE)
        if field.type in UNSIGNED:
            self.rule(path, f"field {field.name} is {UNSIGNED[field.type]}; use a signed type")
        if field.type_name == ".google.protobuf.Timestamp" and not field.name.endswith("_time"):
            self.rule(path, f"Timestamp {field.name} does not end in _time")
        if field.type in NUMBERS:
            if re.search(r"_(ms|us|ns|millis|micros|nanos|secs|minutes|hours)$", field.name):
                self.rule(path, f"time {field.name} is a number; use google.protobuf.Duration")
            if field.name.startswith("num_"):
                self.rule(path, f"count {field.name} should end in _count")
        label = {Field.LABEL_REPEATED: "repeated", Field.LABEL_REQUIRED: "required"}.get(
            field.label, "optional" if field.proto3_optional else "single")
        kind = field.type_name.lstrip(".") or Field.Type.Name(field.type)[5:].lower()
        oneof = ""
        if field.HasField("oneof_index") and not field.proto3_optional:
            oneof = f" oneof={message.oneof_decl[field.oneof_index].name}"
        self.published.append(f"field {scope}.{field.name} {field.number} {label} {kind}{oneof}")

    def check_enum(self, path, scope, enum):
        self.named(path, "enum", enum.name, PASCAL)
        prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper() + "_"
        if enum.value[0].name != prefix + "UNSPECIFIED":
            self.rule(path, f"the first value of {enum.name} is not {prefix}UNSPECIFIED")
        for i, value in enumerate(enum.value):
            self.named(path + [2, i], "enum value", value.name, prefix + r"[A-Z0-9]+(_[A-Z0-9]+)*")
            self.published.append(f"value {scope}.{enum.name}.{value.name} {value.number}")

    def check_service(self, path, scope, service):
        self.named(path, "service", service.name, PASCAL)
        if not service.name.endswith("Service"):
            self.rule(path, f"service {service.name} does not end in Service")
        for i, method in enumerate(service.method):
            where = path + [2, i]
            self.named(where, "method", method.name, PASCAL)
            for got, suffix in ((method.input_type, "Request"), (method.output_type, "Response")):
                want = f".{scope}.{method.name}{suffix}"
                if got != want:
                    self.rule(where, f"method {method.name} uses {got[1:]}, not {want[1:]}")
            types = f" {method.input_type[1:]} {method.output_type[1:]}" * self.is_foreign
            self.published.append(
                f"method {scope}.{service.name}.{method.name}{types}"
                f"{' client-stream' * method.client_streaming}"
                f"{' server-stream' * method.server_streaming}")


def check_lists(files):
    """Every List method must be paged."""
    messages = {f"{file.package}.{m.name}": {f.name for f in m.field}
                for file in files for m in file.message_type}
    for file in files:
        for service in file.service:
            for method in service.method:
                if not method.name.startswith("List"):
                    continue
                for kind, want in (("Request", {"page_size", "page_token"}),
                                   ("Response", {"next_page_token"})):
                    missing = want - messages.get(f"{file.package}.{method.name}{kind}", set())
                    for field in sorted(missing):
                        yield f"proto/{file.name}:1: {method.name}{kind} has no {field}"


def load(root):
    """Returns the descriptors of every schema below `root`, including comments."""
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", "--include_source_info", "-I", str(root),
                        f"--descriptor_set_out={out.name}", *names], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes())
    return [file for file in files.file if file.name in names]


def check_page(page, lines):
    """Yields each `name = number` in a table of the API page that no field or enum value has. The page
    abbreviates enum values, such as `_EOS = 1`."""
    parts = [line.split(" ") for line in lines if line.startswith(("field quire.v1.", "value quire.v1."))]
    known = {(part[1].rsplit(".", 1)[1], part[2]) for part in parts}
    if not page.exists():
        return
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for name, tag in re.findall(r"`[^`]*?\b(\w+) = (\d+)`", line if line[:1] == "|" else ""):
            is_end = name.startswith("_")
            if not any(tag == value and (full == name or is_end and full.endswith(name))
                       for full, value in known):
                yield f"docs/{page.name}:{number}: no field or enum value of quire.v1 is `{name} = {tag}`"


def compare_published(old, new):
    """Yields the published elements that the new lines change or remove."""
    for line in sorted(old - new):
        kind, name, *rest = line.split(" ")
        if kind == "field":
            message, field = name.rsplit(".", 1)
            if {f"reserved {message} {rest[0]}", f"reserved {message} {field}"} <= new:
                continue  # removed, with number and name reserved
        yield f"published element changed or gone: {line}"


def check(root, write):
    files = load(root)
    errors, lines = [], set()
    for file in files:
        checker = Checker(file, root)
        checker.run()
        errors += checker.errors
        lines |= set(checker.published)
    errors += check_lists(files)
    errors += check_page(root.parent / "docs" / "api.md", lines)
    published = root / "published.txt"
    old = set(published.read_text(encoding="utf-8").splitlines()) if published.exists() else set()
    broken = list(compare_published(old, lines))
    errors += broken
    if write and not broken:
        published.write_text("".join(line + "\n" for line in sorted(lines)), encoding="utf-8")
    elif not write:
        errors += [f"not in {published.name}: {line} (add it with proto_check.py --write)"
                   for line in sorted(lines - old)]
    return errors, len(files)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, help="the folder of the schemas",
                        default=pathlib.Path(__file__).resolve().parents[2] / "proto")
    parser.add_argument("--write", action="store_true", help="publish added elements")
    arguments = parser.parse_args()
    errors, count = check(arguments.root, arguments.write)
    for error in errors:
        print(error)
    print(f"proto_check: {count} files, {len(errors)} violations")
    return 1 if errors or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
