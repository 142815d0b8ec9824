#!/usr/bin/env python3
"""What the compiled CUDA kernels must be, checked without a GPU.

From the reports of ptxas that cmake/nvcc_report.sh keeps beside the objects: no spill, no stack, registers and static
shared memory within kernels/cuda/resources.json, every kernel in that table and none that is gone, at most 104
kernels per architecture. With --cuobjdump also from machine code and PTX: the instructions that each unit must hold
are there, portable units carry PTX for later GPUs, and no kernel reads or writes local memory.

    tools/checks/cuda_gate.py build/ci                         the reports
    tools/checks/cuda_gate.py build/ci --cuobjdump PATH        and the machine code
    tools/checks/cuda_gate.py build/ci --update                writes the table from the reports

Exit status 1 with one line per violation.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

MAX_KERNELS = 104  # per architecture (kernels/cuda/README.md)
ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "kernels" / "cuda" / "resources.json"
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
# What an instruction of the machine code is in the PTX that portable units carry for later GPUs.
IN_PTX = {"HMMA": "mma.sync", "LDSM": "ldmatrix", "LDGSTS": "cp.async"}


def short_name(demangled):
    """`EmbeddingKernel<BF16>` for the whole signature."""
    text = re.sub(r"^(void|static void) ", "", demangled)
    text = text.replace("(anonymous namespace)::", "").replace("quire::", "")
    text = text.replace("kernels::", "").replace("cuda::", "")
    depth = 0
    for i, c in enumerate(text):
        if c == "<":
            depth += 1
        elif c == ">":
            depth -= 1
        elif c == "(" and depth == 0:
            return text[:i]
    return text


def demangle(names):
    if not names:
        return {}
    result = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                            check=True)
    return dict(zip(names, map(short_name, result.stdout.splitlines())))


def read_reports(build):
    """{unit: {(kernel, architecture): {registers, shared, stack, spills}}} of all objects."""
    units, names = {}, set()
    reports = sorted(build.glob("kernels/*/CMakeFiles/quire_kernels_*_gpu.dir/*.o.ptxas"))
    for report in reports:
        kernels, key = {}, None
        for line in report.read_text(encoding="utf-8", errors="replace").splitlines():
            if match := ENTRY.search(line):
                key = (match.group(1), match.group(2))
                names.add(key[0])
                kernels[key] = {"registers": None, "shared": 0, "stack": None, "spills": None}
            elif key and (match := FRAME.search(line)) and kernels[key]["stack"] is None:
                kernels[key]["stack"] = int(match.group(1))
                kernels[key]["spills"] = int(match.group(2)) + int(match.group(3))
            elif key and (match := USED.search(line)):
                kernels[key]["registers"] = int(match.group(1))
                shared = SHARED.search(line)
                kernels[key]["shared"] = int(shared.group(1)) if shared else 0
                key = None
        units[report.name.removesuffix(".o.ptxas")] = kernels
    plain = demangle(sorted(names))
    return {unit: {(plain[name], arch): use for (name, arch), use in kernels.items()}
            for unit, kernels in units.items()}


def update_table(units):
    old = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    table = {}
    for unit, kernels in sorted(units.items()):
        rows = {}
        for (name, arch), use in sorted(kernels.items()):
            rows.setdefault(name, {})[arch] = [use["registers"], use["shared"]]
        table[unit] = {"instructions": old.get(unit, {}).get("instructions", []), "kernels": rows}
    text = json.dumps(table, indent=1)
    # Lists on one line.
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: f"[{re.sub(chr(10) + ' *', ' ', m[1])}]", text)
    TABLE.write_text(text + "\n", encoding="utf-8")


def check_reports(units, table):
    errors, counts, checks = [], {}, 0
    for unit, kernels in units.items():
        rows = table.get(unit, {}).get("kernels", {})
        if unit not in table:
            errors.append(f"{unit}: not in {TABLE.name}")
        for (name, arch), use in kernels.items():
            where = f"{unit}: {name} for {arch}"
            checks += 1
            counts[arch] = counts.get(arch, 0) + 1
            if use["registers"] is None or use["stack"] is None:
                errors.append(f"{where}: ptxas reported nothing")
                continue
            if use["stack"] or use["spills"]:
                errors.append(f"{where}: {use['stack']} bytes of stack, {use['spills']} of spills")
            limit = rows.get(name, {}).get(arch)
            if limit is None:
                errors.append(f"{where}: not in {TABLE.name}")
            elif use["registers"] > limit[0] or use["shared"] > limit[1]:
                errors.append(f"{where}: {use['registers']} registers and {use['shared']} bytes of "
                              f"shared memory, the table allows {limit[0]} and {limit[1]}")
        for name, archs in rows.items():
            for arch in archs:
                if (name, arch) not in kernels:
                    errors.append(f"{unit}: {name} for {arch} is in the table but not compiled")
    for unit in table:
        if unit not in units:
            errors.append(f"{unit}: in the table but not compiled")
    for arch, count in sorted(counts.items()):
        if count > MAX_KERNELS:
            errors.append(f"{count} kernels for {arch}, at most {MAX_KERNELS}")
    return errors, checks, counts


def check_code(build, table, cuobjdump):
    """The machine code: what must be there, and local memory, which must not."""
    errors, checks = [], 0
    for unit, row in table.items():
        found = list(build.glob(f"kernels/*/CMakeFiles/quire_kernels_*_gpu.dir/{unit}.o"))
        if not found:
            errors.append(f"{unit}: no object")
            continue
        code = subprocess.run([cuobjdump, "-sass", str(found[0])], capture_output=True, text=True,
                              check=True).stdout
        if "Function :" not in code:
            errors.append(f"{unit}: {cuobjdump} shows no machine code")
            continue
        for instruction in row["instructions"]:
            checks += 1
            if not re.search(rf"\b{instruction}\b", code):
                errors.append(f"{unit}: no {instruction} in the machine code")
        ptx = subprocess.run([cuobjdump, "-ptx", str(found[0])], capture_output=True, text=True,
                             check=True).stdout
        if ".version" in ptx:
            for instruction in filter(IN_PTX.get, row["instructions"]):
                checks += 1
                if IN_PTX[instruction] not in ptx:
                    errors.append(f"{unit}: no {IN_PTX[instruction]} in the PTX")
        elif "_sm90" not in unit:
            errors.append(f"{unit}: no PTX, later GPUs cannot run it")
        for instruction in ("LDL", "STL"):
            checks += 1
            if re.search(rf"\b{instruction}\b", code):
                errors.append(f"{unit}: {instruction}, local memory, in the machine code")
    return errors, checks


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--cuobjdump")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    units = read_reports(args.build)
    if not units:
        print(f"{args.build}: no reports of ptxas; was it built with CUDA?")
        return 1
    if args.update:
        update_table(units)
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    errors, checks, counts = check_reports(units, table)
    if args.cuobjdump:
        more, code_checks = check_code(args.build, table, args.cuobjdump)
        errors += more
        checks += code_checks
    for error in errors:
        print(error)
    kernels = ", ".join(f"{count} for {arch}" for arch, count in sorted(counts.items()))
    print(f"{checks} checks, {len(errors)} failed; kernels: {kernels}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
