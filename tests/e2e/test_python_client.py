"""The package quire-client: built, installed, type-checked, and used against a real daemon."""

import ast
import asyncio
import contextlib
import dataclasses
import gc
import json
import re
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile

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


def test_the_source_distribution_builds_alone_and_has_nothing_generated(package):
    contents = {}
    for wheel in (package.wheel, package.wheel_of_sdist):
        with zipfile.ZipFile(wheel) as archive:
            contents[wheel] = {name: archive.read(name) for name in archive.namelist() if "RECORD" not in name}
    first, second = contents.values()
    assert first == second
    assert {"quire_client/py.typed", "quire_client/_proto/generation_pb2.py"} <= set(first)
    assert any(name.endswith("LICENSE") for name in first)
    with tarfile.open(package.sdist) as archive:
        names = archive.getnames()
        assert not any(member.issym() or member.islnk() for member in archive.getmembers())
    assert any(name.endswith("proto/quire/v1/generation.proto") for name in names)
    assert not any("_pb2" in name for name in names)


def test_the_metadata_is_right(package):
    show = "import importlib.metadata as m, json; d = m.metadata('quire-client');"
    show += "print(json.dumps([d['Version'], d['Requires-Python'], m.requires('quire-client')]))"
    version, python, wanted = json.loads(package.run(package.python, "-c", show))
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert version == re.search(r"project\(quire VERSION (\S+)", cmake).group(1)
    assert python == ">=3.9"
    for file in package.source.rglob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 9))
    from importlib.metadata import version as installed

    from packaging.requirements import Requirement

    wanted = [Requirement(one) for one in wanted]
    assert {one.name for one in wanted} >= {"grpcio", "protobuf", "googleapis-common-protos"}
    assert all(installed(one.name) in one.specifier for one in wanted)


def test_everything_is_typed(package, tmp_path):
    good = "from quire_client import Client\ntext: str = Client().complete('a', max_tokens=3, stop=['.']).text\n"
    good += "class Model:\n    @classmethod\n    def model_json_schema(cls, by_alias: bool = True) -> dict[str, object]:\n"
    good += "        return {}\nfor schema in (Model, {'type': 'null'}, '{}'):\n    Client().complete('a', json_schema=schema)\n"
    (tmp_path / "good.py").write_text(good)
    (tmp_path / "bad.py").write_text(good.replace("max_tokens", "max_token") + "number: int = text\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(package.python)]
    command += ["--cache-dir", str(tmp_path / "cache"), "--config-file", str(package.source / "pyproject.toml")]
    examples = sorted((package.source / "examples").glob("*.py"))
    package.run(*command, "-p", "quire_client", cwd=tmp_path)
    package.run(*command, "--scripts-are-modules", *examples, tmp_path / "good.py", cwd=tmp_path)
    done = subprocess.run([*command, tmp_path / "bad.py"], capture_output=True, text=True, cwd=tmp_path)
    assert "max_token" in done.stdout and "[assignment]" in done.stdout, done.stdout + done.stderr


def test_options_and_values_cover_the_schema(q, api):
    from quire_client import _convert, types

    request = {field.name for field in api.GenerateRequest.DESCRIPTOR.fields}
    top = {name for part, name in _convert.OPTION_PLACES.values() if not part}
    parts = {part for part, _ in _convert.OPTION_PLACES.values()} - {""}
    assert request - {"text", "token_ids", "chat"} == top | parts
    kinds = {field for part, field in _convert.OPTION_PLACES.values() if part == "constraint"}
    assert {field.name for field in api.Constraint.DESCRIPTOR.fields} - {"json_object"} == kinds
    assert set(q.Options.__annotations__) == set(_convert.OPTION_PLACES)
    renamed = {
        "Tool": "ToolSpec", "Tokenized": "TokenizeResponse", "Detokenized": "DetokenizeResponse",
        "Rendered": "RenderChatResponse", "ServerInfo": "GetServerInfoResponse", "SamplingDefaults": "SamplingParams",
        "Message": "ChatMessage", "Chat": "ChatPrompt", "Embeddings": "EmbedResponse", "Scores": "ScoreResponse",
        "Score": "ScoreResult",
    }
    checked = 0
    for name, kind in vars(types).items():
        if dataclasses.is_dataclass(kind) and name not in ("Completion", "Request"):
            fields = {field.name for field in getattr(api, renamed.get(name, name)).DESCRIPTOR.fields}
            assert {field.name for field in dataclasses.fields(kind)} == fields, name
            checked += 1
    assert checked >= 20
    for kind in (q.FinishReason, q.ModelState, q.ServerState):
        prefix = re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).upper() + "_"
        numbers = {name.removeprefix(prefix): number for name, number in getattr(api, kind.__name__).items()}
        assert {one.name: one.value for one in kind} == numbers
    assert q.FinishReason(99) is q.FinishReason.UNSPECIFIED


