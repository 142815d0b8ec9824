"""Checks schemas against the JSON-Schema-Test-Suite, and the documents that random walks write against jsonschema.

A longer run with another seed:
    QUIRE_SCHEMAS=500 QUIRE_WALKS=200 QUIRE_SEED=2 build/venv/bin/python -m pytest tests/e2e/test_schemas.py -k walks -s
"""

import collections
import decimal
import itertools
import json
import os
import random

import jsonschema
import pytest
from daemon import TESTDATA, has_structured_output, probe

pytestmark = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")

SUITE = TESTDATA / "json_schema_suite" / "cases.jsonl"
MAX_ORDERS = 1000  # maximum number of key orders per instance
MAX_EXACT = 2**53  # an integer up to here has one spelling with a zero fraction
NO_VALUE = "no value is valid"
# Files of the suite whose keywords assert there and are annotations here.
ANNOTATIONS = ["format.json", "optional/content.json", "optional/format/regex.json", "optional/format/ecmascript-regex.json"]

# Counts per draft: schemas enforced and refused, instances accepted and rejected as the suite expects, and valid
# instances that docs/structured_output.md excludes.
SUITE_COUNTS = {
    "draft2020-12": {"enforced": 248, "refused": 169, "accepted": 676, "rejected": 520, "left out": 56},
    "draft2019-09": {"enforced": 254, "refused": 154, "accepted": 682, "rejected": 520, "left out": 51},
    "draft7": {"enforced": 205, "refused": 85, "accepted": 560, "rejected": 464, "left out": 50},
    "draft4": {"enforced": 149, "refused": 43, "accepted": 360, "rejected": 296, "left out": 12},
}


@pytest.fixture(scope="module")
def ask():
    with probe("schema_probe") as asks:
        yield lambda schema, texts=(), walks=0, seed=0: asks(
            schema=json.dumps(schema), texts=list(texts), walks=walks, seed=seed)


def forms(value, spellings):
    """Yields the value with its keys in every order and, if `spellings`, whole numbers with and without a fraction."""
    if isinstance(value, list):
        return map(list, itertools.product(*(forms(item, spellings) for item in value)))
    if isinstance(value, dict):
        return (dict(zip(names, members))
                for names in itertools.permutations(value)
                for members in itertools.product(*(forms(value[name], spellings) for name in names)))
    if spellings and type(value) in (int, float) and value == value // 1 and abs(value) <= MAX_EXACT:
        return iter([int(value), float(value)])
    return iter([value])


def texts_of(value, valid):
    """Any text may be the canonical form of a valid instance. No text of an invalid instance may be accepted."""
    return [json.dumps(form, ensure_ascii=False) for form in itertools.islice(forms(value, valid), MAX_ORDERS)]


def left_out(schema, value):
    """Returns whether the documentation states that the schema does not produce this valid value."""
    if "anyOf" in schema and ("unevaluatedProperties" in schema or "unevaluatedItems" in schema):
        return True
    if "patternProperties" in schema and ("properties" in schema or schema.get("additionalProperties") is not False):
        return True
    if "multipleOf" in schema and isinstance(value, float) and abs(value) > MAX_EXACT:
        return True
    form = schema.get("format")
    if form in ("email", "uri", "uri-reference", "iri", "iri-reference", "idn-email", "idn-hostname"):
        return True
    if form == "ipv6":
        return "." in value
    return form in ("time", "date-time") and (":60" in value or value != value.upper())


def test_suite_schemas_are_enforced_or_refused(ask):
    counts = collections.defaultdict(collections.Counter)
    wrong = []
    for line in SUITE.read_text().splitlines():
        file, about, schema, instances = json.loads(line)
        draft, _, name = file.partition("/")
        # Most formats are enforced here, and contents are annotations, as in the newest draft.
        if name in ANNOTATIONS:
            continue
        texts = [texts_of(value, valid) for value, valid in instances]
        answer = ask(schema, itertools.chain(*texts))
        if "refused" in answer:
            counts[draft]["refused"] += 1
            pointer = answer["refused"].removeprefix("constraint.json_schema: ").split(": ")[0]
            if answer["refused"].endswith(f": {NO_VALUE}"):
                wrong += [(file, about, value, valid) for value, valid in instances if valid]
            elif not pointer.startswith("/"):
                wrong.append((file, about, answer["refused"]))
            continue
        counts[draft]["enforced"] += 1
        accepted = iter(answer["accepted"])
        for (value, valid), own in zip(instances, texts):
            is_accepted = any(list(itertools.islice(accepted, len(own))))
            if valid and not is_accepted and left_out(schema, value):
                counts[draft]["left out"] += 1
            elif valid != is_accepted:
                wrong.append((file, about, value, valid))
            else:
                counts[draft]["accepted" if valid else "rejected"] += 1
    assert wrong == []
    assert {draft: dict(count) for draft, count in counts.items()} == SUITE_COUNTS


