"""Embeddings, classification and reranking, compared with float64 results of sentence-transformers and transformers."""

import base64
import concurrent.futures
import json
import math
import socket
import struct
import urllib.error
import urllib.request

import grpc
import openai
import pytest
from daemon import TESTDATA, Daemon, reason_of
from waiting import wait_until

FIXTURES = TESTDATA / "embeddings"
EMBEDDERS = ["qwen3-embed-last-bf16", "llama-embed-mean-f32", "llama-embed-cls-bf16", "mistral-embed-plain-f16"]
F32 = ["kv_cache.dtype=f32", "kv_cache.page_size=16", "openai.enabled=true", "openai.listen=127.0.0.1:0"]


def reference(name):
    return json.loads((FIXTURES / "reference" / f"{name}.json").read_text())


def vectors(name):
    """Returns the tensors of a safetensors file as lists."""
    data = (FIXTURES / "reference" / f"{name}.safetensors").read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    found = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        size, code = {"F32": (4, "f"), "F64": (8, "d")}[entry["dtype"]]
        found[key] = struct.unpack(f"<{(end - begin) // size}{code}", data[begin:end])
    return found


def difference(got, want):
    """Returns the difference relative to the norm."""
    assert len(got) == len(want)
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(got, want, strict=True)) / sum(b * b for b in want))


class Served:
    def __init__(self, folder, name, settings=F32):
        settings = ["model.id=fixture", "device.cpu.activations=f32", *settings]
        self.daemon = Daemon(folder, str(FIXTURES / "models" / name), settings=settings)

    def __enter__(self):
        self.daemon.__enter__().wait_serving()
        entries = (json.loads(line) for line in self.daemon.lines if line.startswith("{"))
        self.url = "http://" + next(entry for entry in entries if entry["msg"] == "listening")["openai"]
        return self

    def __exit__(self, *error):
        self.daemon.__exit__(*error)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def embed(api, stub, inputs, **fields):
    request = api.EmbedRequest(**fields)
    for one in inputs:
        if isinstance(one, str):
            request.inputs.add(text=one)
        else:
            request.inputs.add().token_ids.ids.extend(one)
    return stub.Embed(request, timeout=60)


def values(response):
    return [list(embedding.values) for embedding in response.embeddings]


@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_equal_the_reference(api, tmp_path, name):
    expected, want = reference(name), vectors(name)
    texts = [text["text"] for text in expected["texts"]]
    ids = [text["token_ids"] for text in expected["texts"]]
    keys = [text["id"] for text in expected["texts"]]
    modes = {"last": api.POOLING_LAST, "mean": api.POOLING_MEAN, "cls": api.POOLING_CLS}
    with Served(tmp_path, name) as served, served.daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        for mode, pooling in modes.items():
            by_text = embed(api, stub, texts, pooling=pooling, normalize=False)
            assert [e.prompt_tokens for e in by_text.embeddings] == [len(tokens) for tokens in ids]
            assert by_text.usage.prompt_tokens == sum(len(tokens) for tokens in ids)
            for key, got in zip(keys, values(by_text), strict=True):
                assert difference(got, want[f"{key}.{mode}"]) < 2e-5, (key, mode)
            assert values(embed(api, stub, ids, pooling=pooling, normalize=False)) == values(by_text)
        own = values(embed(api, stub, texts))
        for key, got in zip(keys, own, strict=True):
            raw = "normalized" if expected["normalize"] else expected["pooling"]
            assert difference(got, want[f"{key}.{raw}"]) < 2e-5, key
        for key, got in zip(keys, values(embed(api, stub, texts, normalize=True)), strict=True):
            assert difference(got, want[f"{key}.normalized"]) < 2e-5, key
        for size in expected["dimensions"]:
            cut = values(embed(api, stub, texts, dimensions=size, normalize=False))
            short = values(embed(api, stub, texts, dimensions=size, normalize=True))
            for key, plain, scaled in zip(keys, cut, short, strict=True):
                assert difference(plain, want[f"{key}.dimensions{size}"]) < 2e-5, key
                assert difference(scaled, want[f"{key}.dimensions{size}.normalized"]) < 2e-5, key
        check_prompts(api, stub, expected, want, texts)
        answers = [values(embed(api, stub, texts, pooling=pooling, normalize=False)) for pooling in modes.values()]
    # The result is bitwise equal without a cache and in chunks.
    chunked = [*F32, "scheduler.prefill_chunk_tokens=16", "kv_cache.prefix_caching=false"]
    with Served(tmp_path, name, chunked) as served, served.daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        again = [values(embed(api, stub, texts, pooling=pooling, normalize=False)) for pooling in modes.values()]
    assert again == answers


