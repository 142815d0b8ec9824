"""Constraints in a real daemon: every document is valid, and constraints that cannot be enforced are rejected."""

import concurrent.futures
import enum
import itertools
import json
import re
import subprocess
from typing import Optional

import grpc
import jsonschema
import openai
import pydantic
import pytest
from attack_tools import http_get
from daemon import QUIRE, QUIRED, Daemon, has_structured_output, reason_of
from process_figures import resident_bytes
from waiting import wait_until

pytestmark = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PROMPT = "Once upon a time, there was a"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quired")
    (folder / "template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", f"chat.template_file={folder}/template.jinja")
    with Daemon(folder, settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def generate(api, served):
    with served.channel() as channel:
        stub = api.GenerationServiceStub(channel)

        def run(fill, *, seed=1, max_tokens=200, temperature=1.0, choices=1):
            request = api.GenerateRequest(text=PROMPT)
            request.sampling.seed = seed
            request.sampling.temperature = temperature
            request.sampling.choice_count = choices
            request.stopping.max_tokens = max_tokens
            fill(request.constraint)
            events = list(stub.Generate(request, timeout=60))
            return [event.completed for event in events if event.HasField("completed")]

        yield run


def of_schema(schema):
    return lambda constraint: setattr(constraint, "json_schema", json.dumps(schema))


CLOSED = {"additionalProperties": False}
SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer",
     "minimum": 1, "maximum": 99}}, "required": ["name", "age"], **CLOSED},
    {"type": "array", "items": {"enum": ["red", "green", 1, None]}, "minItems": 2, "maxItems": 4},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}, "id": {"type": "string",
     "pattern": "^[a-z]{2}-[0-9]{3}$"}}, "required": ["id", "when"], **CLOSED},
    {"type": "object", "properties": {"value": {"type": "integer", "minimum": -5, "maximum": 5},
     "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["value", "next"], **CLOSED},
    {"anyOf": [{"type": "boolean"}, {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_every_document_is_valid(generate, api, schema):
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    whole = 0
    for seed in range(3):
        for choice in generate(of_schema(schema), seed=seed, choices=2):
            if choice.finish_reason == api.FINISH_REASON_LENGTH:
                continue  # a document that max_tokens cuts is incomplete
            assert choice.finish_reason in (api.FINISH_REASON_CONSTRAINT_DONE, api.FINISH_REASON_EOS)
            judge.validate(json.loads(choice.text))
            whole += 1
    assert whole >= 3


def test_other_constraint_kinds(generate, api):
    choices = generate(lambda c: setattr(c, "regex", "[ab]{3}-\\d{2}"), choices=4)
    assert all(re.fullmatch("[ab]{3}-[0-9]{2}", choice.text) for choice in choices)
    assert all(choice.finish_reason == api.FINISH_REASON_CONSTRAINT_DONE for choice in choices)
    choices = generate(lambda c: c.choice.values.extend(["yes", "no", "perhaps"]), choices=8)
    assert {choice.text for choice in choices} <= {"yes", "no", "perhaps"}
    grammar = 'root ::= "(" root ")" | [xyz]+ "."'
    for choice in generate(lambda c: setattr(c, "ebnf_grammar", grammar), choices=4, max_tokens=100):
        if choice.finish_reason != api.FINISH_REASON_LENGTH:
            assert re.fullmatch(r"\(*[xyz]+\.\)*", choice.text) and choice.text.count("(") == choice.text.count(")")
    for choice in generate(lambda c: c.json_object.SetInParent(), choices=4):
        if choice.finish_reason != api.FINISH_REASON_LENGTH:
            assert isinstance(json.loads(choice.text), dict)


def test_compact_json_equals_json_dumps(api, generate):
    for schema in (SCHEMAS[1], SCHEMAS[3]):
        for policy in (api.WHITESPACE_POLICY_COMPACT, api.WHITESPACE_POLICY_BOUNDED):

            def fill(constraint, schema=schema, policy=policy):
                constraint.json_schema = json.dumps(schema)
                constraint.whitespace = policy

            whole = [choice.text for seed in range(3) for choice in generate(fill, seed=seed, choices=4)
                     if choice.finish_reason != api.FINISH_REASON_LENGTH]
            is_compact = [json.dumps(json.loads(text)) == text for text in whole]
            assert whole and all(is_compact) == (policy == api.WHITESPACE_POLICY_COMPACT), whole
    with pytest.raises(grpc.RpcError) as error:
        generate(lambda constraint: constraint.MergeFrom(api.Constraint(regex="a", whitespace=2)))
    assert error.value.code() == INVALID and reason_of(error.value)[1]["field"] == "constraint.whitespace"


def test_equal_seeds_give_equal_answers_in_any_batch(generate):
    schema = SCHEMAS[0]
    alone = [generate(of_schema(schema), seed=seed)[0].text for seed in range(3)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda seed: generate(of_schema(schema), seed=seed)[0].text, [0, 1, 2, 2, 1, 0]))
    assert together == alone + alone[::-1]


@pytest.mark.parametrize(
    "schema, pointer, keyword",
    [
        ({"properties": {"a": {"contains": {}}}}, "/properties/a/contains", "contains"),
        ({"maxlength": 3}, "/maxlength", "maxlength"),
        ({"$ref": "https://example.com/schema"}, "/$ref", "$ref"),
        ({"type": "string", "pattern": "(?=a)"}, "/pattern", "pattern"),
        ({"enum": []}, "", ""),
    ],
)
def test_unenforceable_schemas_are_rejected(generate, schema, pointer, keyword):
    with pytest.raises(grpc.RpcError) as error:
        generate(of_schema(schema))
    reason, metadata, _ = reason_of(error.value)
    assert (error.value.code(), reason) == (INVALID, "BAD_CONSTRAINT"), error.value.details()
    assert (metadata["stage"], metadata["pointer"], metadata["keyword"]) == ("compile", pointer, keyword)


def in_defs(count, schema, last):
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {f"d{i}": schema(i) for i in range(count)} | {f"d{count}": last}})


def ref(i):
    return {"$ref": f"#/$defs/d{i}"}


LONG = "n" * 100_000
WAYS = [{"title": str(i)} for i in range(1024)]
# Requests that try to crash the daemon, block its threads or fill its memory. Each is rejected or served.
HOSTILE = {
    "brackets": ("json_schema", "[" * 100_000),
    "nested": ("json_schema", '{"not":' * 1000),
    "ways": ("json_schema", json.dumps({"allOf": [{"anyOf": [{"minLength": 1}, {"maxLength": 9}]}] * 40})),
    "properties": ("json_schema", json.dumps({"properties": {str(i): {} for i in range(21_000)}})),
    "optional properties": ("json_schema", json.dumps({"properties": {f"k{i}": {} for i in range(512)}, **CLOSED})),
    "counted": ("json_schema", json.dumps({"type": "string", "minLength": 1000, "maxLength": 1_000_000})),
    "mutual": ("json_schema", in_defs(300, lambda i: {"allOf": [{"properties": {
        "a": ref((i + 1) % 300), "b": ref(i * 7 % 300)}}]}, {})),
    "chain": ("json_schema", in_defs(3000, lambda i: {"properties": {"a": ref(i + 1)}}, {})),
    "chain of oneOf": ("json_schema", in_defs(3000, lambda i: {"oneOf": [ref(i + 1), {"type": "null"}]}, {})),
    "long name": ("json_schema", json.dumps({"properties": {LONG: {"properties": {str(i): {} for i in range(500)}}}})),
    "long value": ("json_schema", json.dumps({"enum": ["ab " * 50_000]})),
    "copied values": ("json_schema", json.dumps({"enum": list(range(4096)), "anyOf": WAYS})),
    "copied expressions": ("json_schema", json.dumps({"pattern": f"^{'ab' * 4000}c*$", "maxLength": 8010, "anyOf": WAYS})),
    "compared names": ("json_schema", json.dumps({"properties": {LONG: {}}, "patternProperties": {
        f"^{'n*' * 1000}$": {}}, **CLOSED})),
    "ten maps": ("json_schema", json.dumps({"properties": {f"k{i}": {"multipleOf": 1000 - i} for i in range(20)}})),
    "optional parts": ("regex", "(a|b)?" * 1000),
    "many optional parts": ("regex", "(a|b)?" * 20_000),
    "counts of counts": ("regex", "((a{0,100}){0,100}){0,100}"),
    "deep repetitions": ("regex", "(" * 99 + "a" + "|b)*" * 99),
    "long gaps": ("regex", ".{0,1000}" * 100),
    "large class": ("regex", "[" + "".join(chr(0x4E00 + 2 * i) for i in range(10_000)) * 8 + "]"),
    "parentheses": ("regex", "(" * 100_000),
    "chain of rules": ("ebnf_grammar", "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(12_000)) + 'a12000 ::= "x"'),
    "ambiguous": ("ebnf_grammar", 'root ::= root root | "a" | ""'),
    "doubled": ("ebnf_grammar", "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60 ::= "x"?'),
    "alternatives": ("ebnf_grammar", "root ::= (" + "|".join(f'"{i * 7919 % 100_003}"' for i in range(18_000)) + ")*"),
    "groups": ("ebnf_grammar", "root ::= " + '("a"|"b")' * 20_000),
    "long literal": ("ebnf_grammar", f'root ::= "{"abc " * 50_000}"'),
}


MOST_KEPT = 400 << 20  # bytes: structured.cache_bytes plus what the allocator retains


def test_hostile_constraints_do_not_disturb_other_clients(generate, served):
    """Sends all of them at once, next to a normal client. Afterwards the daemon's memory is as before."""
    def attack(item):
        kind, text = item
        try:
            generate(lambda c: setattr(c, kind, text), max_tokens=64)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return "TIMEOUT"  # compiles run at low priority, so other load can delay them
            reason, metadata, _ = reason_of(error)
            # QUEUE_FULL: slow compiles occupy all slots.
            assert reason == "QUEUE_FULL" or metadata["stage"] in ("compile", "limit"), (reason, error.details())
            return reason
        return "served"

    def neighbour(seed):
        return generate(lambda c: setattr(c, "regex", "[ab]{3}-\\d{2}"), seed=seed)[0].text

    alone = [neighbour(seed) for seed in range(4)]
    memory = resident_bytes(served.process.pid)
    with concurrent.futures.ThreadPoolExecutor(len(HOSTILE) + 1) as pool:
        plain = pool.submit(lambda: [generate(lambda c: None, seed=1, max_tokens=20)[0].text for _ in range(10)])
        answers = dict(zip(HOSTILE, pool.map(attack, HOSTILE.values())))
        assert len(set(plain.result())) == 1
    assert [neighbour(seed) for seed in range(4)] == alone
    assert set(answers.values()) <= {"served", "BAD_CONSTRAINT", "QUEUE_FULL", "TIMEOUT"}, answers
    for name in ("properties", "chain", "many optional parts"):
        wait_until(lambda: attack(HOSTILE[name]) == "BAD_CONSTRAINT", f"{name}: an answer to it alone", 120)
    assert served.process.poll() is None
    # Slow compiles finish by themselves. structured.cache_bytes bounds what is cached.
    wait_until(lambda: resident_bytes(served.process.pid) < memory + MOST_KEPT, "what the attacks took is given back", 60)


def test_command_line_offers_all_constraint_kinds(served, tmp_path):
    def quire(*options, code=0):
        command = [str(QUIRE), "--address", served.grpc_address, "generate", PROMPT, "--quiet", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.removesuffix("\n") if code == 0 else done.stderr

    schema, grammar, empty = (tmp_path / name for name in ("schema.json", "two.gbnf", "empty"))
    schema.write_text(json.dumps(SCHEMAS[0]))
    grammar.write_text("root ::= [xy] [xy]\n")
    empty.touch()
    document = quire("--schema", str(schema), "--max-tokens", "200", "--seed", "1")
    jsonschema.Draft202012Validator(SCHEMAS[0]).validate(json.loads(document))
    assert re.fullmatch("[ab]{3}-[0-9]{2}", quire("--regex", "[ab]{3}-\\d{2}"))
    assert re.fullmatch("[xy]{2}", quire("--grammar", str(grammar)))
    assert quire("--choice", "yes", "--choice", "no") in ("yes", "no")
    assert quire("--choice", "one of one", "--echo") == PROMPT + "one of one"
    forms = {"--schema": str(schema), "--regex": "a", "--grammar": str(grammar), "--choice": "a"}
    for one, two in itertools.combinations(forms, 2):
        assert "excludes" in quire(one, forms[one], two, forms[two], code=2)
    assert str(empty) in quire("--schema", str(empty), code=2)
    assert "BAD_CONSTRAINT" in quire("--regex", "(", code=1)
    three = tmp_path / "three.json"
    three.write_text('{"enum": [[1, 2, 3]]}')
    assert quire("--schema", str(three), "--constraint-whitespace", "compact") == "[1, 2, 3]"
    assert "constraint.whitespace" in quire("--regex", "a", "--constraint-whitespace", "compact", code=1)
    assert "no kind is set" in quire("--constraint-whitespace", "compact", code=1)
    assert "--constraint-whitespace" in quire("--regex", "a", "--constraint-whitespace", "behind", code=2)
    assert "--constraint-start" in quire("--regex", "a", "--constraint-start", "at_start", code=2), "the option applies to chats only"


UNENFORCED = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 10, "maximum": 99, "not": {"const": 50}},
              "b": {"type": "array", "items": {"type": "string", "maxLength": 2}, "uniqueItems": True, "maxItems": 2}},
              "required": ["a", "b"], **CLOSED}
LISTED = ["#/properties/a/not", "#/properties/b/uniqueItems"]


def is_valid_but_for_what_is_listed(text):
    document = json.loads(text)
    return list(document) == ["a", "b"] and 10 <= document["a"] <= 99 and len(document["b"]) <= 2


def test_unenforced_keywords_are_listed(api, generate, served):
    request = api.GenerateRequest(text=PROMPT)
    request.constraint.json_schema = json.dumps(UNENFORCED)
    request.constraint.unenforced = api.UNENFORCED_POLICY_ANNOTATE
    request.stopping.max_tokens = 200
    with served.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        for stream in (False, True):
            request.output.stream = stream
            events = list(stub.Generate(request, timeout=60))
            assert events[0].started.unenforced_keywords == LISTED
            text = events[-1].completed.text + "".join(event.delta.text for event in events)
            assert is_valid_but_for_what_is_listed(text)
        request.constraint.json_schema = json.dumps(SCHEMAS[0])
        assert not list(stub.Generate(request, timeout=60))[0].started.unenforced_keywords
    for policy in (api.UNENFORCED_POLICY_REFUSE, api.UNENFORCED_POLICY_UNSPECIFIED):
        def fill(constraint, policy=policy):
            constraint.json_schema = json.dumps(UNENFORCED)
            constraint.unenforced = policy
        with pytest.raises(grpc.RpcError) as refused:
            generate(fill)
        assert reason_of(refused.value)[1]["pointer"] == "/properties/a/not"
    for fill, field in (
        (lambda c: c.MergeFrom(api.Constraint(regex="a", unenforced=api.UNENFORCED_POLICY_ANNOTATE)), "constraint.unenforced"),
        (lambda c: c.MergeFrom(api.Constraint(unenforced=api.UNENFORCED_POLICY_ANNOTATE)), "constraint.unenforced"),
        (lambda c: c.MergeFrom(api.Constraint(json_schema="{}", unenforced=7)), "constraint.unenforced"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            generate(fill)
        assert reason_of(refused.value)[1]["field"] == field, refused.value.details()


class Mood(enum.Enum):
    GLAD = "glad"
    SAD = "sad"


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)
    mood: Mood
    legs: int = pydantic.Field(ge=0, le=8)
    friend: Optional[Mood] = None


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"http://{served.openai_address}/v1", api_key="x", max_retries=0) as made:
        yield made


def test_openai_package_parses_models(client):
    messages = [{"role": "user", "content": "An animal"}]
    parsed = 0
    for seed in range(5):
        try:
            answer = client.chat.completions.parse(
                model="", messages=messages, response_format=Animal, seed=seed, max_completion_tokens=200
            )
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(answer.choices[0].message.parsed, Animal)
        assert answer.choices[0].finish_reason == "stop"
        parsed += 1
    assert parsed >= 1
    for extra, pattern in (
        ({"guided_regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"guided_json": {"const": [1, [2]]}, "constraint_whitespace": "compact"}, r"\[1, \[2\]\]"),
        ({"structured_outputs": {"json": {"const": [1, [2]]}, "disable_any_whitespace": True}}, r"\[1, \[2\]\]"),
    ):
        answer = client.chat.completions.create(model="", messages=messages, extra_body=extra)
        assert re.fullmatch(pattern, answer.choices[0].message.content)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="", messages=messages, extra_body={"guided_json": {"contains": {}}})
    assert error.value.code == "bad_constraint" and "/contains" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="", messages=messages, extra_body={"guided_regex": "a", "constraint_start": "x"})
    assert error.value.param == "constraint_start" and '"x", it must be at_start or after_reasoning' in error.value.message


def test_unenforced_keywords_are_listed_over_openai(client):
    messages = [{"role": "user", "content": "A"}]
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": UNENFORCED}}
    asked = {"model": "", "messages": messages, "response_format": form, "max_tokens": 200, "seed": 3}
    annotate = {"constraint_unenforced": "annotate"}
    whole = client.chat.completions.create(**asked, extra_body=annotate)
    assert whole.unenforced_keywords == LISTED and is_valid_but_for_what_is_listed(whole.choices[0].message.content)
    chunks = list(client.chat.completions.create(**asked, stream=True, extra_body=annotate))
    assert chunks[0].unenforced_keywords == LISTED
    assert not any(hasattr(chunk, "unenforced_keywords") for chunk in chunks[1:])
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    body = {"guided_json": UNENFORCED, **annotate}
    assert client.completions.create(model="", prompt="A", max_tokens=200, extra_body=body).unenforced_keywords == LISTED
    chunks = list(client.completions.create(model="", prompt="A", max_tokens=200, stream=True, extra_body=body))
    assert [getattr(chunk, "unenforced_keywords", None) for chunk in chunks] == [LISTED] + [None] * (len(chunks) - 1)
    plain = client.completions.create(model="", prompt="A", extra_body={"guided_json": {"const": 1}, **annotate})
    assert not hasattr(plain, "unenforced_keywords")
    for extra, param, words in (
        ({"constraint_unenforced": "refuse"}, "response_format", "/properties/a/not"),
        ({"constraint_unenforced": "ignore"}, "constraint_unenforced", '"ignore", it must be refuse or annotate'),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(**asked, extra_body=extra)
        assert words in error.value.message
        assert param == "response_format" or error.value.param == param


def test_models_list_structured_output_as_capability(api, served):
    with served.channel() as channel:
        answer = api.GenerationServiceStub(channel).ListModels(api.ListModelsRequest(), timeout=10)
    assert "constraint" in answer.models[0].capabilities


def the_tags(constraint):
    """A tag starts at the word `the`, which occurs in every sentence of a story."""
    tags = constraint.structural_tags
    tags.triggers.append(" the")
    tags.tags.add(begin=" the", regex="[a-z ]{1,8}", end="!")
    tags.tags.add(begin=" the:", json_schema='{"type": "integer", "minimum": 10, "maximum": 99}', end="")
    return tags


TAG = re.compile(r" the(?:[a-z ]{1,8}!|:[1-9][0-9](?![0-9]))")


@pytest.mark.parametrize("seed", range(4))
def test_free_text_with_tags(api, generate, seed):
    free = generate(the_tags, seed=seed, max_tokens=120)[0]
    complete = free.text if free.finish_reason != api.FINISH_REASON_LENGTH else free.text[: free.text.rfind(" the")]
    assert " the" in free.text and complete.count(" the") == len(TAG.findall(complete)), free.text

    def first(constraint):
        the_tags(constraint).stop_after_first = True
        constraint.structural_tags.at_least_one = True

    done = generate(first, seed=seed)[0]
    assert done.text.count(" the") == 1 and re.search(TAG.pattern + "$", done.text), done.text


def test_bad_tags_are_rejected(generate):
    for change, words in (
        (lambda tags: tags.triggers.append("x"), "constraint.structural_tags.triggers[1]"),
        (lambda tags: tags.tags.add(begin=" the", json_schema='{"minimun": 1}'), "constraint.structural_tags.tags[2]: /minimun"),
        (lambda tags: tags.tags.add(begin="a", regex="a"), "does not begin with a trigger"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            generate(lambda constraint, change=change: change(the_tags(constraint)))
        assert caught.value.code() == INVALID and words in caught.value.details()


def test_tags_in_vllm_syntax(client):
    tag = {"type": "structural_tag", "triggers": [" the"], "structures": [
        {"begin": " the", "schema": {"type": "integer", "minimum": 10, "maximum": 99}, "end": "!"}]}
    messages = [{"role": "user", "content": "Tell a story."}]
    made = client.chat.completions.create(model="", messages=messages, max_tokens=100, seed=2,
                                          extra_body={"response_format": tag}).choices[0].message.content
    text = client.chat.completions.create(model="", messages=messages, max_tokens=100, seed=2,
                                          extra_body={"structured_outputs": {"structural_tag": json.dumps(tag)}})
    assert made == text.choices[0].message.content and re.search(r" the[1-9][0-9]!", made)
    assert not re.search(r" the(?![1-9][0-9]!)", made[:-8])


PRELOADED = SCHEMAS[0]


def preloads(folder, entries, *settings):
    """A daemon whose configuration lists constraints to preload."""
    (folder / "preload.yaml").write_text(json.dumps({"structured": {"preload": entries}}))
    openai_settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0")
    return Daemon(folder, "--config", folder / "preload.yaml", settings=(*openai_settings, *settings))


def test_preloaded_constraints_are_compiled_at_start(api, tmp_path):
    """Requests hit the preloaded constraints over HTTP, which sends schemas without whitespace, and over gRPC with the
    client's spelling."""

    def found():
        lines = http_get(running.http_address, "/metrics")[1].decode().splitlines()
        rows = [line.partition("quire_constraint_cache_total")[2] for line in lines]
        return {result: sum(float(row.split()[1]) for row in rows if f'"{result}"' in row) for result in ("hit", "miss")}

    entries = [{"json_schema": json.dumps(PRELOADED, indent=2)}, {"regex": "[ab]{2}"}, {"ebnf_grammar": 'root ::= "a"'}]
    with preloads(tmp_path, entries) as running, running.wait_serving().channel() as channel:
        assert found() == {"hit": 0, "miss": 3}
        wait_until(lambda: any('"constraints compiled"' in line and '"count":3' in line for line in running.lines), "the log")
        with openai.OpenAI(base_url=f"http://{running.openai_address}/v1", api_key="x", max_retries=0) as client:
            client.completions.create(model="", prompt=PROMPT, max_tokens=8, extra_body={"guided_json": PRELOADED})
        assert found() == {"hit": 1, "miss": 3}
        stub = api.GenerationServiceStub(channel)
        for constraint in (api.Constraint(json_schema=json.dumps(PRELOADED)), api.Constraint(regex="[ab]{2}"),
                           api.Constraint(ebnf_grammar='root ::= "a"')):
            list(stub.Generate(api.GenerateRequest(text=PROMPT, constraint=constraint), timeout=60))
        assert found() == {"hit": 4, "miss": 3}
        list(stub.Generate(api.GenerateRequest(text=PROMPT, constraint=api.Constraint(regex="[abc]{2}")), timeout=60))
        assert found() == {"hit": 4, "miss": 4}


@pytest.mark.parametrize(
    "entry, settings, words",
    [
        ({"json_schema": '{"properties": {"a": {"contains": {}}}}'}, (), "structured.preload[1].json_schema: "
         "/properties/a/contains"),
        ({"json_schema": "{"}, (), "structured.preload[1].json_schema: "),
        ({"regex": "(?=a)"}, (), "structured.preload[1].regex: "),
        ({"ebnf_grammar": "start ::= x"}, (), "structured.preload[1].ebnf_grammar: "),
        ({"regex": "a{1025}" * 200}, ("structured.max_schema_bytes=1KiB",), "structured.preload[1].regex: constraint has "
         "1400 bytes, the limit is 1024 (structured.max_schema_bytes)"),
        ({"regex": "a"}, ("structured.cache_bytes=1",), "only 0 fit into the cache; increase structured.cache_bytes"),
    ],
)
def test_bad_preloaded_constraints_fail_the_start(tmp_path, entry, settings, words):
    with preloads(tmp_path, [{"regex": "b"}, entry], *settings) as running:
        assert running.wait() == 78
        assert words in "".join(json.loads(line).get("error", "") for line in running.lines), running.log
    sets = [f"--set={setting}" for setting in settings]
    command = [QUIRED, "--validate", "--config", tmp_path / "preload.yaml", *sets]
    validated = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert validated.returncode == 78 and words in validated.stderr, validated.stderr
