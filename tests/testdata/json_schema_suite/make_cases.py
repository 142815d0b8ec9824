"""Writes cases.jsonl.xz and LICENSE here out of the JSON-Schema-Test-Suite, which the source distribution of jsonschema holds:

    pip download --no-deps --no-binary jsonschema jsonschema==4.26.0 && tar -xzf jsonschema-4.26.0.tar.gz
    /usr/bin/python3 tests/testdata/json_schema_suite/make_cases.py jsonschema-4.26.0/json

A line is one schema: [file, what it is about, schema, [[instance, whether it is valid], ...]]. Schemas of drafts that are
read only where `$schema` says so carry it.
"""

import json
import lzma
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
DRAFTS = {"draft2020-12": None, "draft2019-09": None, "draft7": "http://json-schema.org/draft-07/schema#",
          "draft4": "http://json-schema.org/draft-04/schema#"}


def main(suite):
    lines = []
    for draft, dialect in DRAFTS.items():
        for path in sorted((suite / "tests" / draft).rglob("*.json")):
            for group in json.loads(path.read_text()):
                schema = group["schema"]
                if dialect and isinstance(schema, dict):
                    schema = {"$schema": dialect, **schema}
                instances = [[test["data"], test["valid"]] for test in group["tests"]]
                case = [str(path.relative_to(suite / "tests")), group["description"], schema, instances]
                lines.append(json.dumps(case, separators=(",", ":")) + "\n")
    (HERE / "cases.jsonl.xz").write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    shutil.copyfile(suite / "LICENSE", HERE / "LICENSE")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
