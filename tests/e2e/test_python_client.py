"""The package quire-client is built, installed, type-checked and used against a real daemon."""

import ast
import asyncio
import contextlib
import gc
import json
import re
import signal
import subprocess
import sys
import tarfile
import threading
import typing
import zipfile

import grpc
import pytest
from daemon import QUIRE, ROOT, Daemon
from test_chat import TEMPLATE
from test_operations import get, samples
from waiting import wait_until

pytest_plugins = ["python_package"]

ONCE = "Once upon a time"


@pytest.fixture
def client(q, daemon):
    with q.Client(daemon.grpc_address, timeout=60) as client:
        yield client


# --- the package -----------------------------------------------------------------------------------


def test_source_distribution_builds_alone_without_generated_files(package):
    contents = {}
    for wheel in (package.wheel, package.wheel_of_sdist):
        with zipfile.ZipFile(wheel) as archive:
            contents[wheel] = {name: archive.read(name) for name in archive.namelist() if "RECORD" not in name}
    first, second = contents.values()
    assert first == second
    assert {"quire_client/py.typed", "quire_client/v1/generation_pb2.py"} <= set(first)
    assert any(name.endswith("LICENSE") for name in first)
    with tarfile.open(package.sdist) as archive:
        names = archive.getnames()
        assert not any(member.issym() or member.islnk() for member in archive.getmembers())
    assert any(name.endswith("proto/quire/v1/generation.proto") for name in names)
    assert not any("_pb2" in name for name in names)


def test_package_metadata_is_correct(package):
    show = "import importlib.metadata as m, json; d = m.metadata('quire-client');"
    show += "print(json.dumps([d['Version'], d['Requires-Python'], m.requires('quire-client')]))"
    version, python, wanted = json.loads(package.run(package.python, "-c", show))
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert version == re.search(r"project\(quire VERSION (\S+)", cmake).group(1)
    assert python == ">=3.10"
    for file in package.source.rglob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 10))
    from importlib.metadata import version as installed

    from packaging.requirements import Requirement

    wanted = [Requirement(one) for one in wanted]
    assert {one.name for one in wanted} >= {"grpcio", "protobuf", "googleapis-common-protos"}
    assert all(installed(one.name) in one.specifier for one in wanted)


GOOD = """
from collections.abc import Iterator
from quire_client import AsyncClient, Client, v1

request = v1.GenerateRequest(text="a", stopping=v1.StoppingParams(max_tokens=3, stop=["."]), output={"logprobs": 1})
client = Client()
text: str = client.complete(request, timeout=3).text
ids: list[int] = list(client.tokenize(v1.TokenizeRequest(text="a")).token_ids)
responses: Iterator[v1.GenerateResponse] = client.generate(request)

async def use(client: AsyncClient) -> None:
    text: str = (await client.complete(request)).text
    async with client.generate(request) as stream:
        async for response in stream:
            text = response.delta.text
"""
MISTAKES = {
    "max_tokens=": ("max_token=", "call-arg"),
    "timeout=3": ("time=3", "call-arg"),
    "text: str = client": ("text: int = client", "assignment"),
    'TokenizeRequest(text="a")': ("DetokenizeRequest()", "arg-type"),
    "(await client.complete(request)).text": ("client.complete(request).text", "attr-defined"),
}


def test_package_type_checks(package, tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    for number, (old, (new, _)) in enumerate(MISTAKES.items()):
        assert GOOD.count(old) == 1
        (tmp_path / f"bad{number}.py").write_text(GOOD.replace(old, new))
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(package.python)]
    command += ["--cache-dir", str(tmp_path / "cache"), "--config-file", str(package.source / "pyproject.toml")]
    examples = sorted((package.source / "examples").glob("*.py"))
    package.run(*command, "-p", "quire_client", cwd=tmp_path)
    package.run(*command, "--scripts-are-modules", *examples, tmp_path / "good.py", cwd=tmp_path)
    bad = [f"bad{number}.py" for number in range(len(MISTAKES))]
    done = subprocess.run([*command, *bad], capture_output=True, text=True, cwd=tmp_path)
    for name, (_, code) in zip(bad, MISTAKES.values()):
        assert re.search(rf"^{name}:.*\[{code}\]$", done.stdout, flags=re.MULTILINE), done.stdout + done.stderr


