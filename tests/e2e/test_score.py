"""Score returns log-probabilities of given continuations. They are compared with lm_eval's pairs computed in float64.
"""

import json
import threading
import urllib.request

import grpc
import pytest
from daemon import TESTDATA, Daemon, reason_of
from waiting import wait_until

SCORING = TESTDATA / "scoring"
MODELS = sorted(path.stem for path in SCORING.glob("*.json"))


def test_pairs_are_found():
    assert len(MODELS) == 3, MODELS


def ask(api, pairs, tokens=True):
    request = api.ScoreRequest(return_token_logprobs=tokens)
    for pair in pairs:
        item = request.items.add()
        item.context_ids.ids.extend(pair["context_token_ids"])
        item.token_ids.ids.extend(pair["continuation_token_ids"])
    return request


def check(pair, result):
    assert result.total_logprob == pytest.approx(pair["logprob"], rel=1e-5, abs=1e-5), pair["id"]
    assert result.token_count == len(pair["continuation_token_ids"])
    assert result.is_greedy == pair["is_greedy"], pair["id"]
    assert [token.token_id for token in result.tokens] == pair["continuation_token_ids"]
    got = [token.logprob for token in result.tokens]
    assert got == pytest.approx(pair["token_logprobs"], rel=1e-5, abs=2e-4), pair["id"]
    # Padded vocabularies have ids without text, which are not part of the ranks here.
    assert all(token.rank - 1 <= rank for token, rank in zip(result.tokens, pair["token_ranks"], strict=True)), pair["id"]
    assert result.total_logprob == sum(got)  # summed in double, in token order


def bits(response):
    return [(r.total_logprob, r.is_greedy, [(t.token_id, t.logprob, t.rank) for t in r.tokens]) for r in response.results]


@pytest.mark.parametrize("model", MODELS)
def test_scores_equal_the_reference_cold_cached_and_chunked(api, tmp_path, model):
    reference = json.loads((SCORING / f"{model}.json").read_text())
    pairs = reference["pairs"]
    folder = str(TESTDATA / "models" / model)
    f32 = ["kv_cache.dtype=f32", "device.cpu.activations=f32", "kv_cache.page_size=16"]
    with Daemon(tmp_path, folder, settings=f32) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            cold = stub.Score(ask(api, pairs), timeout=60)
            for pair, result in zip(pairs, cold.results, strict=True):
                check(pair, result)
            tokens = sum(len(p["context_token_ids"]) + len(p["continuation_token_ids"]) for p in pairs)
            assert cold.usage.prompt_tokens == tokens and cold.usage.completion_tokens == 0
            warm = stub.Score(ask(api, pairs), timeout=60)
            assert bits(warm) == bits(cold)
            assert warm.usage.cached_tokens > cold.usage.cached_tokens
            rolling = [{"context_token_ids": [text["prefix_token_id"]], "continuation_token_ids": text["token_ids"]}
                       for text in reference["rolling"]]
            for text, result in zip(reference["rolling"], stub.Score(ask(api, rolling), timeout=60).results, strict=True):
                assert result.total_logprob == pytest.approx(text["logprob"], rel=1e-5)
    chunked = [*f32, "scheduler.prefill_chunk_tokens=16", "kv_cache.prefix_caching=false"]
    with Daemon(tmp_path, folder, settings=chunked) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            assert bits(api.GenerationServiceStub(channel).Score(ask(api, pairs), timeout=60)) == bits(cold)


def test_common_context_is_computed_once(api, daemon, generation):
    request = api.ScoreRequest()
    for word in (" cat", " dog", " bird", " fish"):
        request.items.add(context_text="Once upon a time there was a little girl. " * 8, text=word)
    response = generation.Score(request, timeout=60)
    context = response.usage.prompt_tokens // 4
    assert response.usage.cached_tokens > 3 * (context - 70)


def test_scores_equal_a_forced_generation(api, generation):
    """The sum equals that of the log-probabilities that Generate reports when it draws the same tokens."""
    request = api.GenerateRequest(text="Once upon a time")
    request.stopping.max_tokens = 12
    request.sampling.seed = 3
    request.output.token_ids = True
    request.output.logprobs = 0
    drawn = list(generation.Generate(request, timeout=60))[-1].completed
    score = api.ScoreRequest()
    score.items.add(context_text="Once upon a time").token_ids.ids.extend(drawn.token_ids)
    result = generation.Score(score, timeout=60).results[0]
    assert result.total_logprob == sum(token.logprob for token in drawn.logprobs)
    request.sampling.temperature = 0
    best = list(generation.Generate(request, timeout=60))[-1].completed
    score.items[0].token_ids.ids[:] = best.token_ids
    assert generation.Score(score, timeout=60).results[0].is_greedy


