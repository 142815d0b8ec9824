#!/usr/bin/env python3
"""Generates docs/reference/*.md and configs/default.yaml from the schemas.

    tools/docs/write_reference_docs.py            writes the files
    tools/docs/write_reference_docs.py --check    fails if a file is not up to date

Reads the text of proto/quire/**/*.proto, which follow one layout: a comment above every declaration, a field's
options after its number. Needs only Python.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"

FIELD = re.compile(
    r"^(?P<label>optional |repeated )?(?P<type>map<[\w., ]+>|[\w.]+) (?P<name>\w+) = (?P<number>\d+)"
    r"(?:\s*\[(?P<options>.*)\])?;$",
    re.S,
)
VALUE = re.compile(r"^(\w+) = (\d+);$")
RPC = re.compile(r"^rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\);$")
OPEN = re.compile(r"^(message|enum|service|oneof) (\w+) \{$")


class Item:
    """A declaration with its comment: message, enum, service, oneof, field, value or rpc."""

    def __init__(self, kind, name, comment, **facts):
        self.kind, self.name, self.comment, self.items = kind, name, comment, []
        self.__dict__.update(facts)


class ProtoFile:
    def __init__(self, path):
        self.path = path
        self.comment = ""
        self.items = []
        self._parse(path.read_text())

    def _parse(self, text):
        stack = [self]
        comment = []
        statement = ""
        for line in text.splitlines():
            line = line.strip()
            if line.startswith("//") and not statement:
                comment.append(line[2:].strip())
                continue
            if not line:
                if not self.comment and comment and len(stack) == 1:
                    self.comment = " ".join(comment)
                comment = [] if not statement else comment
                continue
            statement = (statement + " " + line).strip()
            if line == "}" and statement == "}":
                stack.pop()
            elif not statement.endswith((";", "{", "}")):
                continue
            else:
                self._declare(stack, statement, " ".join(comment))
            statement, comment = "", []

    def _declare(self, stack, statement, comment):
        if statement.startswith(("syntax", "package", "import")):
            if statement.startswith("syntax") and not self.comment:
                self.comment = comment
            return
        opened = OPEN.match(statement) or OPEN.match(statement.removesuffix("}").strip())
        if opened:
            item = Item(opened[1], opened[2], comment)
            stack[-1].items.append(item)
            if not statement.endswith("}"):
                stack.append(item)
            return
        rpc = RPC.match(statement)
        if rpc:
            stack[-1].items.append(
                Item("rpc", rpc[1], comment, request=(rpc[2] or "") + rpc[3], response=(rpc[4] or "") + rpc[5])
            )
            return
        field = FIELD.match(statement)
        if field:
            stack[-1].items.append(
                Item(
                    "field", field["name"], comment, label=(field["label"] or "").strip(), type=field["type"],
                    number=int(field["number"]), rule=parse_rule(field["options"] or ""),
                )
            )
            return
        value = VALUE.match(statement)
        if value:
            stack[-1].items.append(Item("value", value[1], comment, number=int(value[2])))
            return
        if statement.startswith("extend "):
            stack.append(Item("extend", "", ""))
            return
        raise SystemExit(f"{self.path}: cannot parse the statement: {statement}")


def parse_rule(options):
    """`(rule) = {default_value: "8" min: 1}` -> {"default_value": "8", "min": "1"}."""
    rule = {}
    for key, quoted, listed, plain in re.findall(
        r'(\w+): (?:"((?:[^"\\]|\\.)*)"|\[([^\]]*)\]|([\w.+-]+))', options
    ):
        rule[key] = quoted.replace('\\"', '"') if quoted or not (listed or plain) else listed or plain
    return rule


def load():
    files = {path.relative_to(PROTO).as_posix(): ProtoFile(path) for path in sorted(PROTO.glob("quire/**/*.proto"))}
    config = {name: file for name, file in files.items() if "/config/" in name}
    api = {name: file for name, file in files.items() if "/config/" not in name}
    return config, api


# --- configuration -------------------------------------------------------------------------------------------


class Key:
    def __init__(self, path, field, messages, enums):
        self.path, self.comment, self.rule = path, field.comment, field.rule
        self.type, self.label = field.type, field.label
        self.enum = enums.get(field.type)
        # For a list of groups: the keys of one group.
        entry = messages.get(field.type)
        self.keys = [Key(f"{path}[].{f.name}", f, messages, enums) for f in entry.items] if entry else []

    @property
    def default(self):
        value = self.rule.get("default_value", "")
        if value:
            return value
        if "required" in self.rule:
            return "required"
        if "absent_word" in self.rule:
            return self.rule["absent_word"]
        if self.label == "repeated":
            return "[]"
        return {"string": '""', "bool": "false"}.get(self.type, "0")

    @property
    def values(self):
        """Describes the legal values in words."""
        words = []
        if "absent_word" in self.rule:
            words.append(f"`{self.rule['absent_word']}`")
        if self.enum:
            prefix = self.enum.items[0].name.removesuffix("UNSPECIFIED")
            words.append(", ".join(f"`{v.name.removeprefix(prefix).lower()}`" for v in self.enum.items[1:]))
        elif self.type == "bool":
            words.append("`true`, `false`")
        elif "allowed" in self.rule:
            words.append(self.rule["allowed"])
        elif "min" in self.rule:
            low = ("above " if "exclusive_min" in self.rule else "") + self.number(self.rule["min"])
            words.append(f"{low} to {self.number(self.rule['max'])}")
        elif self.type == "string":
            words.append(f"text of at most {self.rule.get('max_length', '4096')} bytes")
        if self.keys:
            words.append("groups of " + ", ".join(f"`{key.path.rsplit('.', 1)[-1]}`" for key in self.keys))
        if self.label == "repeated":
            words.append(f"at most {self.rule.get('max_items', '64')} of them")
        return ", ".join(words)

    def number(self, text):
        value = float(text)
        if self.type == "google.protobuf.Duration":
            if value and value % 3600 == 0:
                return f"{value / 3600:.0f}h"
            return f"{value:.0f}s" if value == int(value) else f"{value * 1000:.0f}ms"
        if self.rule.get("unit") == "UNIT_BYTES":
            for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
                if value and value % factor == 0:
                    return f"{value / factor:.0f}{unit}"
        return text


def walk_config(config):
    """Yields ("section", path, comment) and ("key", path, Key), in the order of the schema."""
    messages, enums = {}, {}
    for file in config.values():
        for item in file.items:
            {"message": messages, "enum": enums}.get(item.kind, {})[item.name] = item

    def walk(message, prefix):
        for field in message.items:
            path = prefix + field.name
            if field.type in messages and field.label != "repeated":
                yield "section", path, field.comment
                yield from walk(messages[field.type], path + ".")
            else:
                yield "key", path, Key(path, field, messages, enums)

    return list(walk(messages["Config"], ""))


def wrap_comment(text, indent, width=100):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width - indent - 2:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [" " * indent + "# " + part for part in lines + ([line] if line else [])]


def default_yaml(config):
    lines = wrap_comment(
        "Every key with its default. Generated by tools/docs/write_reference_docs.py from proto/quire/config/v1; "
        "change it there. A file of your own needs only the keys that differ.",
        0,
    )
    for kind, path, item in walk_config(config):
        indent = 2 * path.count(".")
        name = path.rsplit(".", 1)[-1]
        if kind == "section":
            if indent == 0:
                lines.append("")
            lines += wrap_comment(item, indent)
            lines.append(" " * indent + name + ":")
        else:
            lines += wrap_comment(f"{item.comment} Values: {item.values.replace('`', '')}.", indent)
            lines.append(" " * indent + f"{name}: {item.default}")
    return "\n".join(lines) + "\n"


def config_page(config):
    lines = [
        "# Configuration keys",
        "",
        "For those who look up a key. After it they know its type, default, range, unit and effect.",
        "",
        "Generated from `proto/quire/config/v1` by `tools/docs/write_reference_docs.py`. How files, profiles, environment "
        "and command line are combined is in [config.md](../config.md). Keys with `hot` can be changed by a "
        "[reload](../config.md#reload), the others only by a restart.",
    ]
    opening = len(lines)
    head = ["| Key | Default | Values | | Meaning |", "|---|---|---|---|---|"]
    for kind, path, item in walk_config(config):
        if kind == "section":
            if "." not in path:
                lines += ["", f"## {path}", "", item, "", *head]
            continue
        if "." not in path and len(lines) == opening:
            lines += ["", "## Top level", "", *head]
        for key in [item, *item.keys]:
            hot = "hot" if key.rule.get("hot") == "true" else ""
            lines.append(f"| `{key.path}` | `{key.default}` | {key.values} | {hot} | {key.comment} |")
    return "\n".join(lines) + "\n"


# --- API -----------------------------------------------------------------------------------------------------


def api_page(api):
    lines = [
        "# API messages",
        "",
        "For those who write a client. After it they know every service, message and field, and its limits.",
        "",
        "Generated from `proto/quire/v1` by `tools/docs/write_reference_docs.py`. Rules, errors and the order of events are "
        "in [api.md](../api.md). Unsupported methods answer UNIMPLEMENTED / FEATURE_UNSUPPORTED.",
    ]
    for name, file in api.items():
        lines += ["", f"## {name}", "", file.comment]
        for item in file.items:
            lines += ["", f"### {item.kind} {item.name}", "", item.comment, ""]
            if item.kind == "service":
                lines += ["| Method | Request | Response | Meaning |", "|---|---|---|---|"]
                lines += [f"| `{r.name}` | `{r.request}` | `{r.response}` | {r.comment} |" for r in item.items]
            elif item.kind == "enum":
                lines += ["| Value | Number | Meaning |", "|---|---|---|"]
                lines += [f"| `{v.name}` | {v.number} | {v.comment} |" for v in item.items]
            elif item.items:
                lines += ["| Field | Type | Number | Meaning |", "|---|---|---|---|"]
                lines += [row for field in item.items for row in field_rows(field)]
            else:
                lines.pop()
    return "\n".join(lines) + "\n"


def field_rows(field):
    if field.kind == "oneof":
        rows = [f"| one of `{field.name}` | | | {field.comment} |"]
        return rows + [row for inner in field.items for row in field_rows(inner)]
    kind = f"{field.label} {field.type}".strip()
    return [f"| `{field.name}` | `{kind}` | {field.number} | {field.comment} |"]


def main():
    config, api = load()
    outputs = {
        ROOT / "configs/default.yaml": default_yaml(config),
        ROOT / "docs/reference/config.md": config_page(config),
        ROOT / "docs/reference/api.md": api_page(api),
    }
    if "--check" not in sys.argv[1:]:
        for path, text in outputs.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0
    stale = [path for path, text in outputs.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not up to date; run tools/docs/write_reference_docs.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