# --- constraints -----------------------------------------------------------------------------------


class Animal:
    """As a class of Pydantic models."""

    SCHEMA = {"type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 8}},
              "required": ["legs"], "additionalProperties": False}

    @classmethod
    def model_json_schema(cls):
        return cls.SCHEMA


@pytest.mark.parametrize("schema", [Animal, Animal.SCHEMA, json.dumps(Animal.SCHEMA)], ids=["class", "dict", "text"])
def test_answers_are_valid_by_a_schema(client, schema):
    answer = json.loads(client.complete(ONCE, json_schema=schema, max_tokens=60, temperature=0).text)
    assert list(answer) == ["legs"] and 0 <= answer["legs"] <= 8


def test_answers_have_the_other_forms(client):
    assert re.fullmatch("[ab]{3}-[0-9]", client.complete(ONCE, regex="[ab]{3}-\\d", max_tokens=20).text)
    assert re.fullmatch("[xy]{2}", client.complete(ONCE, grammar="root ::= [xy] [xy]", max_tokens=20).text)
    assert client.complete(ONCE, choices=["yes", "no"], max_tokens=20).text in ("yes", "no")
    tags = {"triggers": [" "], "tags": [{"begin": " ", "regex": "[0-9]{2}", "end": "!"}], "at_least_one": True,
            "stop_after_first": True}
    assert re.fullmatch("[^ ]* [0-9]{2}!", client.complete(ONCE, structural_tags=tags, max_tokens=60).text)


def test_options_of_a_constraint_are_words_or_numbers(q, api, client):
    for compact in ("compact", api.WHITESPACE_POLICY_COMPACT):
        answer = client.complete(ONCE, json_schema={"const": [1, [2]]}, constraint_whitespace=compact, max_tokens=20)
        assert answer.text == "[1, [2]]"
    assert client.complete(ONCE, regex="ab", constraint_start="at_start", max_tokens=20).text == "ab"
    with pytest.raises(q.QuireError) as error:
        client.complete(ONCE, regex="a", constraint_start="after_reasoning")
    assert "a constraint behind reasoning" in str(error.value)
    for options in ({"constraint_start": "behind"}, {"constraint_whitespace": "none"}):
        with pytest.raises(ValueError, match="must be"):
            client.complete(ONCE, regex="a", **options)


def test_constraints_that_cannot_be(q, client):
    for options in ({"regex": "a", "choices": ["b"]}, {"choices": "yes"}, {"structural_tags": []}, {"json_schema": 3}, {"json_schema": [1]}):
        with pytest.raises(TypeError):
            client.complete(ONCE, **options)
    for options in ({"json_schema": {"contains": {}}}, {"choices": []}, {"regex": "("}):
        with pytest.raises(q.InvalidArgument) as error:
            client.complete(ONCE, **options)
        assert error.value.reason == "BAD_CONSTRAINT"


# --- answers ---------------------------------------------------------------------------------------


