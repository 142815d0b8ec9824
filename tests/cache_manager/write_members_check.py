#!/usr/bin/env python3
"""Writes the C++ source whose compilation checks the KV cache against its reference documents.

    write_members_check.py FILE

The table tests/testdata/kv_cache/members.json has a row for every member of the reference documents:
its name in quire or the reason for its absence, and C++ that proves either.
"""
import argparse
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "tests/testdata/kv_cache/members.json")
KINDS = ("parameter", "field", "trait", "constant", "method", "argument")


def used_names(check):
    """Returns the names that a check requires of its type."""
    text = check.get("requires", "") + check.get("lacks", "") + check.get("that", "")
    return set(re.findall(r"(?:\bc\.(?:template )?|::)(\w+)", text))


def table_errors(table):
    """Returns the errors of the table itself: rows without proof, or absences that prove nothing."""
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


PROLOGUE = """// Written by tests/cache_manager/write_members_check.py; compiling it is the check.

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/kv_cache_concepts.h"
#include "cache_manager/views/reference/kv_continuous_collection.h"
#include "cache_manager/views/reference/kv_mha_operand.h"
#include "cache_manager/views/reference/tma_reference_source.h"
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
    """Returns the C++ of one check of one row."""
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
    parser.add_argument("file")
    arguments = parser.parse_args()
    with open(TABLE, encoding="utf-8") as file:
        table = json.load(file)
    errors = table_errors(table)
    if errors:
        sys.exit("\n".join(errors))
    with open(arguments.file, "w", encoding="utf-8") as file:
        file.write(source_text(table))


if __name__ == "__main__":
    main()
