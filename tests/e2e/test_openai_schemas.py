"""Every field of the published request schemas is supported, refused by name, or documented as without meaning.

The fields of OpenAI are read from the types of its Python package, those of other servers from request_fields.json. A real
daemon gets each field with a plausible value and with a value of a wrong type. docs/openai.md says what must happen.
"""

import contextlib
import json
import re
import typing
import urllib.error
import urllib.request

import openai.types
import openai.types.chat
import openai.types.shared_params
import pytest
from daemon import ROOT, TESTDATA, Daemon, has_structured_output
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from waiting import wait_until

PATHS = {
    "completions": "/v1/completions", "chat": "/v1/chat/completions", "embeddings": "/v1/embeddings", "score": "/v1/score",
    "rerank": "/v1/rerank", "classify": "/v1/classify",
}
USER = {"role": "user", "content": "hi"}
# The fields that each call needs.
BASE = {
    "completions": {"prompt": "Once", "max_tokens": 2}, "chat": {"messages": [USER], "max_tokens": 2},
    "embeddings": {"input": "Once"}, "score": {"text_1": "a", "text_2": "b"},
    "rerank": {"query": "a", "documents": ["b"]}, "classify": {"input": "a"},
}
TOOL = {"type": "function", "function": {"name": "f"}}
WRONG = [[[]]]  # no field accepts it

# The owner of an object's members in docs/openai.md, and the body of a chat that contains the object.
OBJECTS = {
    "stream_options": ("`stream_options`", lambda o: {"stream": True, "stream_options": o}),
    "structured_outputs": ("`structured_outputs`", lambda o: {"structured_outputs": o}),
    "response_format": ("`response_format`", lambda o: {"response_format": {"type": "json_object", **o}}),
    "message": ("a message", lambda o: {"messages": [{**USER, **o}]}),
    "part": ("a content part", lambda o: {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **o}]}]}),
    "tool": ("a tool", lambda o: {"tools": [{**TOOL, **o}]}),
    "function": ("a function", lambda o: {"tools": [{"type": "function", "function": {"name": "f", **o}}]}),
}