def test_answers_are_those_of_a_generated_client(q, api, client, generation):
    options = {"temperature": 0.9, "seed": 7, "choice_count": 2, "max_tokens": 12, "top_k": 40, "logit_bias": {5: -3.0}}
    answer = client.complete(
        ONCE, **options, token_ids=True, text=True, logprobs=2, prompt_logprobs=1, timings=True, echo_prompt=True
    )
    request = api.GenerateRequest(text=ONCE)
    for name in ("temperature", "seed", "choice_count", "top_k"):
        setattr(request.sampling, name, options[name])
    request.sampling.logit_bias[5] = -3.0
    request.stopping.max_tokens = 12
    request.output.text = request.output.token_ids = request.output.timings = request.output.echo_prompt = True
    request.output.logprobs, request.output.prompt_logprobs = 2, 1
    events = list(generation.Generate(request))
    wanted = sorted((one.completed for one in events if one.HasField("completed")), key=lambda one: one.index)
    assert [one.text for one in answer.choices] == [one.text for one in wanted] and answer.text == wanted[0].text
    for mine, theirs in zip(answer.choices, wanted):
        assert mine.token_ids == tuple(theirs.token_ids) and mine.finish_reason.value == theirs.finish_reason
        assert [one.logprob for one in mine.logprobs] == [one.logprob for one in theirs.logprobs]
        assert all(len(one.top) == 2 and isinstance(one.token_bytes, bytes) for one in mine.logprobs)
        assert mine.timings.decode > 0 and mine.timings.queue >= 0
        assert mine.usage.completion_tokens == theirs.usage.completion_tokens
    prompt = [one for event in events for one in event.prompt_logprobs.tokens]
    assert [one.token_id for one in answer.prompt_logprobs] == [one.token_id for one in prompt] != []
    assert answer.started.prompt_text == events[0].started.prompt_text
    assert answer.started.seed == 7 and answer.started.schedule_time.tzinfo is not None
    assert answer.completion_tokens == sum(one.usage.completion_tokens for one in wanted)


def test_a_stream_joins_to_the_whole_answer(q, client):
    options = {"max_tokens": 40, "temperature": 0, "token_ids": True, "text": True, "logprobs": 0}
    whole = client.complete(ONCE, **options)
    with client.generate(ONCE, **options, request_id="mine", usage_every_chunk=True) as stream:
        first = next(stream)
        assert isinstance(first, q.Started) and stream.request_id == "mine"
        pieces = [piece for piece in stream.text()]
        streamed = stream.result()
    # Deltas that wait for a slow reader are joined.
    assert pieces and "".join(pieces) == whole.text == streamed.text
    assert streamed.choices[0].token_ids == whole.choices[0].token_ids
    assert streamed.choices[0].logprobs == whole.choices[0].logprobs and len(whole.choices[0].logprobs) == 40
    stopped = client.complete(ONCE, temperature=0, stop=whole.text[3:6], max_tokens=40)
    assert stopped.choices[0].finish_reason is q.FinishReason.STOP_TEXT
    assert stopped.choices[0].stop_text == whole.text[3:6] and whole.text.startswith(stopped.text)


def test_tokens_go_both_ways_and_in(q, client):
    tokenized = client.tokenize(ONCE, with_pieces=True)
    assert b"".join(one.piece for one in tokenized.pieces if not one.special).decode().strip() == ONCE
    detokenized = client.detokenize(tokenized.token_ids, skip_special_tokens=True)
    assert detokenized.text.strip() == ONCE and detokenized.raw.decode() == detokenized.text
    as_text = client.complete(ONCE, temperature=0, max_tokens=8)
    as_ids = client.complete(list(tokenized.token_ids), temperature=0, max_tokens=8)
    assert as_ids.text == as_text.text and as_text.started.prompt_tokens == len(tokenized.token_ids)


def test_vectors_and_scores(q, api, client, generation, daemon):
    vectors = client.embed([ONCE, [1, 2, 3]], pooling="mean", normalize=True, dimensions=8).vectors
    request = api.EmbedRequest(pooling=api.POOLING_MEAN, normalize=True, dimensions=8)
    request.inputs.add(text=ONCE)
    request.inputs.add().token_ids.ids.extend([1, 2, 3])
    assert vectors == [tuple(one.values) for one in generation.Embed(request).embeddings]
    scores = client.score([(ONCE, " there was"), ([1, 5], [6])], return_token_logprobs=True)
    assert [score.token_count for score in scores.results] == [len(scores.results[0].tokens), 1]
    assert scores.results[0].total_logprob == sum(token.logprob for token in scores.results[0].tokens)

    async def ask():
        async with q.AsyncClient(daemon.grpc_address, timeout=60) as client:
            return (await client.embed([ONCE])).vectors, await client.score([(ONCE, " there was"), ([1, 5], [6])])

    embedded, again = asyncio.run(ask())
    assert embedded == client.embed([ONCE]).vectors
    assert [score.total_logprob for score in again.results] == [score.total_logprob for score in scores.results]
    with pytest.raises(q.InvalidArgument) as caught:
        client.embed([ONCE], dimensions=1 << 20)
    assert caught.value.field == "dimensions"


