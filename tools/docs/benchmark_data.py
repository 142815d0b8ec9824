"""Reads and validates the measurements of docs/benchmarks/*.json. The format of a file is:

    {"title": ..., "measurements": [{
       "id": ..., "title": ..., "machine": ..., "date": "2026-11-23 10:06 to 10:11 UTC",
       "versions": {"quire": ..., ...},     of all measured programs
       "commands": [...],                   or "program": the measuring program, if there is no command
       "method": ...,                       metrics, repetitions, other load
       "notes": [...],                      optional
       "columns": [...], "rows": [[...]]}]}

A value of a row is a number, a text or null (not measured).
"""

import json
import re

TEXTS = ("id", "title", "machine", "date", "method")
OTHERS = ("versions", "commands", "program", "notes", "columns", "rows")


def texts(value):
    """Returns whether this is a non-empty list of non-empty texts."""
    return isinstance(value, list) and bool(value) and all(
        isinstance(text, str) and text.strip() for text in value)


def measurement_faults(measurement):
    """Yields the errors of one measurement."""
    for key in TEXTS:
        if not isinstance(measurement.get(key), str) or not measurement[key].strip():
            yield f"{key} is missing or not a text"
    if not re.match(r"\d{4}-\d\d-\d\d\b", str(measurement.get("date"))):
        yield "date does not begin with YYYY-MM-DD"
    for key in measurement.keys() - {*TEXTS, *OTHERS}:
        yield f"{key} is not a field of a measurement"
    versions = measurement.get("versions")
    if not isinstance(versions, dict) or not versions.get("quire"):
        yield "versions does not contain quire"
    if ("commands" in measurement) == ("program" in measurement):
        yield "exactly one of commands and program is required"
    for key in ("commands", "notes", "columns"):
        if key in measurement and not texts(measurement[key]):
            yield f"{key} is not a list of texts"
    if "program" in measurement and not texts([measurement["program"]]):
        yield "program is not a text"
    columns, rows = measurement.get("columns") or [], measurement.get("rows")
    if len(set(columns)) != len(columns) or not columns:
        yield "columns are missing or not distinct"
    if not isinstance(rows, list) or not rows:
        yield "there are no rows"
        return
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or len(row) != len(columns):
            yield f"row {number} does not have {len(columns)} values, one per column"
        elif not all(value is None or type(value) in (str, int, float) for value in row):
            yield f"row {number} has a value that is not a number, a text or null"


def faults(name, document):
    """Yields the errors of a file as `name: id: message`."""
    if not isinstance(document, dict) or document.keys() != {"title", "measurements"}:
        yield f"{name}: not an object of title and measurements"
        return
    seen = set()
    for index, measurement in enumerate(document["measurements"]):
        identity = measurement.get("id", f"measurement {index + 1}")
        if identity in seen:
            yield f"{name}: {identity}: the id is used twice"
        seen.add(identity)
        for fault in measurement_faults(measurement):
            yield f"{name}: {identity}: {fault}"


class Data:
    """All measurements of a folder, by file and id. Reading a missing row is an error."""

    def __init__(self, folder):
        self.measurements, self.faults = {}, []
        for path in sorted(folder.glob("*.json")):
            document = json.loads(path.read_text(encoding="utf-8"))
            found = list(faults(path.name, document))
            self.faults += found
            for measurement in () if found else document["measurements"]:
                self.measurements[path.stem, measurement["id"]] = measurement

    def row(self, file, identity, **wanted):
        """Returns the only row with these values, as {column: value}."""
        measurement = self.measurements.get((file, identity))
        if measurement is None:
            raise SystemExit(f"docs/benchmarks/{file}.json: no measurement {identity}")
        rows = [dict(zip(measurement["columns"], row)) for row in measurement["rows"]]
        found = [row for row in rows if all(row.get(key) == wanted[key] for key in wanted)]
        if len(found) != 1:
            raise SystemExit(
                f"docs/benchmarks/{file}.json: {identity}: {len(found)} rows with {wanted}, not 1")
        return found[0]
