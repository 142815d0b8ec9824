#!/usr/bin/env python3
"""Checks the compiled CUDA kernels without a GPU.

The ptxas reports, which cmake/nvcc_report.sh stores next to the objects, must show:
  - no spills and no stack
  - registers and static shared memory within kernels/cuda/resources.json, and exactly the kernels of that table
  - at most 120 kernels per architecture
  - machine code in each object
The hashes of the machine code (code_hashes.py) go to kernel_hashes.json in the build folder. The gate prints how many
of these kernels have passed on a GPU.
With --cuobjdump, the machine code and PTX must show:
  - the required instructions of each unit, and PTX for later GPUs in portable units
  - no local memory
  - the instruction counts of the table in the inner loops of products and attention (machine_code.py)
  - kernel arguments of the same sizes as on the host (kernel_arguments.py)

    tools/checks/cuda_gate.py build/ci                         checks the reports
    tools/checks/cuda_gate.py build/ci --cuobjdump PATH        also checks the machine code
    tools/checks/cuda_gate.py build/ci --update                writes the table from the reports
    tools/checks/cuda_gate.py build/ci --update --cuobjdump PATH    also takes the loops of the table from the machine code

Exit status 1 with one line per violation.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "gpu_run"))
import code_hashes  # noqa: E402
import kernel_arguments  # noqa: E402
import machine_code  # noqa: E402

MAX_KERNELS = 120  # per architecture (kernels/cuda/README.md)
TABLE = ROOT / "kernels" / "cuda" / "resources.json"
RUNS = ROOT / "docs" / "benchmarks"
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
# The PTX equivalents of machine instructions, to check the PTX of portable units.
IN_PTX = {"HMMA": "mma.sync", "LDSM": "ldmatrix", "LDGSTS": "cp.async"}


def short_name(demangled):
    """Returns a short name such as `EmbeddingKernel<BF16>` for the whole signature."""
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
    """Returns {unit: {(kernel, architecture): {registers, shared, stack, spills}}} of all objects."""
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


def update_table(units, loops):
    """Writes the table. `loops` comes from count_loops, or is None if the machine code was not read."""
    old = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    table = {}
    for unit, kernels in sorted(units.items()):
        rows = {}
        for (name, arch), use in sorted(kernels.items()):
            rows.setdefault(name, {})[arch] = [use["registers"], use["shared"]]
        table[unit] = {"instructions": old.get(unit, {}).get("instructions", []), "kernels": rows}
        tiles = {name: row for name, row in old.get(unit, {}).get("loops", {}).items() if name in rows}
        for name, row in tiles.items():
            counted = {} if loops is None else loops.get(unit, {}).get(name, {})
            if counted:
                row["instructions_per_tile"] = {arch: counts for arch, (counts, _, _) in counted.items()}
                row["instructions_per_byte"] = {arch: rate for arch, (_, rate, _) in counted.items()}
                if "beside" in row:
                    row["beside"]["instructions_per_tile"] = {arch: beside for arch, (_, _, beside) in counted.items()}
        if tiles:
            table[unit]["loops"] = dict(sorted(tiles.items()))
    text = json.dumps(table, indent=1)
    # Puts innermost lists and objects on one line.
    text = re.sub(r"([\[{])\s+([^\[\]{}]*?)\s+([\]}])",
                  lambda m: m[1] + re.sub(r"\n *", " ", m[2]) + m[3], text)
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
                errors.append(f"{where}: uses {use['stack']} bytes of stack and {use['spills']} of spills")
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
            errors.append(f"{count} kernels for {arch}, at most {MAX_KERNELS} are allowed")
    return errors, checks, counts


def disassemble(build, unit, cuobjdump):
    """Returns the listing of a unit's object, or an empty text if there is none."""
    found = list(build.glob(f"kernels/*/CMakeFiles/quire_kernels_*_gpu.dir/{unit}.o"))
    if not found:
        return ""
    return subprocess.run([cuobjdump, "-sass", str(found[0])], capture_output=True, text=True, check=True).stdout