def test_methods_cover_the_service_and_its_types(q, api):
    methods = api.GenerateRequest.DESCRIPTOR.file.services_by_name["GenerationService"].methods
    unary = {one.name: one for one in methods if not one.client_streaming and not one.server_streaming}
    for name, method in unary.items():
        function = getattr(q.Client, re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower())
        hints = typing.get_type_hints(function)
        assert hints["request"].DESCRIPTOR.full_name == method.input_type.full_name
        assert hints["return"].DESCRIPTOR.full_name == method.output_type.full_name
    assert {one.name for one in methods} - set(unary) == {"Generate", "BatchGenerate"}


def test_messages_can_be_copied_to_other_processes(package):
    script = "import pickle; from quire_client import v1; "
    script += "m = v1.GenerateRequest(text='a', stopping={'max_tokens': 3}); assert pickle.loads(pickle.dumps(m)) == m"
    package.run(package.python, "-c", script)


# --- constraints -----------------------------------------------------------------------------------


def request_of(q, text=ONCE, max_tokens=20, **fields):
    return q.v1.GenerateRequest(text=text, stopping={"max_tokens": max_tokens}, **fields)


def test_answers_satisfy_their_constraint(q, client):
    schema = {"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 8}},
              "required": ["legs"], "additionalProperties": False}
    tags = {"triggers": [" "], "tags": [{"begin": " ", "regex": "[0-9]{2}", "end": "!"}], "at_least_one": True,
            "stop_after_first": True}

    def text(**constraint):
        return client.complete(request_of(q, max_tokens=60, constraint=constraint)).text

    answer = json.loads(text(json_schema=json.dumps(schema)))
    assert list(answer) == ["legs"] and 0 <= answer["legs"] <= 8
    assert re.fullmatch("[ab]{3}-[0-9]", text(regex="[ab]{3}-\\d"))
    assert re.fullmatch("[xy]{2}", text(ebnf_grammar="root ::= [xy] [xy]"))
    assert text(choice={"values": ["yes", "no"]}) in ("yes", "no")
    assert re.fullmatch("[^ ]* [0-9]{2}!", text(structural_tags=tags))
    compact = {"json_schema": '{"const": [1, [2]]}', "whitespace": q.v1.WHITESPACE_POLICY_COMPACT}
    assert text(**compact) == "[1, [2]]"
    assert text(regex="ab", start=q.v1.CONSTRAINT_START_AT_START) == "ab"


def test_bad_constraints_are_rejected(q, client):
    for constraint in ({"json_schema": '{"contains": {}}'}, {"choice": {}}, {"regex": "("}):
        with pytest.raises(q.QuireError) as error:
            client.complete(request_of(q, constraint=constraint))
        assert error.value.reason == "BAD_CONSTRAINT" and error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    late = {"regex": "a", "start": q.v1.CONSTRAINT_START_AFTER_REASONING}
    with pytest.raises(q.QuireError, match="CONSTRAINT_START_AFTER_REASONING"):
        client.complete(request_of(q, constraint=late))


# --- answers ---------------------------------------------------------------------------------------


def test_answers_equal_those_of_a_generated_client(q, client, generation):
    request = request_of(q, max_tokens=12, sampling={"temperature": 0.9, "seed": 7, "choice_count": 2, "top_k": 40})
    request.sampling.logit_bias[5] = -3.0
    request.output.text = request.output.token_ids = request.output.timings = request.output.echo_prompt = True
    request.output.logprobs, request.output.prompt_logprobs = 2, 1
    answer = client.complete(request)
    events = list(generation.Generate(request))
    wanted = sorted((one.completed for one in events if one.HasField("completed")), key=lambda one: one.index)
    assert len(answer.choices) == 2 and answer.text == wanted[0].text and answer.request_id
    for mine, theirs in zip(answer.choices, wanted):
        assert mine.timings.HasField("decode") and all(len(one.top) == 2 for one in mine.logprobs)
        mine.ClearField("timings"), theirs.ClearField("timings")
        mine.usage.ClearField("cached_tokens"), theirs.usage.ClearField("cached_tokens")
        assert mine == theirs
    prompt = [one for event in events for one in event.prompt_logprobs.tokens]
    assert answer.prompt_logprobs == prompt != []
    assert answer.started.prompt_text == events[0].started.prompt_text and answer.started.seed == 7
    assert answer.started.HasField("schedule_time")