LEAVES = [
    {"type": "boolean"}, {"type": "null"}, {"type": "string"}, {"type": "integer"}, {"type": "number"},
    {"const": {"a": [1, "x"]}}, {"enum": ["red", 1, None, [], "é\n"]}, {"not": {"type": ["object", "string"]}},
    {"format": "date", "type": "string"}, {"format": "ipv4", "type": "string"}, {"format": "ipv6", "type": "string"},
    {"format": "uuid", "type": "string"}, {"pattern": "^[a-c]{2,5}$", "type": "string"},
    {"pattern": "[0-9]z", "type": "string"}, {"pattern": "^(?:ab|.)*é$"}, {"type": "string", "pattern": "^a|b$"},
    {"type": "integer", "multipleOf": 7}, {"type": "number", "multipleOf": 0.01}, {"$ref": "#/$defs/tree"}, True,
    {"type": "number", "multipleOf": 0.25, "minimum": -1.5}, {"type": "integer", "multipleOf": 40, "minimum": -99, "maximum": 10**9},
    {"type": "integer", "format": "int16"}, {"type": "string", "format": "byte"}, {"type": "string", "format": "uuid4"},
    {"type": "array", "items": {"enum": ["a", 1, None, [2]]}, "uniqueItems": True, "minItems": 1},
    {"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True, "maxItems": 2},
    {"type": "object", "propertyNames": {"enum": ["b", "q", ""]}, "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 3}, "properties": {"ab": {"type": "null"}}},
    {"type": "string", "pattern": "^(?:a*b)*c+$", "maxLength": 200},
]
NAMES = ["a", "ab", "b", "", "é", 'q"', "\\", "a/b~", "1"]
DEFS = {"tree": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}},
                 "required": ["v"], "additionalProperties": False}}


def number_schema(rng):
    scale = rng.choice([1, 10, 100, 10**6])
    low, high = sorted(rng.randint(-2000, 2000) / scale for _ in range(2))
    made = {"type": rng.choice(["integer", "number"])}
    if rng.random() < 0.7:
        made[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.7:
        made[rng.choice(["maximum", "exclusiveMaximum"])] = high
    return made


def object_schema(rng, depth):
    names = rng.sample(NAMES, rng.randint(0, 4))
    made = {"type": "object", "properties": {name: any_schema(rng, depth - 1) for name in names}}
    if names and rng.random() < 0.6:
        made["required"] = rng.sample(names, rng.randint(1, len(names))) + rng.sample(NAMES, rng.randint(0, 1))
        made["required"] = sorted(set(made["required"]))
    way = rng.randrange(7)
    if way < 2:
        made[rng.choice(["additionalProperties", "unevaluatedProperties"])] = False
    elif way == 2:
        made["additionalProperties"] = any_schema(rng, depth - 1)
    elif way == 3:
        made.update(patternProperties={"^x[0-9]": any_schema(rng, depth - 1)}, additionalProperties=False)
    elif way == 4:
        made["propertyNames"] = {"pattern": "^[k-m]+$"}
    elif way == 5 and names:
        made["dependentRequired"] = {names[0]: rng.sample(NAMES, 2)}
    if names and rng.random() < 0.3:
        made["minProperties"] = rng.randint(0, len(names))
    if rng.random() < 0.3:
        made["maxProperties"] = rng.randint(1, 4)
    return made


def array_schema(rng, depth):
    made = {"type": "array"}
    if rng.random() < 0.5:
        made["prefixItems"] = [any_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.8:
        made[rng.choice(["items", "unevaluatedItems"])] = rng.choice([False, any_schema(rng, depth - 1)])
    if rng.random() < 0.5:
        made["minItems"] = rng.randint(0, 3)
    if rng.random() < 0.5:
        made["maxItems"] = rng.randint(1, 5)
    return made


def any_schema(rng, depth):
    kind = rng.randrange(9 if depth > 0 else 4)
    if kind < 2:
        return rng.choice(LEAVES)
    if kind == 2:
        return number_schema(rng)
    if kind == 3:
        low, high = sorted(rng.randint(0, 24) for _ in range(2))
        return {"type": "string", **rng.choice([{"minLength": low}, {"maxLength": high},
                                                {"minLength": low, "maxLength": high}])}
    if kind < 6:
        return object_schema(rng, depth)
    if kind == 6:
        return array_schema(rng, depth)
    if kind == 7:
        return {rng.choice(["anyOf", "oneOf"]): [any_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
    return {"allOf": [any_schema(rng, depth - 1), any_schema(rng, depth - 1)]}


def read_exactly(text, object_of=dict):
    """Parses numbers with all their digits. Doubles would round a value close to a bound onto the bound."""
    return json.loads(text, parse_float=decimal.Decimal, object_pairs_hook=object_of)


def readings(text):
    """Returns the possible readings: a parser keeps the last or the first value of a repeated name."""
    return [read_exactly(text), read_exactly(text, lambda pairs: dict(reversed(pairs)))]


def test_random_walks_write_valid_documents(ask):
    schemas = int(os.environ.get("QUIRE_SCHEMAS", 60))
    walks = int(os.environ.get("QUIRE_WALKS", 10))
    seed = int(os.environ.get("QUIRE_SEED", 1))
    rng = random.Random(seed)
    counts = collections.Counter()
    # Remainders of long numbers are also exact.
    with decimal.localcontext(decimal.Context(prec=2000, traps=[decimal.InvalidOperation])):
        while counts["schemas"] < schemas:
            schema = any_schema(rng, 3)
            schema = {"allOf": [schema], "$defs": DEFS} if schema is True else {**schema, "$defs": DEFS}
            answer = ask(schema, walks=walks, seed=rng.getrandbits(32))
            if "refused" in answer:
                counts["refused"] += 1
                continue
            counts["schemas"] += 1
            counts["unfinished"] += answer["unfinished"]
            judge = jsonschema.Draft202012Validator(read_exactly(json.dumps(schema)),
                                                    format_checker=jsonschema.FormatChecker())
            for document in answer["documents"]:
                counts["documents"] += 1
                for reading in readings(document):
                    error = jsonschema.exceptions.best_match(judge.iter_errors(reading))
                    assert error is None, f"seed {seed}: {document} of {json.dumps(schema)}: {error.message}"
    print(dict(counts))
    assert counts["documents"] > 0.5 * schemas * walks, counts
    assert counts["refused"] < 3 * schemas, counts