def count_loop(code, row):
    """Returns (instructions per tile by class, instructions of the thread block per byte, result of count_beside). Returns
    None for a kernel without products. Raises CodeError for unreadable code."""
    graph = machine_code.Graph(code)
    found = machine_code.work_loop(graph)
    if found is None:
        return None
    loop, work = found
    counts = graph.iteration(loop, work, row.get("trips", 1), row.get("loads"))
    result = machine_code.by_class(counts)
    size = row["tile_bytes"] if "tile_bytes" in row else row["bytes_per_product"] * counts["FFMA"]
    return result, round(result["all"] * row["warps"] / size, 4), count_beside(graph, row)


def count_beside(graph, row):
    """Returns the instructions per tile of the warps without products (row["beside"]), or None without such warps."""
    if "beside" not in row:
        return None
    found = machine_code.loop_without_products(graph, row["beside"]["opcode"])
    if found is None:
        raise machine_code.CodeError(f"no loop with {row['beside']['opcode']} in the warps without products")
    loop, work = found
    beside = row["beside"]
    return machine_code.by_class(graph.iteration(loop, work, beside.get("trips", 1), beside.get("loads")))


def count_loops(listing, rows):
    """Returns {kernel: {architecture: result of count_loop}} of the kernels that have a row, and errors."""
    result, errors = {}, []
    try:
        kernels = machine_code.functions(listing)
    except machine_code.CodeError as error:
        return {}, [str(error)]
    plain = demangle(sorted({name for name, _ in kernels}))
    for (mangled, arch), code in sorted(kernels.items()):
        name = plain[mangled]
        has_products = any(machine_code.CLASS_OF.get(i.opcode) == "tensor" for i in code)
        if name not in rows:
            if has_products:
                errors.append(f"{name} for {arch}: uses tensor cores, but {TABLE.name} has no loop for it")
            continue
        try:
            counted = count_loop(code, rows[name])
        except machine_code.CodeError as error:
            errors.append(f"{name} for {arch}: {error}")
            continue
        if counted is None:
            errors.append(f"{name} for {arch}: no loop with products")
        else:
            result.setdefault(name, {})[arch] = counted
    return result, errors


def changes(counts, table):
    return "; ".join(f"{kind} {counts.get(kind, 0)}, the table has {table.get(kind, 0)}"
                     for kind in sorted(counts.keys() | table.keys()) if counts.get(kind, 0) != table.get(kind, 0))


def compare_loops(unit, counted, rows):
    """Returns errors for changed, missing and additional loops, because predictions depend on the counts."""
    errors, checks = [], 0
    for name, row in rows.items():
        table = row.get("instructions_per_tile", {})
        for arch in sorted(set(table) | set(counted.get(name, {}))):
            where = f"{unit}: loop of {name} for {arch}"
            checks += 1
            if arch not in table or arch not in counted.get(name, {}):
                errors.append(f"{where}: only in the {'table' if arch in table else 'machine code'}")
                continue
            counts, rate, beside = counted[name][arch]
            if changed := changes(counts, table[arch]):
                errors.append(f"{where}: instructions per tile: {changed}")
            elif beside and (changed := changes(beside, row["beside"].get("instructions_per_tile", {}).get(arch, {}))):
                errors.append(f"{where}: instructions per tile of warps without products: {changed}")
            elif rate != row.get("instructions_per_byte", {}).get(arch):
                errors.append(f"{where}: {rate} instructions per byte, the table has another number")
    return errors, checks


def check_code(build, table, cuobjdump):
    """Checks the machine code: required instructions, local memory and lengths of loops."""
    errors, checks = [], 0
    for unit, row in table.items():
        if not row["kernels"]:
            continue  # has no kernels of its own
        code = disassemble(build, unit, cuobjdump)
        if "Function :" not in code:
            errors.append(f"{unit}: {cuobjdump} shows no machine code of an object")
            continue
        for instruction in row["instructions"]:
            checks += 1
            if not re.search(rf"\b{instruction}\b", code):
                errors.append(f"{unit}: no {instruction} in the machine code")
        ptx_checks, ptx_errors = check_ptx(build, unit, row["instructions"], cuobjdump)
        checks += ptx_checks
        errors += ptx_errors
        for instruction in ("LDL", "STL"):
            checks += 1
            if re.search(rf"\b{instruction}\b", code):
                errors.append(f"{unit}: {instruction} in the machine code, so it uses local memory")
        counted, unread = count_loops(code, row.get("loops", {}))
        errors += [f"{unit}: {error}" for error in unread]
        grown, compared = compare_loops(unit, counted, row.get("loops", {}))
        errors += grown
        checks += compared
    return errors, checks