def test_stream_joins_to_the_whole_answer(q, client):
    request = request_of(q, max_tokens=40, sampling={"temperature": 0})
    request.output.MergeFrom(q.v1.OutputOptions(token_ids=True, text=True, logprobs=0))
    whole = client.complete(request)
    sent = q.v1.GenerateRequest(request_id="mine")
    sent.MergeFrom(request)
    sent.output.usage_every_chunk = True
    with client.generate(sent) as stream:
        first = next(stream)
        assert first.HasField("started") and first.request_id == "mine"
        pieces = [piece for piece in stream.text()]
        streamed = stream.result()
    # Deltas that wait for a slow reader are joined.
    assert pieces and "".join(pieces) == whole.text == streamed.text and streamed.request_id == "mine"
    assert streamed.choices[0].token_ids == whole.choices[0].token_ids
    assert streamed.choices[0].logprobs == whole.choices[0].logprobs and len(whole.choices[0].logprobs) == 40
    assert not sent.output.stream  # the caller's message is not modified
    request.stopping.stop.append(whole.text[3:6])
    stopped = client.complete(request)
    assert stopped.choices[0].finish_reason == q.v1.FINISH_REASON_STOP_TEXT
    assert stopped.choices[0].stop_text == whole.text[3:6] and whole.text.startswith(stopped.text)


def test_deltas_are_joined_per_choice(q):
    def event(**fields):
        return q.v1.GenerateResponse(request_id="1", **fields)

    completion = q.Completion()
    calls = [[{"id": "a", "name": "f", "arguments_json": "{}"}], [{"id": "b", "name": "g", "arguments_json": "[]"}]]
    completion.add(event(started={"model": "m"}))
    for start in (1, 3):
        completion.add(event(prompt_logprobs={"start_position": start, "tokens": [{"token_id": start}]}))
    completion.add(event(delta={"index": 1, "text": "x", "reasoning_text": "r", "token_ids": [1], "tool_calls": calls[0]}))
    completion.add(event(delta={"index": 0, "text": "y", "logprobs": [{"token_id": 2}]}))
    completion.add(event())  # an event that a later version may send
    completion.add(event(delta={"index": 1, "text": "z", "token_ids": [3], "tool_calls": calls[1], "parse_error": "bad_call"}))
    completion.add(event(delta={"index": 1, "parse_error": "unfinished"}))
    end = event(completed={"index": 1, "finish_reason": "FINISH_REASON_EOS", "stop_token_id": 3})
    completion.add(end)
    completion.add(event(completed={"index": 0, "usage": {"completion_tokens": 1}}))
    wanted = {"index": 1, "finish_reason": "FINISH_REASON_EOS", "stop_token_id": 3, "text": "xz", "reasoning_text": "r",
              "token_ids": [1, 3], "tool_calls": calls[0] + calls[1], "parse_error": "bad_call"}
    first = q.v1.Completed(index=0, text="y", logprobs=[{"token_id": 2}], usage={"completion_tokens": 1})
    assert completion.choices == [first, q.v1.Completed(**wanted)]
    assert [one.token_id for one in completion.prompt_logprobs] == [1, 3] and completion.started.model == "m"
    assert completion.text == "y" and completion.message == q.v1.ChatMessage(role="assistant", content="y")
    turn = q.Completion(choices=[q.v1.Completed(**wanted)]).message
    assert turn == q.v1.ChatMessage(role="assistant", content="xz", reasoning_content="r", tool_calls=wanted["tool_calls"])
    assert end.completed.text == ""  # the event itself is not modified