def test_the_server_describes_itself(q, client, api, generation):
    theirs = generation.GetModel(api.GetModelRequest()).model
    mine = client.model()
    assert mine == client.model(theirs.id) and [mine] == client.models()
    assert (mine.id, mine.vocab_size, mine.kv_page_size) == (theirs.id, theirs.vocab_size, theirs.kv_page_size)
    assert mine.state is q.ModelState.READY and mine.eos_token_ids == tuple(theirs.eos_token_ids)
    info = client.server_info()
    assert info.state is q.ServerState.READY and info.limits.max_choices >= 1 and info.devices[0].kind == "cpu"
    assert client.health() and client.health("liveness") and not client.cancel("nobody")
    with pytest.raises(q.NotFound):
        client.health("nonsense")


def test_a_batch_tells_each_outcome(q, client):
    options = q.Options(max_tokens=6, temperature=0)
    bad = q.Request("A dog", q.Options(temperature=101.0))
    items = sorted(client.batch([q.Request(ONCE, options), bad, "A cat"]), key=lambda one: one.index)
    assert [one.error is None for one in items] == [True, False, True]
    assert items[0].result().text == client.complete(ONCE, **options).text
    assert items[1].error.reason == "BAD_SAMPLING_PARAM" and items[1].error.field.endswith("sampling.temperature")
    with pytest.raises(q.InvalidArgument):
        items[1].result()
    with pytest.raises(ValueError, match="twice"):
        client.batch([q.Request("a", q.Options(request_id="x"))] * 2)


def test_asyncio_gives_the_same(q, client, daemon):
    async def use():
        async with q.AsyncClient(daemon.grpc_address, timeout=60) as aio:
            answers = await asyncio.gather(*(aio.complete(ONCE, seed=s, max_tokens=12) for s in (1, 2)))
            async with aio.generate(ONCE, seed=1, max_tokens=12) as stream:
                pieces = [piece async for piece in stream.text()]
                assert (await stream.result()).text == "".join(pieces)
            requests = [q.Request(ONCE, q.Options(seed=s, max_tokens=12)) for s in (1, 2)]
            batch = {item.index: item.result().text async for item in aio.batch(requests)}
            ids = (await aio.tokenize(ONCE)).token_ids
            assert (await aio.detokenize(ids, skip_special_tokens=True)).text.strip() == ONCE
            described = (await aio.model(), await aio.models(), (await aio.server_info()).version)
            assert await aio.health() and not await aio.cancel("nobody")
            with pytest.raises(q.FailedPrecondition):
                await aio.render_chat(q.Chat([q.Message("user", "Hi")]))
        with pytest.raises(ValueError, match="closed"):
            await aio.health()
        return [answer.text for answer in answers], "".join(pieces), batch, described

    texts, streamed, batch, described = asyncio.run(use())
    assert texts == [client.complete(ONCE, seed=s, max_tokens=12).text for s in (1, 2)]
    assert texts[0] == streamed and texts == [batch[0], batch[1]]
    assert described == (client.model(), client.models(), client.server_info().version)


def test_chat_tools_and_examples(q, client, daemon, package, tmp_path):
    for file in (ROOT / "assets" / "story").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tool = q.Tool("look", "Looks", '{"type": "object"}')
    turns = [q.Message("system", "Be brief."), q.Message("user", "Hi")]
    chat = q.Chat(turns, tools=[tool], template_vars={"speaker": "Me"})

    def example(name, *arguments, server=daemon, code=0):
        script = package.source / "examples" / name
        command = [package.python, script, "--address", server.grpc_address, *arguments]
        done = subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    with Daemon(tmp_path, settings=[f"model.path={tmp_path}"]) as chatty:
        with q.Client(chatty.wait_serving().grpc_address) as talker:
            rendered = talker.render_chat(chat)
            assert rendered.text.startswith("System: Be brief.\nUser: Hi\n[{") and rendered.text.endswith("Me:")
            assert talker.tokenize(chat).token_ids == rendered.token_ids
            assert talker.complete(chat, max_tokens=3, echo_prompt=True).started.prompt_text == rendered.text
            with pytest.raises(q.InvalidArgument) as error:
                talker.render_chat(q.Chat([q.Message("clown", "Hi")]))
        assert error.value.reason == "BAD_CHAT_TEMPLATE_INPUT" and "unknown role clown" in error.value.message
        assert example("chat.py", "Who are you?", server=chatty).strip()
    assert "this model cannot chat" in example("chat.py", "Who are you?", code=1)
    told = example("story.py", "--max-tokens", "20")
    assert re.search(r"-- 20 tokens, ended by LENGTH\n-- the same again: seed=-?\d+", told)
    assert [line.split()[1] for line in example("gather.py").splitlines()] == ["dog", "cat", "old"]
    ranked = example("rank.py").split()[1::2]
    assert sorted(ranked) == ["dog", "girl", "refrigerator"] and ranked[-1] == "refrigerator"
    names = {script.name for script in (package.source / "examples").iterdir()}
    assert names == {"chat.py", "gather.py", "rank.py", "story.py"}