def refused(call, code, reason):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code, caught.value
    got, metadata, _ = reason_of(caught.value)
    assert got == reason, caught.value
    return metadata, caught.value.details()


def test_bad_input_is_named(api, generation):
    def score(*items, **fields):
        request = api.ScoreRequest(**fields)
        for item in items:
            request.items.add(**item)
        return lambda: generation.Score(request, timeout=60)

    bad = grpc.StatusCode.INVALID_ARGUMENT
    assert refused(score(), bad, "PROMPT_MISSING")[0]["field"] == "items"
    good = {"context_text": "a", "text": "b"}
    assert refused(score(*[good] * 257), bad, "BAD_PARAMETER")[0]["range"] == "1 to 256 entries"
    assert refused(score(good, {"context_text": "a"}), bad, "PROMPT_MISSING")[0]["field"] == "items[1]"
    assert refused(score({"context_text": "a", "text": ""}), bad, "PROMPT_MISSING")[0]["field"] == "items[0]"
    unknown = {"context_ids": {"ids": [1 << 20]}, "text": "b"}
    assert refused(score(good, unknown), bad, "BAD_TOKEN_ID")[0]["token_id"] == str(1 << 20)
    metadata, text = refused(score({"context_text": "a", "text": "word " * 5000}), bad, "PROMPT_TOO_LONG")
    assert "maximum context length is" in text and metadata["max_context_tokens"]
    refused(score(good, model="other"), grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")


def test_long_call_can_be_cancelled_and_has_a_deadline(api, generation, admin):
    request = api.ScoreRequest()
    for i in range(256):
        request.items.add(context_text=f"{i} " + "word " * 300, text="b")
    call = generation.Score.future(request, metadata=[("x-request-id", "long")])
    wait_until(lambda: any(r.request_id.startswith("long") for r in admin.ListRequests(api.ListRequestsRequest()).requests),
               "requests of the call")
    call.cancel()
    wait_until(lambda: not admin.ListRequests(api.ListRequestsRequest()).requests, "no request")
    refused(lambda: generation.Score(request, timeout=0.05), grpc.StatusCode.DEADLINE_EXCEEDED, "")
    wait_until(lambda: not admin.ListRequests(api.ListRequestsRequest()).requests, "no request")
    errors = []

    def score():
        try:
            generation.Score(request, metadata=[("x-request-id", "again")])
        except grpc.RpcError as error:
            errors.append(reason_of(error)[0])

    thread = threading.Thread(target=score)
    thread.start()
    wait_until(lambda: admin.ListRequests(api.ListRequestsRequest()).requests, "a request")
    admin.AbortRequests(api.AbortRequestsRequest(all=True, reason="test"))
    thread.join(30)
    assert errors == ["ABORTED_BY_ADMIN"]


@pytest.mark.parametrize("model", MODELS)
def test_completions_reproduce_the_sums_of_lm_eval(tmp_path, model):
    """Sends the requests of lm-eval's local-completions: context and continuation as ids, echo, log-probabilities, one
    token.

    The sums and flags of transformers' model are derived from the answer.
    """
    reference = json.loads((SCORING / f"{model}.json").read_text())
    settings = ["kv_cache.dtype=f32", "device.cpu.activations=f32", "openai.enabled=true", "openai.listen=127.0.0.1:0",
                "model.id=fixture"]
    with Daemon(tmp_path, str(TESTDATA / "models" / model), settings=settings) as daemon:
        daemon.wait_serving()
        listening = next(json.loads(line) for line in daemon.lines if '"listening"' in line)
        pairs = reference["pairs"]
        body = {"model": "fixture", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True,
                "prompt": [pair["context_token_ids"] + pair["continuation_token_ids"] for pair in pairs]}
        request = urllib.request.Request(f"http://{listening['openai']}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            choices = json.load(answer)["choices"]
        for pair, choice in zip(pairs, choices, strict=True):
            begin = len(pair["context_token_ids"])
            scores = choice["logprobs"]["token_logprobs"][begin:-1]
            best = choice["logprobs"]["top_logprobs"][begin:-1]
            assert sum(scores) == pytest.approx(pair["logprob"], rel=1e-5, abs=1e-5), pair["id"]
            is_greedy = all(score == max(top.values()) for score, top in zip(scores, best, strict=True))
            assert is_greedy == pair["is_greedy"], pair["id"]