def test_tokens_round_trip_and_serve_as_prompt(q, client):
    tokenized = client.tokenize(q.v1.TokenizeRequest(text=ONCE, with_pieces=True))
    assert b"".join(one.piece for one in tokenized.pieces if not one.special).decode().strip() == ONCE
    ids = tokenized.token_ids
    detokenized = client.detokenize(q.v1.DetokenizeRequest(token_ids=ids, skip_special_tokens=True))
    assert detokenized.text.strip() == ONCE and detokenized.raw.decode() == detokenized.text
    as_text = client.complete(request_of(q, max_tokens=8, sampling={"temperature": 0}))
    as_ids = client.complete(request_of(q, None, 8, sampling={"temperature": 0}, token_ids={"ids": ids}))
    assert as_ids.text == as_text.text and as_text.started.prompt_tokens == len(ids)


def test_vectors_and_scores(q, client, generation, daemon):
    embed = q.v1.EmbedRequest(pooling=q.v1.POOLING_MEAN, normalize=True, dimensions=8)
    embed.inputs.add(text=ONCE)
    embed.inputs.add(token_ids={"ids": [1, 2, 3]})
    embedded = client.embed(embed)
    assert embedded.embeddings == generation.Embed(embed).embeddings and len(embedded.embeddings[1].values) == 8
    score = q.v1.ScoreRequest(items=[{"context_text": ONCE, "text": " there was"}], return_token_logprobs=True)
    score.items.add(context_ids={"ids": [1, 5]}, token_ids={"ids": [6]})
    scored = client.score(score)
    assert [one.token_count for one in scored.results] == [len(scored.results[0].tokens), 1]
    assert scored.results[0].total_logprob == sum(token.logprob for token in scored.results[0].tokens)

    async def ask():
        async with q.AsyncClient(daemon.grpc_address, timeout=60) as client:
            return await client.embed(embed), await client.score(score)

    again = asyncio.run(ask())
    assert again[0].embeddings == embedded.embeddings
    assert [one.total_logprob for one in again[1].results] == [one.total_logprob for one in scored.results]
    embed.dimensions = 1 << 20
    with pytest.raises(q.QuireError) as caught:
        client.embed(embed)
    assert caught.value.metadata["field"] == "dimensions"


def test_server_and_model_information(q, client, generation):
    mine = client.get_model(q.v1.GetModelRequest()).model
    assert mine == generation.GetModel(q.v1.GetModelRequest()).model and mine.state == q.v1.MODEL_STATE_READY
    assert mine == client.get_model(q.v1.GetModelRequest(model=mine.id)).model
    assert [mine] == list(client.list_models(q.v1.ListModelsRequest()).models)
    info = client.get_server_info(q.v1.GetServerInfoRequest())
    assert info.state == q.v1.SERVER_STATE_READY and info.limits.max_choices >= 1 and info.devices[0].kind == "cpu"
    assert client.health() and client.health("liveness")
    assert not client.cancel(q.v1.CancelRequest(request_id="nobody")).found
    with pytest.raises(q.QuireError) as error:
        client.health("nonsense")
    assert error.value.code is grpc.StatusCode.NOT_FOUND


def test_batch_reports_each_outcome(q, client):
    good = request_of(q, max_tokens=6, sampling={"temperature": 0})
    bad = request_of(q, "A dog", sampling={"temperature": 101.0})
    items = sorted(client.batch([good, bad, request_of(q, "A cat")]), key=lambda one: one.index)
    assert [isinstance(one.outcome, q.QuireError) for one in items] == [False, True, False]
    assert items[0].result().text == client.complete(good).text and good.request_id == ""
    error = items[1].outcome
    assert error.reason == "BAD_SAMPLING_PARAM" and error.metadata["field"].endswith("sampling.temperature")
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(q.QuireError) as raised:
        items[1].result()
    assert raised.value is error
    with pytest.raises(ValueError, match="twice"):
        client.batch([request_of(q, "a", request_id="x")] * 2)
    with pytest.raises(TypeError):
        client.batch("Once")