# --- ends ------------------------------------------------------------------------------------------

ENDLESS = 50000  # tokens


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A daemon whose answers take many seconds: random weights, a long context. Also on a Unix socket."""
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


LONG = {"prompt": [5, 6, 7], "max_tokens": ENDLESS, "ignore_eos": True}


class Endings:
    """What a daemon says of requests that come and go."""

    def __init__(self, daemon):
        self._daemon = daemon

    def total(self, name, label=""):
        found = samples(get(self._daemon, "/metrics")[1]).items()
        return sum(value for key, value in found if key.startswith(name) and label in key)

    def wait_running(self):
        wait_until(lambda: self.total("quire_requests_running") == 1, "a request that runs")

    @contextlib.contextmanager
    def one_more_cancelled(self):
        """The server sees the client cancel one request, and nothing runs afterwards."""
        name, label = "quire_requests_cancelled_total", 'source="client"'
        before = self.total(name, label)
        yield
        wait_until(lambda: self.total(name, label) == before + 1, "the cancel")
        wait_until(lambda: self.total("quire_requests_running") + self.total("quire_requests_waiting{") == 0, "idleness")


def leave_with(q, client, endings):
    with client.generate(**LONG) as stream:
        next(stream.text())


def drop_iterator(q, client, endings):
    for event in client.generate(**LONG):
        if isinstance(event, q.Delta):
            break
    del event
    gc.collect()


def close_client(q, client, endings):
    stream = client.generate(**LONG)
    next(stream)
    client.close()
    with pytest.raises(q.Cancelled):
        stream.result()


def from_a_thread(endings, end, call, kind):
    """`call` is told by `kind` that `end` was called once its request ran."""
    ended = threading.Thread(target=lambda: (endings.wait_running(), end()))
    ended.start()
    with pytest.raises(kind):
        call()
    ended.join()


def cancel_from_a_thread(q, client, endings):
    stream = client.generate(**LONG)
    from_a_thread(endings, stream.cancel, stream.result, q.Cancelled)


def close_from_a_thread(q, client, endings):
    from_a_thread(endings, client.close, lambda: client.complete(**LONG), q.Cancelled)


def drop_batch(q, client, endings):
    quick = q.Request([5, 6], q.Options(max_tokens=1))
    long = q.Request(LONG["prompt"], q.Options(max_tokens=ENDLESS, ignore_eos=True))
    for item in client.batch([long, quick]):
        assert item.index == 1
        break


@pytest.mark.parametrize(
    "end", [leave_with, drop_iterator, close_client, cancel_from_a_thread, close_from_a_thread, drop_batch]
)
def test_what_is_left_is_cancelled(q, endless, end):
    endings = Endings(endless)
    with q.Client(endless.unix) as client, endings.one_more_cancelled():
        end(q, client, endings)


def test_an_interrupt_cancels(package, endless):
    script = "import sys; from quire_client import Client; c = Client(sys.argv[1]); print('on', flush=True); "
    script += f"c.complete({LONG['prompt']}, max_tokens={ENDLESS}, ignore_eos=True)"
    endings = Endings(endless)
    with endings.one_more_cancelled():
        process = subprocess.Popen([package.python, "-c", script, endless.unix], stdout=-1, stderr=-1, text=True)
        assert process.stdout.readline() == "on\n"
        endings.wait_running()
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]


async def aio_leave_with(q, client, endings):
    async with client.generate(**LONG) as stream:
        await stream.text().__anext__()


async def aio_drop_iterator(q, client, endings):
    async for event in client.generate(**LONG):
        if isinstance(event, q.Delta):
            break
    gc.collect()
    await wait_cancelled(endings)


async def aio_drop_batch(q, client, endings):
    quick = q.Request([5, 6], q.Options(max_tokens=1))
    long = q.Request(LONG["prompt"], q.Options(max_tokens=ENDLESS, ignore_eos=True))
    async for item in client.batch([long, quick]):
        assert item.index == 1
        break
    gc.collect()
    await wait_cancelled(endings)


async def wait_cancelled(endings):
    """While the client is open still."""
    await asyncio.to_thread(wait_until, lambda: endings.total("quire_requests_running") == 0, "the cancel")


async def start(endings, call):
    task = asyncio.ensure_future(call)
    await asyncio.to_thread(endings.wait_running)
    return task


async def aio_cancel_task(q, client, endings):
    task = await start(endings, client.complete(**LONG))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def aio_time_is_up(q, client, endings):
    task = await start(endings, client.complete(**LONG))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(task, 0.1)


async def aio_close_client(q, client, endings):
    task = await start(endings, client.generate(**LONG).result())
    await client.close()
    with pytest.raises(q.Cancelled):
        await task


async def aio_cancel_stream_and_task(q, client, endings):
    stream = client.generate(**LONG)
    task = await start(endings, stream.result())
    stream.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError if sys.version_info >= (3, 11) else q.Cancelled):
        await task


async def aio_cancel_by_id(q, client, endings):
    stream = client.generate(**LONG, request_id="by-id")
    task = await start(endings, stream.result())
    assert await client.cancel("by-id")
    with pytest.raises(q.Cancelled) as error:
        await task
    assert error.value.reason == "CANCELLED_BY_CALLER" and error.value.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    "end",
    [
        aio_leave_with, aio_drop_iterator, aio_drop_batch, aio_cancel_task, aio_time_is_up, aio_close_client,
        aio_cancel_stream_and_task, aio_cancel_by_id,
    ],
)
def test_asyncio_cancels(q, endless, end):
    endings = Endings(endless)

    async def use():
        async with q.AsyncClient(endless.unix) as client:
            await end(q, client, endings)

    with endings.one_more_cancelled():
        asyncio.run(use())


# --- errors ----------------------------------------------------------------------------------------


def test_errors_tell_reason_field_limits_and_usage(q, client, endless):
    def failure(kind, call):
        with pytest.raises(kind) as error:
            call()
        return error.value

    long = failure(q.InvalidArgument, lambda: client.complete("a " * 3000))
    context = client.model().max_context_tokens
    assert long.reason == "PROMPT_TOO_LONG" and long.limits["max_context_tokens"] == context
    assert long.limits["prompt_tokens"] > context and str(long).startswith("INVALID_ARGUMENT/PROMPT_TOO_LONG: ")
    bad = failure(q.InvalidArgument, lambda: client.complete(ONCE, top_p=0.0))
    assert bad.reason == "BAD_SAMPLING_PARAM" and bad.field.endswith("sampling.top_p") and bad.retry_delay is None
    assert failure(q.NotFound, lambda: client.complete(ONCE, model="none")).reason == "MODEL_NOT_FOUND"
    missing = failure(q.FailedPrecondition, lambda: client.render_chat(q.Chat([q.Message("user", "Hi")])))
    assert missing.reason == "CHAT_TEMPLATE_MISSING"
    with q.Client(endless.unix) as other:
        with other.generate(**LONG, request_id="twin") as stream:
            next(stream)
            twin = failure(q.RequestIdInUse, lambda: other.complete([5], request_id="twin"))
            assert twin.reason == "REQUEST_ID_IN_USE"
            assert other.cancel("twin")
            ended = failure(q.Cancelled, stream.result)
        assert ended.reason == "CANCELLED_BY_CALLER" and ended.usage.prompt_tokens == 3
        failure(q.DeadlineExceeded, lambda: other.complete(**LONG, timeout=0.2))
        item = next(other.batch([q.Request([5], q.Options(max_tokens=ENDLESS, ignore_eos=True, timeout=0.2))]))
        assert isinstance(item.error, q.DeadlineExceeded) and item.error.reason == "TIMEOUT" and item.error.usage
    with pytest.raises(TypeError, match="max_token"):
        client.complete(ONCE, max_token=3)
    with pytest.raises(ValueError):
        client.complete(ONCE, max_tokens=2**40)