def hash_code(build, units):
    """Returns {unit: {kernel: {architecture: hash}}} of the units whose object exists, and errors for kernels without code."""
    result, errors = {}, []
    for unit, kernels in units.items():
        found = next(build.glob(f"kernels/*/CMakeFiles/quire_kernels_*_gpu.dir/{unit}.o"), None)
        if found is None:
            continue
        try:
            hashes = code_hashes.hashes(found.read_bytes())
        except code_hashes.CodeError as error:
            errors.append(f"{unit}: {error}")
            continue
        plain = demangle(sorted({name for name, _ in hashes}))
        named = {(plain[name], f"sm_{capability}"): value for (name, capability), value in hashes.items()}
        for name, arch in kernels:
            value = named.get((name, arch.removesuffix("a")))
            if value:
                result.setdefault(unit, {}).setdefault(name, {})[arch] = value
            else:
                errors.append(f"{unit}: {name} for {arch}: no machine code in the object")
    return result, errors


def passed_hashes(folder):
    """Returns {hash: machine} of the kernels that passed in the GPU runs of docs/benchmarks (gpu_report.py)."""
    passed = {}
    for path in sorted(folder.glob("*.json")):
        for part in json.loads(path.read_text(encoding="utf-8")).get("measurements", []):
            if part["id"] == "code":
                passed.update({row[2]: part["machine"] for row in part["rows"] if row[3] == "passed"})
    return passed


def show_hashes(build, hashes):
    """Records the hashes in the build folder and returns one line about those that passed on a GPU."""
    (build / "kernel_hashes.json").write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    passed = passed_hashes(RUNS)
    found = [value for kernels in hashes.values() for archs in kernels.values() for value in archs.values()]
    return f"machine code: {len(found)} hashes, {sum(value in passed for value in found)} of them passed on a GPU"


def check_arguments(build, units, cuobjdump):
    errors, checks = [], 0
    for unit, kernels in units.items():
        if kernels:
            found = next(build.glob(f"kernels/*/CMakeFiles/quire_kernels_*_gpu.dir/{unit}.o"))
            errors += kernel_arguments.check(unit, found, cuobjdump, len(kernels))
            checks += len(kernels)
    return errors, checks


def check_ptx(build, unit, instructions, cuobjdump):
    found = next(build.glob(f"kernels/*/CMakeFiles/quire_kernels_*_gpu.dir/{unit}.o"))
    ptx = subprocess.run([cuobjdump, "-ptx", str(found)], capture_output=True, text=True, check=True).stdout
    if ".version" not in ptx:
        return 0, [] if "_sm90" in unit else [f"{unit}: no PTX, later GPUs cannot run it"]
    wanted = [IN_PTX[instruction] for instruction in instructions if instruction in IN_PTX]
    return len(wanted), [f"{unit}: no {text} in the PTX" for text in wanted if text not in ptx]


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
        loops = None
        if args.cuobjdump:
            old = json.loads(TABLE.read_text(encoding="utf-8"))
            loops = {unit: count_loops(disassemble(args.build, unit, args.cuobjdump), row["loops"])[0]
                     for unit, row in old.items() if "loops" in row}
        update_table(units, loops)
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    errors, checks, counts = check_reports(units, table)
    hashes, hash_errors = hash_code(args.build, units)
    errors += hash_errors
    if args.cuobjdump:
        for code_errors, code_checks in (check_code(args.build, table, args.cuobjdump),
                                         check_arguments(args.build, units, args.cuobjdump)):
            errors += code_errors
            checks += code_checks
    for error in errors:
        print(error)
    kernels = ", ".join(f"{count} for {arch}" for arch, count in sorted(counts.items()))
    if hashes:
        print(show_hashes(args.build, hashes))
    print(f"{checks} checks, {len(errors)} failed; kernels: {kernels}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