def test_asyncio_client_gives_equal_results(q, client, daemon):
    first, second = (request_of(q, max_tokens=12, sampling={"seed": seed}) for seed in (1, 2))
    model, models, info = q.v1.GetModelRequest(), q.v1.ListModelsRequest(), q.v1.GetServerInfoRequest()

    async def use():
        async with q.AsyncClient(daemon.grpc_address, timeout=60) as aio:
            answers = await asyncio.gather(*(aio.complete(one) for one in (first, second)))
            async with aio.generate(first) as stream:
                pieces = [piece async for piece in stream.text()]
                assert (await stream.result()).text == "".join(pieces)
            async with aio.generate(first) as stream:
                kinds = [response.WhichOneof("event") async for response in stream]
                assert kinds[0] == "started" and kinds[-1] == "completed"
            batch = {item.index: item.result().text async for item in aio.batch([first, second])}
            ids = (await aio.tokenize(q.v1.TokenizeRequest(text=ONCE))).token_ids
            detokenized = await aio.detokenize(q.v1.DetokenizeRequest(token_ids=ids, skip_special_tokens=True))
            assert detokenized.text.strip() == ONCE
            described = (await aio.get_model(model), await aio.list_models(models), await aio.get_server_info(info))
            assert await aio.health() and not (await aio.cancel(q.v1.CancelRequest(request_id="nobody"))).found
            with pytest.raises(q.QuireError) as error:
                await aio.render_chat(q.v1.RenderChatRequest(chat={"messages": []}))
            assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(ValueError, match="closed"):
            await aio.health()
        return [answer.text for answer in answers], "".join(pieces), batch, described

    texts, streamed, batch, described = asyncio.run(use())
    assert texts == [client.complete(one).text for one in (first, second)]
    assert texts[0] == streamed and texts == [batch[0], batch[1]]
    mine = client.get_model(model), client.list_models(models), client.get_server_info(info)
    assert described[:2] == mine[:2] and described[2].version == mine[2].version
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.health()


def test_chat_tools_and_examples(q, client, daemon, package, tmp_path):
    for file in (ROOT / "assets" / "story").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    tool = {"name": "look", "description": "Looks", "parameters_json_schema": '{"type": "object"}'}
    chat = q.v1.ChatPrompt(messages=turns, tools=[tool])
    chat.template_vars.update({"speaker": "Me"})

    def example(name, *arguments, server=daemon, code=0):
        script = package.source / "examples" / name
        command = [package.python, script, "--address", server.grpc_address, *arguments]
        done = subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    with Daemon(tmp_path, settings=[f"model.path={tmp_path}"]) as chatty:
        with q.Client(chatty.wait_serving().grpc_address) as talker:
            rendered = talker.render_chat(q.v1.RenderChatRequest(chat=chat))
            assert rendered.text.startswith("System: Be brief.\nUser: Hi\n[{") and rendered.text.endswith("Me:")
            assert talker.tokenize(q.v1.TokenizeRequest(chat=chat)).token_ids == rendered.token_ids
            answer = talker.complete(request_of(q, None, 3, chat=chat, output={"echo_prompt": True}))
            assert answer.started.prompt_text == rendered.text
            chat.messages.append(answer.message)
            chat.messages.add(role="user", content="And?")
            rendered = talker.render_chat(q.v1.RenderChatRequest(chat=chat)).text
            assert answer.text and answer.text in rendered and "User: And?" in rendered
            with pytest.raises(q.QuireError) as error:
                talker.render_chat(q.v1.RenderChatRequest(chat={"messages": [{"role": "clown", "content": "Hi"}]}))
        assert error.value.reason == "BAD_CHAT_TEMPLATE_INPUT" and "unknown role clown" in error.value.message
        assert example("chat.py", "Who are you?", "And who am I?", server=chatty).strip()
    assert example("chat.py", "tell me a story about a cat").strip()
    story = example("story.py", "--max-tokens", "20")
    assert re.search(r"-- 20 tokens, ended by FINISH_REASON_LENGTH\n-- the same again: seed=-?\d+", story)
    assert [line.split()[1] for line in example("gather.py").splitlines()] == ["dog", "cat", "old"]
    ranked = example("rank.py").split()[1::2]
    assert sorted(ranked) == ["dog", "girl", "refrigerator"] and ranked[-1] == "refrigerator"
    names = {script.name for script in (package.source / "examples").iterdir()}
    assert names == {"chat.py", "gather.py", "rank.py", "story.py"}


