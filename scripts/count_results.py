#!/usr/bin/env python3
"""Adds up test results: `count_results.py FAILED_STEPS FOLDER...`. Each folder has the results of one run.

A folder may contain ctest.xml (`ctest --output-junit`), one XML file per GoogleTest binary, and pytest.xml.
Each case counts once. Cases of a binary are read from its own file; a ctest test without such a file is one
case. If ctest reports a failure although all cases passed (a leak, a race, a crash at exit), that is one more
failure. FAILED_STEPS is the number of failed steps without results, which are added to the failures. Prints the
failures, then `N passed, N failed`. The exit status is 1 if a case failed or none passed.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def junit_cases(path):
    """Yields (name, state) of each case in a JUnit file; state is passed, failed or skipped."""
    for case in ElementTree.parse(path).iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        tags = {child.tag for child in case}
        skip = case.find("skipped")
        is_missing = skip is not None and "Unable to find" in skip.get("message", "")
        if tags & {"failure", "error"} or case.get("status") == "fail" or is_missing:
            yield name, "failed"
        elif "skipped" in tags or case.get("result") == "skipped" or case.get("status") == "notrun":
            yield name, "skipped"
        else:
            yield name, "passed"


def count_folder(folder):
    """Yields (name, state) of every case of one run."""
    binaries = {}
    for path in sorted(folder.glob("*.xml")):
        if path.name == "pytest.xml":
            yield from junit_cases(path)
        elif path.name != "ctest.xml":
            binaries[path.stem] = list(junit_cases(path))
    for cases in binaries.values():
        yield from cases
    if not (folder / "ctest.xml").exists():
        return
    for name, state in junit_cases(folder / "ctest.xml"):
        name = name.split(".")[-1]
        cases = binaries.get(name)
        if cases is None:
            yield name, state
        elif state == "failed" and all(case[1] != "failed" for case in cases):
            yield f"{name} (the process)", "failed"


def main():
    totals = {"passed": 0, "failed": int(sys.argv[1]), "skipped": 0}
    for folder in sys.argv[2:]:
        for name, state in count_folder(pathlib.Path(folder)):
            totals[state] += 1
            if state == "failed":
                print(f"FAILED {pathlib.Path(folder).name}: {name}")
    if totals["skipped"]:
        print(f"{totals['skipped']} skipped")
    print(f"{totals['passed']} passed, {totals['failed']} failed")
    return 1 if totals["failed"] or not totals["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
