"""The text of an answer starts exactly where the text of its prompt ends.

The expected text is decode(prompt + answer) without decode(prompt), in tokenizers 0.23.3 and sentencepiece 0.2.3. A
constrained answer is in the language of its constraint. text_offset counts the characters that start before a token.
"""

import json
import re
import shutil
import urllib.request

import pytest
from daemon import TESTDATA, Daemon, has_structured_output

needs_structured_output = pytest.mark.skipif(not has_structured_output(), reason="the build has no structured output")
CASES = TESTDATA / "tokenizers" / "cases"
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
BOS = 1
# The ids of "▁a" and "▁the".
KINDS = {
    "llama2-style": (261, 266),
    "mistral-style": (264, 269),
    "unigram-byte-fallback": (269, 263),
    "llama2-sentencepiece": (261, 266),
}
# The ids of the byte tokens in llama2-style.
E2, X82, XAC, X80 = 229, 133, 175, 131


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    return request.param


def start(name, folder):
    """Starts a daemon with random weights in the size of the tokenizer."""
    config = json.loads((TESTDATA / "models/llama-gqa-tied-bf16/config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 1024, "eos_token_id": 2}))
    for path in (CASES / name).iterdir():
        if path.name != "cases.jsonl":
            shutil.copyfile(path, folder / path.name)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    settings = ("model.load_mode=dummy", "openai.enabled=true", "openai.listen=127.0.0.1:0", f"model.path={folder}")
    return Daemon(folder, settings=settings)


@pytest.fixture(scope="module")
def served(kind, tmp_path_factory):
    with start(kind, tmp_path_factory.mktemp("served")) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture(scope="module")
def bytes_served(tmp_path_factory):
    with start("llama2-style", tmp_path_factory.mktemp("bytes")) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


def post(running, path, **body):
    data = json.dumps({"temperature": 0, "max_tokens": 2, **body}).encode()
    request = urllib.request.Request(
        f"http://{running.openai_address}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if not body.get("stream"):
        return json.loads(text)["choices"]
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(event)["choices"][0] for event in events[:-1]]


def complete(running, **body):
    return post(running, "/v1/completions", **body)


def always(token):
    """Forces every sample to this token."""
    return {"logit_bias": {str(token): 100}, "ignore_eos": True}


def test_first_space_is_kept(served, kind):
    the = always(KINDS[kind][1])
    assert [c["text"] for c in complete(served, prompt="a", n=2, **the)] == [" the the"] * 2
    assert complete(served, prompt="a", echo=True, **the)[0]["text"] == "a the the"
    chunks = complete(served, prompt="a", stream=True, **the)
    assert "".join(c["text"] for c in chunks) == " the the" and chunks[0]["text"].startswith(" ")
    # After special tokens only, the text starts with the answer, unless special tokens are shown.
    assert complete(served, prompt=[BOS], **the)[0]["text"] == "the the"
    if kind != "llama2-sentencepiece":
        assert complete(served, prompt=[BOS], skip_special_tokens=False, **the)[0]["text"] == " the the"


def test_first_space_is_kept_over_grpc(api, served, kind):
    request = api.GenerateRequest(text="a")
    request.sampling.temperature = 0
    request.sampling.logit_bias[KINDS[kind][1]] = 100
    request.stopping.max_tokens = 2
    request.stopping.ignore_eos = True
    request.output.text = True
    request.output.echo_prompt = True
    request.output.logprobs = 0
    with served.channel() as channel:
        events = list(api.GenerationServiceStub(channel).Generate(request, timeout=60))
    assert events[0].started.prompt_text == "a"
    assert events[-1].completed.text == " the the"
    assert [row.text_offset for row in events[-1].completed.logprobs] == [0, 4]


def test_stop_strings_see_the_first_space(served, kind):
    the = always(KINDS[kind][1])
    (choice,) = complete(served, prompt="a", stop=[" the"], **the)
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    (choice,) = complete(served, prompt="a", stop=[" t"], include_stop_str_in_output=True, **the)
    assert (choice["text"], choice["finish_reason"]) == (" t", "stop")
    (choice,) = complete(served, prompt=[BOS], stop=[" the"], **the)
    assert (choice["text"], choice["finish_reason"]) == ("the", "stop")


@needs_structured_output
@pytest.mark.parametrize("prompt", ["a", [BOS]])
def test_constrained_answers_match_their_constraint(served, prompt):
    def one(**constraint):
        return complete(served, prompt=prompt, max_tokens=60, structured_outputs=constraint)[0]["text"]

    assert one(choice=[" the cat"]) == " the cat"
    assert one(choice=["the cat"]) == "the cat"
    assert one(choice=["  two"]) == "  two"
    assert re.fullmatch(" [a-c]{3}", one(regex=" [a-c]{3}"))
    assert one(grammar='root ::= " yes" | " no"') in (" yes", " no")
    schema = {"type": "object", "properties": {"a": {"const": " x"}}, "required": ["a"], "additionalProperties": False}
    assert one(json=schema, disable_any_whitespace=True) == '{"a": " x"}'


@needs_structured_output
def test_continued_message_keeps_the_space_after_it(served):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    answer = {"structured_outputs": {"choice": [" 42"]}, "max_tokens": 20}
    (choice,) = post(served, "/v1/chat/completions", **body, **answer)
    assert choice["message"]["content"] == " 42"


def test_text_offsets_match_the_text(served, kind):
    a, the = KINDS[kind]

    def offsets(**body):
        (choice,) = complete(served, logprobs=0, **always(the), **body)
        return choice["text"], choice["logprobs"]["text_offset"]

    assert offsets(prompt="a") == (" the the", [0, 4])
    assert offsets(prompt="a", echo=True) == ("a the the", [0, 0, 1, 5])
    assert offsets(prompt=[a, the], echo=True) == ("a the the the", [0, 1, 5, 9])
    assert offsets(prompt=[BOS]) == ("the the", [0, 3])
    assert offsets(prompt=[BOS], echo=True) == ("the the", [0, 0, 3])


def test_text_offsets_count_replacement_characters(bytes_served):
    def offsets(token, **body):
        (choice,) = complete(bytes_served, logprobs=0, **always(token), **body)
        return choice["text"], choice["logprobs"]["text_offset"]

    broken = "\ufffd"
    a = KINDS["llama2-style"][0]
    assert offsets(X80, prompt="a", max_tokens=3) == (broken * 3, [0, 1, 2])
    assert offsets(E2, prompt="a", max_tokens=3) == (broken * 3, [0, 1, 2])
    assert offsets(a, prompt=[a, X80, X80, a], echo=True, max_tokens=1) == (f"a{broken * 2} a a", [0, 1, 2, 3, 5])
    assert offsets(a, prompt=[a, E2, X82, a], echo=True, max_tokens=1) == (f"a{broken} a a", [0, 1, 2, 2, 4])
    assert offsets(a, prompt=[a, E2, X82, XAC], echo=True, max_tokens=1) == ("a\u20ac a", [0, 1, 2, 2, 2])


def test_character_split_by_the_prompt_end(bytes_served):
    a = KINDS["llama2-style"][0]
    cut = [a, E2, X82]

    def text(token, **body):
        return complete(bytes_served, prompt=cut, max_tokens=1, **always(token), **body)[0]["text"]

    assert text(XAC) == "\u20ac"
    assert text(XAC, echo=True) == "a\u20ac"
    assert text(a) == " a"
    assert text(a, echo=True) == "a\ufffd a"
    assert text(a, echo=True, stream=True) == "a\ufffd a"
    (choice,) = complete(bytes_served, prompt=cut, max_tokens=0, echo=True)
    assert choice["text"] == "a\ufffd"