def check_prompts(api, stub, expected, want, texts):
    """The client puts the prompt before the text. No part of it is excluded from pooling here."""
    by_id = dict(zip([text["id"] for text in expected["texts"]], texts, strict=True))
    for prompt in expected.get("prompts", []):
        if prompt["tokens_left_out_of_pooling"] > 0:
            continue
        got = values(embed(api, stub, [prompt["prefix"] + by_id[prompt["text"]]]))[0]
        assert difference(got, want[prompt["vector"]]) < 2e-5, prompt["vector"]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("qwen"), "qwen3-embed-last-bf16") as served:
        yield served
        assert served.daemon.process.poll() is None, "quired died:\n" + served.daemon.log


def test_openai_package_reads_embeddings(qwen):
    """The examples of the package, and the fields next to the vectors in the answer."""
    client = openai.OpenAI(base_url=qwen.url + "/v1", api_key="not checked", max_retries=0)
    response = client.embeddings.create(input="Your text string goes here", model="fixture")
    assert len(response.data[0].embedding) == 64
    assert response.object == "list" and response.data[0].object == "embedding" and response.data[0].index == 0
    assert response.model == "fixture" and response.usage.prompt_tokens == response.usage.total_tokens > 1
    # The package requests base64 by default.
    as_floats = client.embeddings.create(input="Your text string goes here", model="fixture", encoding_format="float")
    assert as_floats.data[0].embedding == response.data[0].embedding
    both = client.embeddings.create(input=["first phrase", "second phrase"], model="fixture", dimensions=16)
    assert [entry.index for entry in both.data] == [0, 1]
    for entry in both.data:
        assert len(entry.embedding) == 16 and math.isclose(math.hypot(*entry.embedding), 1, rel_tol=1e-6)
    ids = client.embeddings.create(input=[[5, 6, 7], [8]], model="fixture")
    assert len(ids.data) == 2 and ids.usage.prompt_tokens == 4
    one = client.embeddings.create(input=[5, 6, 7], model="fixture")
    assert one.data[0].embedding == ids.data[0].embedding
    raw = qwen.post("/v1/embeddings", {"input": "a", "encoding_format": "base64"})
    assert len(base64.b64decode(raw["data"][0]["embedding"])) == 64 * 4


def http_error(served, path, body):
    with pytest.raises(urllib.error.HTTPError) as caught:
        served.post(path, body)
    return caught.value.code, json.load(caught.value)["error"]


def test_bad_input_over_http_is_named(qwen):
    for body, param in [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": 3}, "input"),
        ({"input": ["a", {}]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": "a", "dimensions": 65}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": ["a"] * 2049}, "input"),
    ]:
        code, error = http_error(qwen, "/v1/embeddings", body)
        assert code == 400 and error["param"] == param, (body, error)
    code, error = http_error(qwen, "/v1/embeddings", {"input": [1 << 20]})
    assert code == 400 and error["code"] == "bad_token_id" and error["param"] == "input"
    code, error = http_error(qwen, "/v1/embeddings", {"input": "word " * 3000})
    assert code == 400 and error["code"] == "context_length_exceeded" and "context length is 1024" in error["message"]
    code, error = http_error(qwen, "/v1/embeddings", {"input": "a", "model": "other"})
    assert code == 404 and error["code"] == "model_not_found"
    for path, body in (("/v1/score", {"text_1": "a", "text_2": "b"}), ("/v1/rerank", {"query": "a", "documents": ["b"]}),
                       ("/v1/classify", {"input": "a"})):
        code, error = http_error(qwen, path, body)
        assert code == 400 and error["code"] == "unsupported", error