# Plausible values, in the order of the table in server/openai/request_fields.cc. A pair is a value and the other fields that
# it needs. A refused field has a value that asks for something.
PLAUSIBLE = {
    "model": "", "user": "me", "prompt": "Once", "echo": True, "add_special_tokens": False, "messages": [USER],
    "add_generation_prompt": False, "continue_final_message": (True, {"messages": [USER]}),
    "chat_template": "{{ messages[0].content }}", "chat_template_kwargs": {"x": 1}, "documents": [{"text": "a"}],
    "reasoning_effort": "low", "enable_thinking": False, "tools": [TOOL], "tool_choice": ("none", {"tools": [TOOL]}),
    "parallel_tool_calls": False, "functions": [TOOL["function"]], "function_call": ("none", {"functions": [TOOL["function"]]}),
    "truncate_prompt_tokens": -1, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1, "top_n_sigma": 2,
    "xtc_probability": 0.5, "xtc_threshold": 0.2, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    "dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["."],
    "logit_bias": {"5": 1}, "bad_words": ["zz"], "allowed_token_ids": [5, 6], "seed": 7, "n": 2, "best_of": 2, "max_tokens": 2,
    "max_completion_tokens": 2, "min_tokens": 1, "stop": ["zz"], "stop_token_ids": [5], "ignore_eos": True,
    "include_stop_str_in_output": True, "response_format": {"type": "text"}, "structured_outputs": {"regex": "a+"},
    "guided_json": {"type": "object"}, "guided_regex": "a+", "guided_choice": ["a"], "guided_grammar": 'root ::= "a"',
    "guided_json_object": True, "constraint_start": ("at_start", {"guided_regex": "a+"}),
    "constraint_whitespace": ("compact", {"guided_json_object": True}),
    "constraint_unenforced": ("annotate", {"guided_json": {"type": "object"}}), "top_logprobs": (2, {"logprobs": True}),
    "prompt_logprobs": 1, "return_token_ids": True, "stream": True, "stream_options": {"include_usage": True},
    "stream_interval": 2, "skip_special_tokens": False, "priority": 1, "cache_salt": "s", "input": "Once",
    "encoding_format": "base64", "dimensions": 8, "normalize": True, "text_1": "a", "text_2": "b", "query": "a", "top_n": 1,
    "return_documents": False,
    "store": True, "metadata": {"a": "b"}, "service_tier": "flex", "safety_identifier": "a", "prompt_cache_key": "a",
    "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "a"},
    "session_id": "a", "spaces_between_special_tokens": False, "guided_decoding_backend": "xgrammar", "return_mm_kwargs": False,
    "mm_processor_kwargs": {"a": 1}, "media_io_kwargs": {"image": {}}, "sse_ping_interval": 5,
    "backend_sampling": True, "n_cache_reuse": 64, "id_slot": 1, "include_obfuscation": False, "include_usage": True,
    "continuous_usage_stats": True,
    # Members of objects.
    "type": None, "json": {"type": "object"}, "regex": "a+", "choice": ["a"], "grammar": 'root ::= "a"', "json_object": True,
    "role": "user", "content": "hi",
    "disable_any_whitespace": False, "name": "f", "tool_call_id": "c", "description": "d", "parameters": {"type": "object"},
    "strict": False, "function": {"name": "g"}, "text": "hi", "json_schema": {"schema": {"type": "object"}},
    "structural_tag": None, "structures": None, "triggers": None, "format": None, "prompt_cache_breakpoint": {"mode": "explicit"},
    ("completions", "logprobs"): 1, ("chat", "logprobs"): True, ("score", "queries"): ("a", {"text_1": None}),
    ("score", "data_1"): ("a", {"text_1": None}), ("score", "documents"): ("b", {"text_2": None}),
    ("score", "items"): ("b", {"text_2": None}), ("score", "data_2"): ("b", {"text_2": None}),
    ("message", "function_call"): {"name": "f", "arguments": "{}"},
    ("message", "tool_calls"): [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
# Values of refused fields, of some in one call only, for which {"a": 1} would not be plausible; all others get it.
ASKING = {
    "suffix": "a", "modalities": ["text", "audio"], "verbosity": "low", "use_beam_search": True, "length_penalty": 2,
    "watermarking": True, "truncation_side": "left",
    ("completions", "truncation_side"): "right", ("chat", "truncation_side"): "right", "logprob_token_ids": [5], "prompt_embeds": "a", "echo": True,
    ("chat", "add_special_tokens"): True, "add_special_tokens": False, "include_reasoning": False, "thinking_token_budget": 5, "request_id": "a", "n_keep": 5,
    "return_prompt_text": True, "cache_prompt": False, "typical_p": 0.5, "mirostat": 2, "parse_tool_calls": False,
    "reasoning_format": "none", "refusal": "no", "endianness": "big",
}


def annotations(kind):
    return set(typing.get_type_hints(kind))


def fields_of_openai():
    """Returns the fields of the request types of the installed openai package."""
    chat = openai.types.chat
    messages = [getattr(chat, name) for name in dir(chat) if re.fullmatch(r"ChatCompletion\w+MessageParam", name)]
    parts = [getattr(chat, name) for name in dir(chat) if re.fullmatch(r"ChatCompletionContentPart\w+Param", name)]
    messages = [kind for kind in messages if hasattr(kind, "__annotations__")]
    parts = [kind for kind in parts if hasattr(kind, "__annotations__")]
    assert len(messages) >= 6 and len(parts) >= 4
    return {
        # `stream` is declared in the subclasses.
        "chat": annotations(chat_create_params.CompletionCreateParamsBase) | {"stream"},
        "completions": annotations(completion_create_params.CompletionCreateParamsBase) | {"stream"},
        "embeddings": annotations(embedding_create_params.EmbeddingCreateParams),
        "stream_options": annotations(chat.ChatCompletionStreamOptionsParam),
        "message": set().union(*map(annotations, messages)),
        "part": set().union(*map(annotations, parts)) | {"file"},
        "tool": annotations(chat.ChatCompletionFunctionToolParam) | annotations(chat.ChatCompletionCustomToolParam),
        "function": annotations(openai.types.shared_params.FunctionDefinition),
    }


def published_fields():
    """Returns (owner, field) for all fields of all schemas."""
    sources = json.loads((ROOT / "tests/testdata/request_fields.json").read_text())
    schemas = [source["fields"] for source in sources.values()] + [fields_of_openai()]
    return sorted({(owner, field) for fields in schemas for owner, names in fields.items() for field in names})


def table(heading):
    """Returns the rows of the table in a section of docs/openai.md."""
    section = (ROOT / "docs/openai.md").read_text().split(f"\n{heading}\n")[1].split("\n#")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.split("\n") if line.startswith("| ")][1:]


def documented(heading):
    """Returns (owner, field) for the fields of a table whose first column has owners."""
    pairs = set()
    for owners, names, *_ in table(heading):
        owners = list(PATHS) if owners == "all" else owners.split(", ")
        pairs |= {(owner, name) for owner in owners for name in re.findall(r"`([^`]+)`", names)}
    return pairs


REFUSED = documented("### Refused fields")
NO_MEANING = documented("### Fields without meaning")
SUPPORTED = {
    name for heading in ("### Supported fields", "## Embeddings, scores, labels") for row in table(heading)
    for name in re.findall(r"`([^`]+)`", "".join(row))
}


def outcome(owner, field):
    if owner in OBJECTS:
        owner = OBJECTS[owner][0]
    found = [name for name, pairs in (("refused", REFUSED), ("no meaning", NO_MEANING)) if (owner, field) in pairs]
    if not found and field in SUPPORTED:
        found = ["supported"]
    assert len(found) == 1, f"docs/openai.md has {len(found)} outcomes of {field} in {owner}"
    return found[0]


def send(url, path, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
            return answer.status, text if body.get("stream") else json.loads(text)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


@contextlib.contextmanager
def serving(folder, *arguments, settings=()):
    always = ("openai.enabled=true", "openai.listen=127.0.0.1:0")
    with Daemon(folder, *arguments, settings=(*always, *settings)) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


# The template prints every variable that has a field of its own.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for d in documents or [] %}<{{ d.title }}:{{ d.text }}>{% endfor %}"
    "{{ reasoning_effort }}|{{ enable_thinking }}|{{ x }}|{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}"
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "template.jinja").write_text(TEMPLATE)
    settings = (f"chat.template_file={folder}/template.jinja", "chat.tool_format=hermes")
    with serving(folder, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def urls(daemon, tmp_path_factory):
    """The address that serves each call: scores and labels need a classifier."""
    models = TESTDATA / "embeddings" / "models"
    with contextlib.ExitStack() as stack:
        found = dict.fromkeys(PATHS, "http://" + daemon.openai_address)
        for model, calls in (("qwen3-rerank1-bf16", ("score", "rerank")), ("llama-classify3-bf16", ("classify",))):
            running = stack.enter_context(serving(tmp_path_factory.mktemp(model), str(models / model)))
            found.update(dict.fromkeys(calls, "http://" + running.openai_address))
        yield found


def ask(urls, owner, fields):
    call = owner if owner in PATHS else "chat"
    wrapped = fields if owner in PATHS else OBJECTS[owner][1](fields)
    return send(urls[call], PATHS[call], {**BASE[call], **wrapped})


def test_schemas_are_found():
    found = published_fields()
    assert len(found) > 350
    assert {("chat", "reasoning_effort"), ("completions", "best_of"), ("embeddings", "dimensions"), ("message", "refusal"),
            ("rerank", "top_n"), ("function", "strict"), ("part", "image_url")} <= set(found)


@pytest.mark.parametrize("owner, field", published_fields())
def test_outcome_is_the_documented_one(urls, owner, field):
    expected = outcome(owner, field)
    if expected == "refused":
        status, error = ask(urls, owner, {field: ASKING.get((owner, field), ASKING.get(field, {"a": 1}))})
        assert (status, error["param"].split(".")[-1]) == (400, field), error
        assert error["message"].startswith(f"{error['param']} is not supported; "), error
        return
    status, error = ask(urls, owner, {field: WRONG})
    assert status == 400 and field in re.split(r"[.\[]", error["param"]), (status, error)
    assert "is not a known field" not in error["message"], error
    value = PLAUSIBLE.get((owner, field), PLAUSIBLE.get(field))
    value, more = value if isinstance(value, tuple) else (value, {})
    if value is None:  # valid only together with other members, which other tests send
        assert field in ("type", "structural_tag", "structures", "triggers", "format")
        return
    constrains = owner in ("structured_outputs", "response_format") or field == "structured_outputs"
    if (constrains or "guided" in field or "constraint" in field) and not has_structured_output():
        pytest.skip("the build has no structured output")
    status, answer = ask(urls, owner, {field: value, **more})
    assert status == 200, answer


def test_unknown_fields_are_refused_with_a_suggestion(urls):
    for owner, field, similar in (
        ("completions", "temperture", "temperature"), ("chat", "maxTokens", "max_tokens"), ("embeddings", "inputs", "input"),
        ("rerank", "top_m", "top_n"), ("score", "text", "text_1"), ("classify", "inputs", "input"),
        ("message", "roll", "role"), ("tool", "fuction", "function"), ("function", "paramters", "parameters"),
        ("stream_options", "include_usages", "include_usage"), ("part", "txt", "text"),
    ):
        status, error = ask(urls, owner, {field: "a"})
        assert (status, error["param"].split(".")[-1]) == (400, field), error
        assert error["message"] == f"{error['param']} is not a known field; did you mean {similar}?"
    status, error = ask(urls, "chat", {"nobody_knows_this": 1})
    assert status == 400 and "openai.unknown_fields" in error["message"], error


def test_unknown_fields_are_logged_once_if_accepted(tmp_path):
    with serving(tmp_path, settings=("openai.unknown_fields=warn",)) as running:
        url = "http://" + running.openai_address
        for _ in range(3):
            for call in ("completions", "embeddings"):
                assert send(url, PATHS[call], {**BASE[call], "temperture": 1, "new": {"x": 1}})[0] == 200
        status, error = send(url, PATHS["completions"], {**BASE["completions"], "audio": {}, "suffix": "a"})
        assert status == 400 and error["param"] == "suffix", error

        def names():
            lines = [json.loads(line) for line in running.lines if "unknown request field" in line]
            return sorted(line["field"] for line in lines)

        wait_until(lambda: names() == ["audio", "new", "temperture"], "one line per name")


def prompt_ids(urls, text):
    status, answer = ask(urls, "completions", {"prompt": text, "add_special_tokens": False, "return_token_ids": True})
    assert status == 200, answer
    return answer["choices"][0]["prompt_token_ids"]


def chat_ids(urls, **fields):
    status, answer = ask(urls, "chat", {"return_token_ids": True, **fields})
    assert status == 200, answer
    return answer["prompt_token_ids"]


# The rendering differs from the one without the field in exactly the variable.
@pytest.mark.parametrize("fields, text", [
    ({"reasoning_effort": "high"}, "high|||user:hi "),
    ({"reasoning_effort": "none"}, "none|False||user:hi "),
    ({"enable_thinking": True}, "|True||user:hi "),
    ({"chat_template_kwargs": {"x": "y"}, "enable_thinking": False}, "|False|y|user:hi "),
    ({"documents": [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}]}, "<a:b><c:d>|||user:hi "),
    ({"chat_template": "{{ messages[0].content }}!{{ reasoning_effort }}", "reasoning_effort": "low"}, "hi!low"),
    ({"functions": [{"name": "f"}], "function_call": "auto"}, "f|||user:hi "),
])
def test_variables_reach_the_template(urls, fields, text):
    assert chat_ids(urls, **fields) == prompt_ids(urls, text)


@pytest.mark.parametrize("fields, param", [
    ({"reasoning_effort": "much"}, "reasoning_effort"),
    ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
    ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
    ({"documents": ["text"]}, "documents[0]"),
    ({"chat_template": "{% if %}"}, "chat_template"),
    ({"chat_template": ""}, "chat_template"),
    ({"chat_template": "{{ raise_exception('no') }}"}, "messages"),
    ({"chat_template": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"}, "messages"),
    ({"chat_template": "x" * (64 << 10)  + "y"}, "chat_template"),
    ({"functions": [TOOL["function"]], "tools": [TOOL]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"functions": [TOOL["function"]], "function_call": {"name": "g"}}, "function_call.name"),
    ({"functions": [{"name": "a.b"}]}, "functions[0].name"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [99999999]}, "allowed_token_ids"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"stream_interval": 0}, "stream_interval"),
])
def test_bad_values_are_refused_by_name(urls, fields, param):
    status, error = ask(urls, "chat", fields)
    assert (status, error["param"]) in ((400, param), (413, param)), error


def test_request_templates_can_be_refused(tmp_path):
    with serving(tmp_path, settings=("chat.max_request_template_bytes=0",)) as running:
        body = {**BASE["chat"], "chat_template": "{{ messages[0].content }}"}
        status, error = send("http://" + running.openai_address, PATHS["chat"], body)
        assert (status, error["param"]) == (400, "chat_template"), error
        assert "chat.max_request_template_bytes" in error["message"], error


def test_only_allowed_tokens_are_sampled(urls):
    allowed = prompt_ids(urls, "Once upon a time there was a girl")[:3]
    for more in ({}, {"temperature": 0}, {"bad_words": ["zz"]}, {"n": 3, "seed": 1}, {"dry_multiplier": 1}):
        body = {"allowed_token_ids": allowed, "max_tokens": 12, "return_token_ids": True, **more}
        status, answer = ask(urls, "completions", body)
        assert status == 200, answer
        for choice in answer["choices"]:
            assert len(choice["token_ids"]) == 12 and set(choice["token_ids"]) <= set(allowed)


def test_prompt_logprobs_have_the_form_of_vllm(urls):
    ids = prompt_ids(urls, "Once upon a time")
    status, answer = ask(urls, "completions", {"prompt": ids, "prompt_logprobs": 2})
    assert status == 200, answer
    entries = answer["choices"][0]["prompt_logprobs"]
    assert entries[0] is None and len(entries) == len(ids)
    for token, entry in zip(ids[1:], entries[1:], strict=True):
        assert 2 <= len(entry) <= 3 and next(iter(entry)) == str(token)
        assert sorted(value["rank"] for value in entry.values())[:2] == [1, 2]
        assert all(value["logprob"] <= 0 and isinstance(value["decoded_token"], str) for value in entry.values())
    echoed = ask(urls, "completions", {"prompt": ids, "echo": True, "logprobs": 2})[1]["choices"][0]["logprobs"]
    assert [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], entries[1:], strict=True)] == (
        echoed["token_logprobs"][1:len(ids)])
    status, answer = ask(urls, "chat", {"prompt_logprobs": 0})
    assert status == 200 and answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in answer["prompt_logprobs"][1:])


