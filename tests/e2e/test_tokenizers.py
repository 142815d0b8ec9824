"""A daemon whose model has a tokenizer.model, tekken.json or tokenizer.tiktoken instead of a tokenizer.json."""

import json
import shutil

import pytest
from daemon import TESTDATA, Daemon

CASES = TESTDATA / "tokenizers" / "cases"
KINDS = {"llama2-sentencepiece": "<s>", "unigram-byte-fallback-sentencepiece": "<s>", "tekken-file": "<s>", "tiktoken-cl100k": "<|im_start|>"}


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def served(kind, tmp_path_factory):
    """A model with random weights in the size of the tokenizer, and a template that prints a special token."""
    folder = tmp_path_factory.mktemp(kind)
    config = json.loads((TESTDATA / "models/llama-gqa-tied-bf16/config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 1024}))
    for path in (CASES / kind).iterdir():
        if path.name != "cases.jsonl":
            shutil.copyfile(path, folder / path.name)
    (folder / "chat_template.jinja").write_text(KINDS[kind] + "{{ messages[0].content }}")
    settings = [f"model.path={folder}", "model.load_mode=dummy"]
    with Daemon(tmp_path_factory.mktemp("quired"), settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture
def service(api, served):
    with served.channel() as channel:
        yield api.GenerationServiceStub(channel)


def test_ids_and_text_equal_the_recorded_ones(api, service, kind):
    cases = [json.loads(line) for line in (CASES / kind / "cases.jsonl").read_text().splitlines()]
    texts = [case for case in cases if case.get("text") and not case.get("unicode_data_differs")]
    for case in texts[::9]:
        request = api.TokenizeRequest(text=case["text"], add_special_tokens=case["add_special_tokens"])
        assert list(service.Tokenize(request).token_ids) == case["ids"], case["name"]
        answer = service.Detokenize(api.DetokenizeRequest(token_ids=case["ids"]))
        assert answer.text == case.get("decode", case["text"]), case["name"]


def test_special_tokens_of_a_template_are_single_tokens(api, service, kind):
    chat = api.ChatPrompt()
    chat.messages.add(role="user", content="hello")
    (special, *rest) = service.Tokenize(api.TokenizeRequest(chat=chat)).token_ids
    plain = api.TokenizeRequest(text="hello", add_special_tokens=False)
    assert rest == list(service.Tokenize(plain).token_ids)
    shown = service.Detokenize(api.DetokenizeRequest(token_ids=[special]))
    assert shown.text == KINDS[kind]
    assert list(service.RenderChat(api.RenderChatRequest(chat=chat)).token_ids) == [special, *rest]


def test_streamed_text_decodes_the_ids(api, service):
    prompt = list(service.Tokenize(api.TokenizeRequest(text="The cat")).token_ids)
    request = api.GenerateRequest(text="The cat")
    request.stopping.max_tokens = 24
    request.stopping.ignore_eos = True
    request.output.stream = request.output.text = request.output.token_ids = True
    ids, text = [], ""
    for response in service.Generate(request):
        ids += response.delta.token_ids
        text += response.delta.text
    assert len(ids) == 24

    def decoded(ids):
        return service.Detokenize(api.DetokenizeRequest(token_ids=ids, skip_special_tokens=True)).text

    assert decoded(prompt) + text == decoded(prompt + ids)
