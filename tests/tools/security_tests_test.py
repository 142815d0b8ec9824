"""Every line of the threat model in SECURITY.md has an attack in docs/security_tests.md, and every attack there names
tests that exist."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def rows(text):
    """The cells of each row whose first cell is a number."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0].isdigit():
            found.append(cells)
    return found


def missing(name, functions, files):
    """What of `file.py::test`, `test`, `test.cc`, `test.py` or `tests/folder` does not exist."""
    file, _, function = name.rpartition("::") if "::" in name else (name, "", "")
    if re.fullmatch(r"test_\w+", file):
        file, function = "", file
    if file and file not in files:
        return file
    return function if function and function not in functions else None


def problems(threats, attacks, functions, files):
    numbers = {cells[0] for cells in rows(threats)}
    found = []
    tried = set()
    for cells in rows(attacks):
        tried.add(cells[0])
        names = re.findall(r"`([^`]+)`", cells[-1])
        if cells[0] not in numbers:
            found.append(f"{cells[0]} is no line of the threat model")
        if not names:
            found.append(f"no test: {cells[1]}")
        found += [f"{cells[1]}: there is no {lost}" for name in names if (lost := missing(name, functions, files))]
    return found + [f"nothing tries {number}" for number in sorted(numbers - tried, key=int)]


class SecurityTestsTest(unittest.TestCase):
    def test_attacks_are_tests(self):
        tests = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".cc", ".py")]
        functions = set()
        for path in tests:
            functions |= set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
        files = {path.name for path in tests}
        files |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").iterdir() if path.is_dir()}
        threats = (ROOT / "SECURITY.md").read_text()
        attacks = (ROOT / "docs" / "security_tests.md").read_text()
        self.assertGreater(len(rows(threats)), 10)
        self.assertGreater(len(rows(attacks)), 40)
        self.assertEqual(problems(threats, attacks, functions, files), [])

    def test_what_is_missing_is_found(self):
        threats = "| # | Who |\n|---|---|\n| 1 | a |\n| 2 | b |\n| 3 | c |\n"
        attacks = ("| 1 | x | ok | `a.py::test_x`, `y.cc` |\n| 2 | y | ok | `test_none` |\n| 2 | z | ok | `b.py` |\n"
                   "| 4 | v | ok | - |\n")
        self.assertEqual(problems(threats, attacks, {"test_x"}, {"a.py", "y.cc"}),
                         ["y: there is no test_none", "z: there is no b.py", "4 is no line of the threat model",
                          "no test: v", "nothing tries 3"])


if __name__ == "__main__":
    unittest.main()