def test_prompts_are_truncated_from_the_left(urls):
    ids = prompt_ids(urls, "Once upon a time there was a little girl")
    body = {"prompt": "Once upon a time there was a little girl", "add_special_tokens": False, "return_token_ids": True}
    for kept in (1, 3, len(ids), len(ids) + 1):
        status, answer = ask(urls, "completions", {**body, "truncate_prompt_tokens": kept})
        assert status == 200 and answer["choices"][0]["prompt_token_ids"] == ids[-kept:], answer
        assert answer["usage"]["prompt_tokens"] == min(kept, len(ids))
    long = "word " * 5000
    assert ask(urls, "completions", {**body, "prompt": long})[0] == 400
    status, answer = ask(urls, "completions", {**body, "prompt": long, "truncate_prompt_tokens": -1, "echo": True})
    assert status == 200 and answer["choices"][0]["text"].count("word") < 5000
    assert ask(urls, "embeddings", {"input": long})[0] == 400
    assert ask(urls, "embeddings", {"input": long, "truncate_prompt_tokens": -1})[0] == 200


def events(text):
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def test_token_ids_are_returned(urls):
    body = {"max_tokens": 6, "ignore_eos": True, "return_token_ids": True, "n": 2, "temperature": 0, "seed": 1}
    whole = ask(urls, "completions", {**body, "prompt": ["Once", "a b"]})[1]
    assert [len(choice["token_ids"]) for choice in whole["choices"]] == [6] * 4
    assert whole["choices"][0]["prompt_token_ids"] != whole["choices"][2]["prompt_token_ids"]
    streamed = events(ask(urls, "completions", {**body, "prompt": ["Once", "a b"], "stream": True})[1])
    for choice in whole["choices"]:
        parts = [event["choices"][0] for event in streamed if event["choices"][0]["index"] == choice["index"]]
        assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [choice["prompt_token_ids"]]
        assert "prompt_token_ids" in parts[0]
        assert [token for part in parts for token in part.get("token_ids", [])] == choice["token_ids"]
    whole = ask(urls, "chat", body)[1]
    streamed = events(ask(urls, "chat", {**body, "stream": True})[1])
    assert streamed[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    for choice in whole["choices"]:
        parts = [event["choices"][0] for event in streamed if event["choices"][0]["index"] == choice["index"]]
        assert [token for part in parts for token in part.get("token_ids", [])] == choice["token_ids"]


def test_best_of_returns_the_most_likely_choices(urls):
    body = {"max_tokens": 8, "ignore_eos": True, "temperature": 2, "seed": 3, "logprobs": 0, "return_token_ids": True}
    every = ask(urls, "completions", {**body, "n": 6})[1]

    def mean(choice):
        return sum(choice["logprobs"]["token_logprobs"]) / 8

    ranked = sorted(every["choices"], key=mean, reverse=True)
    best = ask(urls, "completions", {**body, "n": 2, "best_of": 6})[1]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert [choice["token_ids"] for choice in best["choices"]] == [choice["token_ids"] for choice in ranked[:2]]
    assert best["usage"]["completion_tokens"] == 48
    # Log-probabilities that rank the choices are not returned unless they were requested.
    plain = ask(urls, "completions", {**body, "logprobs": None, "best_of": 6})[1]["choices"]
    assert len(plain) == 1 and plain[0]["logprobs"] is None and plain[0]["token_ids"] == ranked[0]["token_ids"]
    for bad in ({"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}, {"best_of": 999}):
        status, error = ask(urls, "completions", bad)
        assert (status, error["param"]) == (400, "best_of"), error