# --- ends ------------------------------------------------------------------------------------------

ENDLESS = 50000  # tokens


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A daemon whose answers take many seconds (random weights, a long context). It also listens on a Unix socket."""
    folder = tmp_path_factory.mktemp("endless")
    subprocess.run([str(QUIRE), "make-model", "--shape", "tiny", "--out", str(folder / "m")], check=True, timeout=60)
    config = json.loads((folder / "m" / "config.json").read_text())
    config["max_position_embeddings"] = ENDLESS + 1000
    (folder / "m" / "config.json").write_text(json.dumps(config))
    settings = [f"model.path={folder}/m", "model.load_mode=dummy", "kv_cache.capacity_bytes=512MiB"]
    settings += [f"server.grpc.listen=[127.0.0.1:0, unix:{folder}/data.sock]"]
    with Daemon(folder, settings=settings) as running:
        running.wait_serving()
        running.unix = f"unix:{folder}/data.sock"
        yield running
        assert running.process.poll() is None, "quired died:\n" + running.log


def long_request(q, **fields):
    stopping = {"max_tokens": ENDLESS, "ignore_eos": True}
    return q.v1.GenerateRequest(token_ids={"ids": [5, 6, 7]}, stopping=stopping, **fields)


def quick_request(q, **fields):
    return q.v1.GenerateRequest(token_ids={"ids": [5, 6]}, stopping={"max_tokens": 1}, **fields)


class Endings:
    """The daemon's counts of requests and how they ended."""

    def __init__(self, daemon):
        self._daemon = daemon

    def total(self, name, label=""):
        found = samples(get(self._daemon, "/metrics")[1]).items()
        return sum(value for key, value in found if key.startswith(name) and label in key)

    def wait_running(self):
        wait_until(lambda: self.total("quire_requests_running") == 1, "a request that runs")

    @contextlib.contextmanager
    def one_more_cancelled(self):
        """Waits until the server sees the client cancel one request and nothing is running."""
        name, label = "quire_requests_cancelled_total", 'source="client"'
        before = self.total(name, label)
        yield
        wait_until(lambda: self.total(name, label) == before + 1, "the cancel")
        wait_until(lambda: self.total("quire_requests_running") + self.total("quire_requests_waiting{") == 0, "idleness")
        wait_until(lambda: self.total("quire_kv_cache_pages", 'state="used"') == 0, "free pages")


def leave_with(q, client, endings):
    with client.generate(long_request(q)) as stream:
        next(stream.text())


def drop_iterator(q, client, endings):
    for response in client.generate(long_request(q)):
        if response.HasField("delta"):
            break
    del response
    gc.collect()


def cancelled(q):
    return pytest.raises(q.QuireError, match="^CANCELLED")


def close_client(q, client, endings):
    stream = client.generate(long_request(q))
    next(stream)
    client.close()
    with cancelled(q):
        stream.result()


def from_a_thread(q, endings, end, call):
    """`call` fails with CANCELLED after `end`, which another thread calls once the request runs."""
    ended = threading.Thread(target=lambda: (endings.wait_running(), end()))
    ended.start()
    with cancelled(q):
        call()
    ended.join()


def cancel_from_a_thread(q, client, endings):
    stream = client.generate(long_request(q))
    from_a_thread(q, endings, stream.cancel, stream.result)


def close_from_a_thread(q, client, endings):
    from_a_thread(q, endings, client.close, lambda: client.complete(long_request(q)))


def drop_batch(q, client, endings):
    for item in client.batch([long_request(q), quick_request(q)]):
        assert item.index == 1
        break


@pytest.mark.parametrize(
    "end", [leave_with, drop_iterator, close_client, cancel_from_a_thread, close_from_a_thread, drop_batch]
)
def test_abandoned_calls_are_cancelled(q, endless, end):
    endings = Endings(endless)
    with q.Client(endless.unix) as client, endings.one_more_cancelled():
        end(q, client, endings)


