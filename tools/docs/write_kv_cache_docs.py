#!/usr/bin/env python3
"""Writes docs/kv_cache.md and the compile-time check of the KV cache's reference members.

Both come from one table, tests/testdata/kv_cache/members.json: every member of the five reference
documents, its place in quire or the reason why it is absent, and C++ that proves it.

    tools/docs/write_kv_cache_docs.py                 write docs/kv_cache.md from docs/kv_cache.in.md
    tools/docs/write_kv_cache_docs.py --check         fail when docs/kv_cache.md is not what would be written
    tools/docs/write_kv_cache_docs.py --source FILE   write the C++ source whose compilation is the check
"""
import argparse
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "tests/testdata/kv_cache/members.json")
TEMPLATE = os.path.join(ROOT, "docs/kv_cache.in.md")
DOCUMENT = os.path.join(ROOT, "docs/kv_cache.md")
MARKER = "<!-- members -->\n"
KINDS = ("parameter", "field", "trait", "constant", "method", "argument")


def used_names(check):
    """Names that a check asks of its type."""
    text = check.get("requires", "") + check.get("lacks", "") + check.get("that", "")
    return set(re.findall(r"(?:\bc\.(?:template )?|::)(\w+)", text))


def table_errors(table):
    """What is wrong with the table itself: a row without proof, or an absence that proves nothing."""
    errors = []
    present = set()
    counts = {document: set() for document in table["documents"]}
    for row in table["members"]:
        counts[row["document"]].add((row["kind"], row["member"]))
        if row["status"] == "present":
            for check in row["checks"]:
                if "lacks" not in check:
                    present |= used_names(check)
    for document, members in counts.items():
        if len(members) != table["member_counts"][document]:
            errors.append("%s has %d members, member_counts says %d" % (
                document, len(members), table["member_counts"][document]))
    for row in table["members"]:
        name = "%s.%s" % (row["document"], row["member"])
        proofs = {key for check in row["checks"] for key in check if key != "types"}
        if row["kind"] not in KINDS or row["status"] not in ("present", "absent"):
            errors.append("%s: unknown kind or status" % name)
        if row["status"] == "present" and not proofs & {"requires", "that"}:
            errors.append("%s is present without a check" % name)
        if row["status"] == "absent" and (not row.get("note") or not proofs & {"lacks", "no_member"}):
            errors.append("%s is absent without a reason or a negative check" % name)
        for check in row["checks"]:
            unknown = used_names(check) - present if "lacks" in check else set()
            if unknown:
                errors.append("%s: nothing has %s, so its absence proves nothing" % (
                    name, ", ".join(sorted(unknown))))
    return errors


def markdown(table):
    lines = []
    for key, document in table["documents"].items():
        rows = [r for r in table["members"] if r["document"] == key]
        lines += ["### %s: %s" % (key, document), "",
                  "| Kind | Member | quire | Note |", "|---|---|---|---|"]
        for row in rows:
            note = row.get("note", "")
            where = "absent" if row["status"] == "absent" else "`%s`" % row["quire"]
            if row.get("case"):
                where += " (%s)" % row["case"]
            lines.append("| %s | `%s` | %s | %s |" % (row["kind"], row["member"], where, note))
        lines.append("")
    return "\n".join(lines)


def document_text(table):
    with open(TEMPLATE, encoding="utf-8") as template:
        text = template.read()
    if text.count(MARKER) != 1:
        sys.exit("docs/kv_cache.in.md must hold %r once" % MARKER.strip())
    banner = "<!-- Written by tools/docs/write_kv_cache_docs.py from docs/kv_cache.in.md and " \
             "tests/testdata/kv_cache/members.json. -->\n"
    return banner + text.replace(MARKER, markdown(table))


PROLOGUE = """// Written by tools/docs/write_kv_cache_docs.py; compiling it is the check.

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cache_manager/views/kv_cache_concepts.h"
#include "kernels/cuda/tma_descriptor.h"

namespace quire::cache {
namespace {

"""
PROBE = """// A name is missing from C when it is not ambiguous in a class that inherits it from elsewhere too.
struct Row_probe_name {
  int row_idx;
};
template <typename C>
struct Row_probe : C, Row_probe_name {};
template <typename C>
concept Row_probe_missing = requires { &Row_probe<C>::row_idx; };
static_assert(!Row_probe_missing<Paged>, "the probe for absent names does not see row_idx");

"""


def check_source(identifier, label, check):
    """C++ of one check of one row."""
    message = json.dumps(label)
    if "that" in check:
        return "static_assert(%s, %s);\n" % (check["that"], message)
    if "no_member" in check:
        name = check["no_member"]
        text = "struct %s_name {\n  int %s;\n};\n" % (identifier, name)
        text += "template <typename C>\nstruct %s_probe : C, %s_name {};\n" % (identifier, identifier)
        text += "template <typename C>\nconcept %s = requires { &%s_probe<C>::%s; };\n" % (
            identifier, identifier, name)
        wanted = ""
    else:
        body = check.get("requires", check.get("lacks"))
        text = ("template <typename C>\nconcept %s = requires([[maybe_unused]] const C& c, "
                "[[maybe_unused]] std::uint32_t u, [[maybe_unused]] std::int32_t i) {\n  %s\n};\n" % (
                    identifier, body))
        wanted = "!" if "lacks" in check else ""
    for name in check["types"]:
        text += "static_assert(%s%s<%s>, %s);\n" % (wanted, identifier, name, message)
    return text


def source_text(table):
    text = PROLOGUE
    for alias, cpp in table["types"].items():
        text += "using %s = %s;\n" % (alias, cpp)
    text += "\n" + PROBE
    for number, row in enumerate(table["members"]):
        label = "%s.%s (%s)" % (table["documents"][row["document"]], row["member"], row["status"])
        for part, check in enumerate(row["checks"]):
            text += check_source("Row_%d_%d" % (number, part), label, check)
    text += "\n}  // namespace\n\n// Rows that this source proves.\n"
    text += "extern const int kKvMemberRows;\nconst int kKvMemberRows = %d;\n" % len(table["members"])
    return text + "\n}  // namespace quire::cache\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--source", metavar="FILE")
    arguments = parser.parse_args()
    with open(TABLE, encoding="utf-8") as file:
        table = json.load(file)
    errors = table_errors(table)
    if errors:
        sys.exit("\n".join(errors))
    if arguments.source:
        with open(arguments.source, "w", encoding="utf-8") as file:
            file.write(source_text(table))
        return
    text = document_text(table)
    if arguments.check:
        with open(DOCUMENT, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit("docs/kv_cache.md is out of date; run tools/docs/write_kv_cache_docs.py")
        print("docs/kv_cache.md is up to date: %d rows" % len(table["members"]))
        return
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