def test_bad_input_over_grpc_is_named(api, qwen):
    with qwen.daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        for fields, inputs, reason, field in [
            ({}, [], "PROMPT_MISSING", "inputs"),
            ({}, ["a", ""], "PROMPT_MISSING", "inputs[1]"),
            ({"dimensions": 65}, ["a"], "BAD_PARAMETER", "dimensions"),
            ({"pooling": 9}, ["a"], "BAD_PARAMETER", "pooling"),
            ({}, ["a"] * 2049, "BAD_PARAMETER", "inputs"),
        ]:
            with pytest.raises(grpc.RpcError) as caught:
                embed(api, stub, inputs, **fields)
            got, metadata, _ = reason_of(caught.value)
            assert (got, metadata["field"]) == (reason, field)
        # `truncate` keeps the tokens that the tokenizer appends to the text.
        cut = embed(api, stub, ["word " * 3000], truncate=True)
        assert cut.usage.prompt_tokens == 1024
        tokens = list(stub.Tokenize(api.TokenizeRequest(text="word " * 3000)).token_ids)
        assert values(embed(api, stub, [tokens[:1023] + tokens[-1:]])) == values(cut)


def test_generations_and_embeddings_share_the_engine(api, qwen):
    """Under a load of both, each result is bitwise equal to its result alone, and all pages are released."""
    with qwen.daemon.channel() as channel, qwen.daemon.admin_channel() as admin_channel:
        stub = api.GenerationServiceStub(channel)
        admin = api.AdminServiceStub(admin_channel)
        texts = [f"number {i} " + "of some words " * (i % 23) for i in range(120)]
        alone = values(embed(api, stub, texts[:3]))

        def generate(i):
            request = api.GenerateRequest(text=texts[i])
            request.stopping.max_tokens = 30
            request.stopping.ignore_eos = True
            request.sampling.seed = i
            return list(stub.Generate(request, timeout=60))[-1].completed.text

        generated = [generate(i) for i in range(3)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            mixed = [pool.submit(generate, i % 3) for i in range(24)]
            embedded = [pool.submit(embed, api, stub, texts) for _ in range(4)]
            assert [future.result() for future in mixed] == [generated[i % 3] for i in range(24)]
            assert all(values(future.result())[:3] == alone for future in embedded)
        wait_until(lambda: admin.GetStats(api.GetStatsRequest()).stats.used_kv_page_count == 0, "all pages back")
        assert admin.CheckIntegrity(api.CheckIntegrityRequest()).failures == []


def test_model_without_head_only_embeds(api, tmp_path):
    with Served(tmp_path, "mistral-embed-plain-f16") as served, served.daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        assert list(stub.GetModel(api.GetModelRequest()).model.capabilities) == ["embed", "batch_invariant"]
        score = api.ScoreRequest()
        score.items.add(context_text="a", text="b")
        for call in (lambda: list(stub.Generate(api.GenerateRequest(text="a"))), lambda: stub.Score(score)):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert reason_of(caught.value)[0] == "FEATURE_UNSUPPORTED"
        code, error = http_error(served, "/v1/completions", {"model": "fixture", "prompt": "a"})
        assert code == 400 and error["code"] == "unsupported"


@pytest.mark.parametrize("name", ["llama-classify3-bf16", "qwen3-rerank1-bf16"])
def test_classifiers_equal_the_reference(tmp_path, name):
    expected = reference(name)
    with Served(tmp_path, name) as served:
        answer = served.post("/v1/classify", {"input": [text["text"] for text in expected["texts"]]})
        assert answer["usage"]["total_tokens"] == sum(len(text["token_ids"]) for text in expected["texts"])
        for text, got in zip(expected["texts"], answer["data"], strict=True):
            # The head reads the last token. transformers looks for the last token that is not the padding id.
            logits = text.get("logits_at_last_position", text["logits"])
            want = [1 / (1 + math.exp(-logits[0]))] if len(logits) == 1 else softmax(logits)
            assert got["probs"] == pytest.approx(want, abs=1e-5), text["id"]
            assert got["num_classes"] == len(expected["labels"])
            assert got["label"] == expected["labels"][want.index(max(want))]


def softmax(logits):
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


def test_single_label_head_scores_pairs(tmp_path):
    expected = reference("qwen3-rerank1-bf16")
    text = next(text for text in expected["texts"] if text["text"].count("\n") >= 3)
    query, document = text["text"].split("\n", 1)
    pair = {"text_1": query + "\n", "text_2": document}
    with Served(tmp_path, "qwen3-rerank1-bf16") as served:
        answer = served.post("/v1/score", pair)
        assert answer["data"][0]["score"] == pytest.approx(text["sigmoid"], abs=1e-5)
        assert answer["object"] == "list" and answer["data"][0]["object"] == "score"
        both = served.post("/v1/score", {"text_1": [query + "\n", "b"], "text_2": [document, "c"]})
        assert both["data"][0]["score"] == answer["data"][0]["score"]
        code, error = http_error(served, "/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
        assert code == 400 and error["param"] == "text_1"


def test_yes_no_reranker_equals_the_reference(api, tmp_path):
    expected = reference("qwen3-rerank-yesno-bf16")
    with Served(tmp_path, "qwen3-rerank-yesno-bf16") as served:
        for pair in expected["pairs"]:
            answer = served.post("/v1/score", {"text_1": pair["query"], "text_2": pair["document"]})
            assert answer["data"][0]["score"] == pytest.approx(pair["score"], abs=1e-5), pair["id"]
        ranking = expected["ranking"]
        check_ranking(served, expected, ranking)
        with served.daemon.channel() as channel:
            request = api.ScoreRequest()
            pair = expected["pairs"][0]
            for token in (expected["yes_id"], expected["no_id"]):
                item = request.items.add()
                item.context_ids.ids.extend(pair["token_ids"])
                item.token_ids.ids.append(token)
            yes, no = api.GenerationServiceStub(channel).Score(request, timeout=60).results
            assert [yes.total_logprob, no.total_logprob] == pytest.approx([pair["yes_logprob"], pair["no_logprob"]], abs=1e-4)


def check_ranking(served, expected, ranking):
    documents = [pair["document"] for pair in expected["pairs"]]
    answer = served.post("/v1/rerank", {"query": ranking["query"], "documents": documents})
    order = [result["index"] for result in answer["results"]]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True) and sorted(order) == list(range(len(documents)))
    assert order == ranking["order"]
    assert scores == pytest.approx(ranking["scores"], abs=1e-5)
    assert all(result["document"]["text"] == documents[result["index"]] for result in answer["results"])
    best = {"query": ranking["query"], "documents": [{"text": text} for text in documents], "top_n": 2}
    first = served.post("/v1/rerank", {**best, "return_documents": False})["results"]
    assert [result["index"] for result in first] == order[:2] and "document" not in first[0]
    code, error = http_error(served, "/v1/rerank", {**best, "top_n": 0})
    assert code == 400 and error["param"] == "top_n"
    code, error = http_error(served, "/v1/rerank", {"query": "a"})
    assert code == 400 and error["param"] == "documents"
    for path, body, reason, param in [
        ("/v1/rerank", {"query": "a", "documents": ["b", "word " * 100000]}, "context_length_exceeded", "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": ["", "b"]}, "missing_required_parameter", "documents[0]"),
        ("/v1/rerank", {"query": "", "documents": ["b"]}, "missing_required_parameter", "query"),
        ("/v1/rerank", {"query": "a", "documents": ["b", 3]}, "invalid_value", "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": [{"text": 3}]}, "invalid_value", "documents[0].text"),
        ("/v1/score", {"text_1": ["a", ""], "text_2": ["b", "c"]}, "missing_required_parameter", "text_1[1]"),
        ("/v1/score", {"queries": ["a", "b"], "documents": "c"}, "invalid_value", "queries"),
        ("/v1/score", {"text_1": "a", "text_2": "word " * 100000}, "context_length_exceeded", "text_2"),
    ]:
        code, error = http_error(served, path, body)
        assert code == 400 and error["code"] == reason and error["param"] == param, error
        assert param in error["message"], error


def test_disconnect_cancels_all_inputs(api, qwen):
    body = json.dumps({"input": [f"{i} " + "some words " * 60 for i in range(2000)]}).encode()
    host, port = qwen.url.removeprefix("http://").split(":")
    with qwen.daemon.admin_channel() as channel:
        admin = api.AdminServiceStub(channel)

        def running():
            return admin.ListRequests(api.ListRequestsRequest()).requests

        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_until(running, "inputs that run")
        wait_until(lambda: not running(), "all of them ended")
        wait_until(lambda: admin.GetStats(api.GetStatsRequest()).stats.used_kv_page_count == 0, "all pages back")


def test_concurrent_calls_are_all_answered(api, qwen):
    """Sends more calls than can wait for a worker of the service at a time."""
    with qwen.daemon.channel() as channel:
        stub = api.GenerationServiceStub(channel)
        request = api.EmbedRequest()
        request.inputs.add(text="a few words")
        futures = [stub.Embed.future(request, timeout=60) for _ in range(600)]
        answers = {future.result().SerializeToString(deterministic=True) for future in futures}
    vectors = {api.EmbedResponse.FromString(answer).embeddings[0].SerializeToString() for answer in answers}
    assert len(vectors) == 1
