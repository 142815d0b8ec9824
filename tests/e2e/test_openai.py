"""A real daemon under the official openai client and under the requests of lm-eval's local-completions."""

import concurrent.futures
import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import openai
import pytest
from attack_tools import token_line
from certificates import Authority
from daemon import QUIRE, Daemon
from waiting import wait_until

PROMPT = "Once upon a time, there was a"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.dtype=f32")
    with Daemon(tmp_path_factory.mktemp("quired"), settings=settings) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


def listening(running):
    """Returns the addresses in the log."""
    entries = (json.loads(line) for line in running.lines if line.startswith("{"))
    return next(entry for entry in entries if entry["msg"] == "listening")


@pytest.fixture(scope="module")
def url(served):
    return f"http://{listening(served)['openai']}"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="not checked", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture
def stats(api, served):
    with served.admin_channel() as channel:
        admin = api.AdminServiceStub(channel)
        yield lambda: admin.GetStats(api.GetStatsRequest(), timeout=10).stats


def complete(client, model, **more):
    arguments = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True}, **more}
    return client.completions.create(model=model, **arguments)


def test_models_are_listed(client, model):
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.code == "model_not_found"


def test_completion_and_its_stream(client, model):
    whole = complete(client, model)
    assert whole.object == "text_completion" and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 16 and whole.usage.total_tokens == whole.usage.prompt_tokens + 16
    chunks = list(complete(client, model, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 16
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens is not None
    assert {c.id for c in chunks} == {chunks[0].id}


def test_choices_stop_and_seed(client, model):
    two = complete(client, model, n=2, temperature=1, seed=7)
    assert [c.index for c in two.choices] == [0, 1]
    again = complete(client, model, n=2, temperature=1, seed=7)
    assert [c.text for c in two.choices] == [c.text for c in again.choices]
    text = complete(client, model, max_tokens=40).choices[0].text
    stop = text[10:13]
    stopped = complete(client, model, max_tokens=40, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == text[: text.index(stop)]
    many = complete(client, model, prompt=[PROMPT, "The"], n=2)
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == complete(client, model).choices[0].text


def test_longest_prompt_list_fits_the_default_limits(client, model, stats):
    """The answers are so long that none ends while the others are being accepted and tokenized."""
    with complete(client, model, prompt=[PROMPT] * 2048, max_tokens=400, stream=True) as stream:
        assert next(iter(stream)).choices[0].index < 2048  # a rejected prompt would be reported here
        wait_until(lambda: stats().running_count + stats().waiting_count == 2048, "all of them are there")
    wait_until(lambda: stats().running_count + stats().waiting_count == 0, "nothing is left of it")


def test_logprobs(client, model):
    answer = complete(client, model, logprobs=3).choices[0]
    lists = answer.logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset) == 16
    assert answer.text and "".join(lists.tokens).startswith(answer.text.rstrip("\ufffd"))
    for logprob, top in zip(lists.token_logprobs, lists.top_logprobs, strict=True):
        assert len(top) == 3
        assert max(top.values()) == logprob  # in greedy decoding


def test_loglikelihood_requests_of_lm_eval(api, served, client, model):
    """Sends ids as prompt with echo and one token. The sums equal prompt_logprobs over gRPC."""
    texts = [PROMPT + " little girl", PROMPT + " green dog"]
    with served.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        ids = [list(stub.Tokenize(api.TokenizeRequest(text=text), timeout=10).token_ids) for text in texts]
        wanted = []
        for prompt in ids:
            request = api.GenerateRequest(
                token_ids=api.TokenIds(ids=prompt),
                stopping=api.StoppingParams(max_tokens=1),
                output=api.OutputOptions(prompt_logprobs=1),
            )
            rows = []
            for message in stub.Generate(request, timeout=30):
                rows.extend(message.prompt_logprobs.tokens)
            wanted.append([row.logprob for row in rows])
    for _ in range(2):  # the second run uses a warm cache
        answer = client.completions.create(
            model=model, prompt=ids, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True
        )
        for choice, prompt, rows in zip(answer.choices, ids, wanted, strict=True):
            scores = choice.logprobs.token_logprobs
            assert len(scores) == len(prompt) + 1 and scores[0] is None
            assert scores[1:-1] == rows
            for score, top in zip(scores[1:], choice.logprobs.top_logprobs[1:], strict=True):
                assert max(top.values()) >= score
    only = client.completions.create(model=model, prompt=ids[0], max_tokens=0, logprobs=1, echo=True)
    assert only.choices[0].logprobs.token_logprobs[1:] == wanted[0] and only.usage.completion_tokens == 0


def test_errors_map_to_the_exception_types_of_the_client(client, model):
    cases = [
        ({"temperature": -1}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"prompt": ""}, openai.BadRequestError, "missing_required_parameter", "prompt"),
        ({"stop": ["x"] * 100}, openai.BadRequestError, "too_many_stops", None),
        ({"max_tokens": "many"}, openai.BadRequestError, "invalid_value", "max_tokens"),
    ]
    for arguments, kind, code, param in cases:
        with pytest.raises(kind) as caught:
            complete(client, model, **arguments)
        assert caught.value.code == code
        assert param is None or caught.value.param == param
    with pytest.raises(openai.NotFoundError):
        complete(client, "other")
    with pytest.raises(openai.APIStatusError) as caught:
        client.moderations.create(input="x")
    assert caught.value.status_code == 400 and caught.value.code == "unsupported"


def test_chat_turns_a_wish_into_a_story(client, model):
    wish = [{"role": "user", "content": "tell me a story about a cat"}]
    story = client.chat.completions.create(model=model, messages=wish, max_tokens=40, temperature=0)
    assert len(story.choices[0].message.content.split()) > 20 and story.system_fingerprint.startswith("fp_")


TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if tools %}tools: {{ tools[0].function.name }}
{% endif %}{% if mood is defined %}{{ mood }}
{% endif %}assistant:"""


def test_chat_equals_the_completion_of_its_rendering(tmp_path):
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", f"chat.template_file={tmp_path}/template.jinja")
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Tell "}, {"type": "text", "text": "stories"}]},
        {"role": "user", "content": "About a dog"},
    ]
    tools = [{"type": "function", "function": {"name": "bark", "parameters": {"type": "object"}}}]
    with Daemon(tmp_path, settings=settings) as running:
        running.wait_serving()
        base_url = f"http://{listening(running)['openai']}/v1"
        with openai.OpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
            rendered = "system: Tell \nstories\nuser: About a dog\ntools: bark\nhappy\nassistant:"
            # A template writes the special tokens itself.
            plain = {"add_special_tokens": False}
            wanted = client.completions.create(
                model="", prompt=rendered, max_tokens=20, temperature=0, logprobs=2, extra_body=plain
            )

            def chat(**more):
                extra = {"chat_template_kwargs": {"mood": "happy"}}
                return client.chat.completions.create(
                    model="", messages=messages, tools=tools, max_completion_tokens=20, temperature=0, extra_body=extra,
                    **more,
                )

            whole = chat(logprobs=True, top_logprobs=2)
            assert whole.choices[0].message.role == "assistant"
            assert whole.choices[0].message.content == wanted.choices[0].text
            assert whole.usage.prompt_tokens == wanted.usage.prompt_tokens
            tokens = whole.choices[0].logprobs.content
            assert [token.logprob for token in tokens] == wanted.choices[0].logprobs.token_logprobs
            assert all(len(token.top_logprobs) == 2 for token in tokens)
            chunks = list(chat(stream=True, stream_options={"include_usage": True}))
            assert chunks[0].choices[0].delta.role == "assistant"
            assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == wanted.choices[0].text
            assert chunks[-1].usage == whole.usage
            assert chat(tool_choice="none").usage.prompt_tokens < whole.usage.prompt_tokens
            with pytest.raises(openai.APIStatusError):  # the model has no tool call format
                chat(tool_choice="required")


def test_closed_stream_cancels_its_request(client, model, stats):
    stream = complete(client, model, stream=True, max_tokens=200, n=4, temperature=1)
    next(iter(stream))
    stream.close()
    wait_until(lambda: stats().running_count + stats().waiting_count == 0, "no request lives")
    assert stats().used_kv_page_count == 0


def test_concurrent_streams_are_equal(client, model):
    wanted = complete(client, model, max_tokens=24).choices[0].text

    def one(_):
        return "".join(c.choices[0].text for c in complete(client, model, max_tokens=24, stream=True))

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        assert set(pool.map(one, range(48))) == {wanted}


def test_slow_connections_do_not_block_others(served, url, client, model):
    host, port = url.removeprefix("http://").split(":")
    half_open = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        for connection in half_open:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-")
        assert complete(client, model).choices[0].finish_reason == "length"
        with urllib.request.urlopen(f"http://{served.http_address}/readyz", timeout=5) as answer:
            assert answer.status == 200
    finally:
        for connection in half_open:
            connection.close()


def test_bench_against_our_own_listener(served, url):
    command = [QUIRE, "--address", served.grpc_address, "--json", "bench", "--requests", "6", "--concurrency", "2",
               "--input-tokens", "16", "--output-tokens", "8", "--peer", f"openai={url}"]
    report = json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)
    assert report["ours"]
    for ours, theirs in zip(report["ours"], report["peer"], strict=True):
        assert ours["completed"] == theirs["completed"] == 6
        assert ours["total_output_tokens"] == theirs["total_output_tokens"]


def test_drain_finishes_streams_in_flight(tmp_path):
    settings = ("openai.enabled=true", "openai.listen=127.0.0.1:0", "shutdown.pre_drain_delay=0s")
    with Daemon(tmp_path, settings=settings) as running:
        running.wait_serving()
        base_url = f"http://{listening(running)['openai']}/v1"
        with openai.OpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
            stream = iter(complete(client, "", stream=True, max_tokens=200))
            next(stream)
            running.terminate()
            rest = list(stream)
        assert rest[-1].choices[0].finish_reason == "length"
        assert running.wait() == 0


def test_tls_client_certificates_tokens_and_rotation(tmp_path):
    authority = Authority()
    cert, key = authority.issue("server")
    (tmp_path / "cert.pem").write_bytes(cert)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "tokens").write_text(token_line("good", "team", "generate") + token_line("scrape", "team", "metrics"))
    settings = (
        "openai.enabled=true", "openai.listen=127.0.0.1:0", "server.http.tls=true", "auth.mode=token",
        f"auth.tokens_file={tmp_path}/tokens", f"tls.cert_file={tmp_path}/cert.pem", f"tls.key_file={tmp_path}/key.pem",
        f"tls.client_ca_file={tmp_path}/ca.pem", "tls.refresh_interval=1s",
    )
    context = ssl.create_default_context(cadata=authority.pem.decode())
    with Daemon(tmp_path, settings=settings) as running:
        running.wait_listening()
        address = listening(running)["openai"]

        def get(path, token="", where=address):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            request = urllib.request.Request(f"https://{where}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, context=context, timeout=10) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        wait_until(lambda: get("/health") == 200, "the model is loaded", 30)
        assert [get("/v1/models", token) for token in ("", "wrong", "scrape", "good")] == [401, 401, 403, 200]
        assert [get("/metrics", token, running.http_address) for token in ("", "good", "scrape")] == [401, 403, 200]
        assert get("/livez", "", running.http_address) == 200
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://{address}/health", timeout=5)
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://{address}/health", timeout=5)
        with httpx_client(context) as http, openai.OpenAI(
            base_url=f"https://{address}/v1", api_key="good", max_retries=0, http_client=http
        ) as client:
            whole = complete(client, "")
            assert "".join(c.choices[0].text for c in complete(client, "", stream=True)) == whole.choices[0].text
        other = Authority("the next authority")
        cert, key = other.issue("server")
        (tmp_path / "key.pem").write_bytes(key)
        (tmp_path / "cert.pem").write_bytes(cert)
        context.load_verify_locations(cadata=other.pem.decode())
        wait_until(lambda: peer_issuer(address, context) == "the next authority", "the new certificate serves")
        assert get("/v1/models", "good") == 200


def httpx_client(context):
    return openai.DefaultHttpxClient(verify=context)


def peer_issuer(address, context):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        with context.wrap_socket(raw, server_hostname="localhost") as connection:
            names = {key: value for ((key, value),) in connection.getpeercert()["issuer"]}
            return names["commonName"]