def test_keyboard_interrupt_cancels_the_request(package, endless):
    script = "import sys; from quire_client import Client, v1; c = Client(sys.argv[1]); print('on', flush=True); "
    script += f"c.complete(v1.GenerateRequest(text='a', stopping=dict(max_tokens={ENDLESS}, ignore_eos=True)))"
    endings = Endings(endless)
    with endings.one_more_cancelled():
        process = subprocess.Popen([package.python, "-c", script, endless.unix], stdout=-1, stderr=-1, text=True)
        assert process.stdout.readline() == "on\n"
        endings.wait_running()
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]


async def aio_leave_with(q, client, endings):
    async with client.generate(long_request(q)) as stream:
        await stream.text().__anext__()


async def aio_drop_iterator(q, client, endings):
    async for response in client.generate(long_request(q)):
        if response.HasField("delta"):
            break
    gc.collect()
    await wait_cancelled(endings)


async def aio_drop_batch(q, client, endings):
    async for item in client.batch([long_request(q), quick_request(q)]):
        assert item.index == 1
        break
    gc.collect()
    await wait_cancelled(endings)


async def wait_cancelled(endings):
    """Waits while the client is still open."""
    await asyncio.to_thread(wait_until, lambda: endings.total("quire_requests_running") == 0, "the cancel")


async def start(endings, call):
    task = asyncio.ensure_future(call)
    await asyncio.to_thread(endings.wait_running)
    return task


async def aio_cancel_task(q, client, endings):
    task = await start(endings, client.complete(long_request(q)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def aio_time_is_up(q, client, endings):
    task = await start(endings, client.complete(long_request(q)))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(task, 0.1)


async def aio_close_client(q, client, endings):
    task = await start(endings, client.generate(long_request(q)).result())
    await client.close()
    with cancelled(q):
        await task


async def aio_cancel_stream_and_task(q, client, endings):
    stream = client.generate(long_request(q))
    task = await start(endings, stream.result())
    stream.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) if sys.version_info >= (3, 11) else cancelled(q):
        await task


async def aio_cancel_by_id(q, client, endings):
    stream = client.generate(long_request(q, request_id="by-id"))
    task = await start(endings, stream.result())
    assert (await client.cancel(q.v1.CancelRequest(request_id="by-id"))).found
    with cancelled(q) as error:
        await task
    assert error.value.reason == "CANCELLED_BY_CALLER" and error.value.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    "end",
    [
        aio_leave_with, aio_drop_iterator, aio_drop_batch, aio_cancel_task, aio_time_is_up, aio_close_client,
        aio_cancel_stream_and_task, aio_cancel_by_id,
    ],
)
def test_asyncio_client_cancels_abandoned_calls(q, endless, end):
    endings = Endings(endless)

    async def use():
        async with q.AsyncClient(endless.unix) as client:
            await end(q, client, endings)

    with endings.one_more_cancelled():
        asyncio.run(use())


OLDEST_CALLS = """
import asyncio, sys
import google.protobuf, grpc
from quire_client import AsyncClient, Client, QuireError, v1

print(google.protobuf.__version__, grpc.__version__)
address, endless = sys.argv[1:]
request = v1.GenerateRequest(text="Once", stopping={"max_tokens": 4}, output={"logprobs": 1})
with Client(address, timeout=60) as client:
    whole = client.complete(request)
    with client.generate(request) as stream:
        assert "".join(stream.text()) and whole.choices[0].usage.completion_tokens == 4
    assert sorted(item.index for item in client.batch([request, request])) == [0, 1]
    ids = client.tokenize(v1.TokenizeRequest(text="Once")).token_ids
    assert "Once" in client.detokenize(v1.DetokenizeRequest(token_ids=ids)).text and client.health()
    try:
        client.complete(v1.GenerateRequest(text="Once", model="none"))
    except QuireError as error:
        assert error.reason == "MODEL_NOT_FOUND", error
    else:
        raise AssertionError("an unknown model was served")

async def cancel():
    async with AsyncClient(endless) as client:
        stopping = {"max_tokens": ENDLESS, "ignore_eos": True}
        stream = client.generate(v1.GenerateRequest(token_ids={"ids": [5]}, stopping=stopping))
        async for _ in stream:
            break
        task = asyncio.ensure_future(stream.result())
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return
        raise AssertionError("the task was not cancelled")

asyncio.run(cancel())
"""


def test_oldest_dependencies_make_the_same_calls(package, daemon, endless):
    pins = dict(line.split("==") for line in (ROOT / "tests/e2e/oldest_client.txt").read_text().split() if "==" in line)
    with Endings(endless).one_more_cancelled():
        script = OLDEST_CALLS.replace("ENDLESS", str(ENDLESS))
        printed = package.run(package.oldest_python, "-c", script, daemon.grpc_address, endless.unix)
    assert printed.split() == [pins["protobuf"], pins["grpcio"]]


def test_declared_bounds_are_the_tested_ones(package):
    from packaging.requirements import Requirement

    pins = [line.split("==") for line in (ROOT / "tests/e2e/oldest_client.txt").read_text().split() if "==" in line]
    show = "import importlib.metadata as m, json; print(json.dumps(m.requires('quire-client')))"
    wanted = {one.name: one.specifier for one in map(Requirement, json.loads(package.run(package.python, "-c", show)))}
    for name, version in pins:
        if name in wanted:
            assert any(one.operator == ">=" and one.version == version for one in wanted[name]), f"{name}: {wanted[name]}"
    assert set(wanted) <= {name for name, _ in pins}


# --- errors ----------------------------------------------------------------------------------------


def test_errors_have_code_reason_metadata_and_usage(q, client, endless):
    def failure(code, call):
        with pytest.raises(q.QuireError) as error:
            call()
        assert error.value.code is code
        return error.value

    codes = grpc.StatusCode
    long = failure(codes.INVALID_ARGUMENT, lambda: client.complete(request_of(q, "a " * 3000)))
    context = client.get_model(q.v1.GetModelRequest()).model.max_context_tokens
    assert long.reason == "PROMPT_TOO_LONG" and int(long.metadata["max_context_tokens"]) == context
    assert int(long.metadata["prompt_tokens"]) > context and str(long).startswith("INVALID_ARGUMENT/PROMPT_TOO_LONG: ")
    bad = failure(codes.INVALID_ARGUMENT, lambda: client.complete(request_of(q, sampling={"top_p": 0.0})))
    assert bad.reason == "BAD_SAMPLING_PARAM" and bad.metadata["field"].endswith("sampling.top_p")
    assert bad.retry_delay is None
    assert failure(codes.NOT_FOUND, lambda: client.complete(request_of(q, model="none"))).reason == "MODEL_NOT_FOUND"
    chat = q.v1.RenderChatRequest(chat={"messages": [{"role": "user", "content": "Hi"}]})
    with q.Client(endless.unix) as other:  # its model has no chat template
        assert failure(codes.FAILED_PRECONDITION, lambda: other.render_chat(chat)).reason == "CHAT_TEMPLATE_MISSING"
        with other.generate(long_request(q, request_id="twin")) as stream:
            next(stream)
            twin = failure(codes.ALREADY_EXISTS, lambda: other.complete(quick_request(q, request_id="twin")))
            assert twin.reason == "REQUEST_ID_IN_USE"
            assert other.cancel(q.v1.CancelRequest(request_id="twin")).found
            ended = failure(codes.CANCELLED, stream.result)
        assert ended.reason == "CANCELLED_BY_CALLER" and ended.usage.prompt_tokens == 3
        failure(codes.DEADLINE_EXCEEDED, lambda: other.complete(long_request(q), timeout=0.2))
        error = next(other.batch([long_request(q, timeout={"nanos": 200_000_000})])).outcome
        assert error.code is codes.DEADLINE_EXCEEDED and error.reason == "TIMEOUT" and error.usage.prompt_tokens == 3
    with pytest.raises(TypeError):
        client.complete(ONCE)
