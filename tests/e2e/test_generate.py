"""Tests of generation over gRPC: streams, choices, seeds, stops, log-probabilities, batches."""

import threading

import grpc
import pytest
from daemon import reason_of
from waiting import wait_until

PROMPT = "Once upon a time"


def request(api, prompt=PROMPT, **output):
    made = api.GenerateRequest(text=prompt)
    made.sampling.temperature = 0
    made.stopping.max_tokens = 24
    made.output.stream = True
    made.output.token_ids = True
    made.output.text = True
    for name, value in output.items():
        setattr(made.output, name, value)
    return made


def run(generation, made):
    """Returns (started, {index: (text, ids, logprobs)}, {index: completed})."""
    started, parts, completed = None, {}, {}
    for message in generation.Generate(made, timeout=60):
        event = message.WhichOneof("event")
        if event == "started":
            assert started is None and not parts, "started is the first event, once"
            started = message.started
        elif event == "delta":
            delta = message.delta
            assert delta.index not in completed, "no delta after completed"
            text, ids, logprobs = parts.setdefault(delta.index, ["", [], []])
            parts[delta.index][0] = text + delta.text
            ids.extend(delta.token_ids)
            logprobs.extend(delta.logprobs)
        elif event == "completed":
            completed[message.completed.index] = message.completed
    return started, parts, completed


def test_streams_equal_whole_responses(api, generation):
    started, parts, completed = run(generation, request(api))
    assert started.prompt_tokens > 0 and started.max_tokens == 24
    text, ids, _ = parts[0]
    assert len(ids) == 24 == completed[0].usage.completion_tokens
    assert completed[0].finish_reason == api.FINISH_REASON_LENGTH
    assert completed[0].text == "" and not completed[0].token_ids
    _, no_parts, whole = run(generation, request(api, stream=False))
    assert no_parts == {}
    assert whole[0].text == text and list(whole[0].token_ids) == ids
    detokenized = generation.Detokenize(api.DetokenizeRequest(token_ids=ids, skip_special_tokens=True))
    assert detokenized.text == text


def test_the_seed_determines_the_output(api, generation):
    made = request(api)
    made.sampling.temperature = 1
    made.sampling.seed = 7
    answers = [run(generation, made)[1][0][1] for _ in range(2)]
    assert answers[0] == answers[1]
    made.sampling.seed = 8
    assert run(generation, made)[1][0][1] != answers[0]


def test_generated_seed_is_returned_and_reproduces_the_output(api, generation):
    made = request(api)
    made.sampling.temperature = 1
    started, parts, _ = run(generation, made)
    made.sampling.seed = started.seed
    assert run(generation, made)[1][0][1] == parts[0][1]


def test_choices_differ_and_share_the_prompt(api, generation):
    made = request(api)
    made.sampling.temperature = 1
    made.sampling.seed = 3
    made.sampling.choice_count = 4
    started, parts, completed = run(generation, made)
    assert sorted(completed) == [0, 1, 2, 3]
    assert len({tuple(parts[i][1]) for i in range(4)}) > 1
    assert {c.usage.prompt_tokens for c in completed.values()} == {started.prompt_tokens}


def test_stop_text_is_removed_and_reported(api, generation):
    text = run(generation, request(api))[1][0][0]
    stop = text[10:14]
    made = request(api)
    made.stopping.stop.append(stop)
    _, parts, completed = run(generation, made)
    assert completed[0].finish_reason == api.FINISH_REASON_STOP_TEXT
    assert completed[0].stop_text == stop
    assert parts[0][0] == text[: text.index(stop)]
    made.stopping.include_stop_text = True
    assert run(generation, made)[1][0][0] == text[: text.index(stop) + len(stop)]


def test_banned_text_is_in_no_output(api, generation):
    _, parts, _ = run(generation, request(api))
    words = sorted(set(parts[0][0].split()), key=len)
    banned = [words[-1][1:], words[0]]  # part of a word, and a short word
    made = request(api)
    made.sampling.banned_text.extend(banned)
    for temperature in (0, 1):
        made.sampling.temperature = temperature
        made.sampling.seed = 5
        made.sampling.choice_count = 3
        _, parts, completed = run(generation, made)
        assert len(completed) == 3
        for text, ids, _ in parts.values():
            assert ids and not any(word in text for word in banned)
    made.sampling.banned_text.append("")
    with pytest.raises(grpc.RpcError) as refused:
        run(generation, made)
    assert reason_of(refused.value)[0] == "BAD_SAMPLING_PARAM"


def test_the_most_likely_tokens_can_be_limited_or_excluded(api, generation):
    greedy = run(generation, request(api))[1][0][1]
    made = request(api, logprobs=0)
    made.sampling.temperature, made.sampling.seed = 1, 11
    made.sampling.top_n_sigma = 1e-6  # only tokens as likely as the best one
    assert run(generation, made)[1][0][1] == greedy
    made.sampling.ClearField("top_n_sigma")
    made.sampling.top_k, made.sampling.xtc_probability, made.sampling.xtc_threshold = 2, 1, 1e-4
    ranks = [row.rank for row in run(generation, made)[1][0][2]]
    assert ranks.count(2) > len(ranks) / 2, "the best token is excluded if the second is likely enough"
    made.sampling.xtc_probability = 0
    assert run(generation, made)[1][0][1] != greedy
    made.sampling.xtc_probability, made.sampling.xtc_threshold = 1, 0.6
    assert [row.rank for row in run(generation, made)[1][0][2]].count(1) > 12


def test_dry_prevents_repetitions(api, generation):
    made = request(api)
    word = run(generation, made)[1][0][1][0]
    made.sampling.logit_bias[word] = 50
    assert run(generation, made)[1][0][1] == [word] * 24
    made.sampling.dry_multiplier, made.sampling.dry_base = 100, 2
    answer = run(generation, made)[1][0][1]
    ids = list(generation.Tokenize(api.TokenizeRequest(text=made.text)).token_ids) + answer
    texts = [generation.Detokenize(api.DetokenizeRequest(token_ids=[token])).text for token in ids]
    assert answer.count(word) > 8 and not any(mark in text for text in texts for mark in ("\n", ":", '"', "*"))
    triples = [tuple(ids[i : i + 3]) for i in range(len(ids) - 2)]
    assert len(set(triples)) == len(triples), "no token extends a repetition of two tokens"
    made.sampling.dry_sequence_breakers.append(texts[-24])  # the word itself, so no sequence with it counts as a repetition
    assert run(generation, made)[1][0][1] == [word] * 24


def test_stop_token_is_reported(api, generation):
    ids = run(generation, request(api))[1][0][1]
    made = request(api)
    made.stopping.stop_token_ids.append(ids[5])
    _, parts, completed = run(generation, made)
    assert completed[0].finish_reason == api.FINISH_REASON_STOP_TOKEN
    assert completed[0].stop_token_id == ids[5]
    assert ids.index(ids[5]) <= 5


def test_logprobs_cover_the_token_the_best_tokens_and_the_prompt(api, generation):
    made = request(api, logprobs=3, prompt_logprobs=2)
    listed = []
    rows = []
    for message in generation.Generate(made, timeout=60):
        if message.HasField("prompt_logprobs"):
            assert message.prompt_logprobs.start_position == 1 + len(listed)
            listed.extend(message.prompt_logprobs.tokens)
        elif message.HasField("started"):
            prompt_tokens = message.started.prompt_tokens
        elif message.HasField("delta"):
            rows.extend(message.delta.logprobs)
    assert len(listed) == prompt_tokens - 1
    assert len(rows) == 24
    for row in rows:  # greedy: the sampled token is the best one
        assert len(row.top) == 3 and row.rank == 1
        assert row.top[0].token_id == row.token_id and row.top[0].logprob == row.logprob
        assert row.logprob <= 0 and row.top[0].logprob >= row.top[1].logprob >= row.top[2].logprob
    for row in listed:
        assert len(row.top) == 2 and row.rank >= 1 and row.logprob <= row.top[0].logprob


def test_processed_logprobs_are_those_of_sampling(api, generation):
    made = request(api, logprobs=1, processed_logprobs=True)
    _, parts, _ = run(generation, made)
    assert all(row.processed_logprob == 0 for row in parts[0][2]), "greedy tokens are certain"
    made.sampling.temperature, made.sampling.seed = 1, 3
    made.sampling.top_p, made.sampling.top_k, made.sampling.min_p = 1, 0, 0
    _, parts, _ = run(generation, made)
    for row in parts[0][2]:  # only ids without text are excluded
        assert row.logprob - 1e-4 <= row.processed_logprob < row.logprob + 0.1
    made.sampling.top_k = 1
    _, parts, _ = run(generation, made)
    assert all(row.processed_logprob == pytest.approx(0, abs=1e-6) for row in parts[0][2])
    made.output.processed_logprobs = False
    _, parts, _ = run(generation, made)
    assert not any(row.HasField("processed_logprob") for row in parts[0][2])
    made.output.processed_logprobs = True
    made.output.ClearField("logprobs")
    with pytest.raises(grpc.RpcError) as refused:
        run(generation, made)
    assert reason_of(refused.value)[0] == "BAD_PARAMETER"


def test_echo_returns_the_prompt(api, generation):
    started, _, _ = run(generation, request(api, echo_prompt=True))
    ids = generation.Tokenize(api.TokenizeRequest(text=PROMPT)).token_ids
    assert list(started.prompt_token_ids) == list(ids)
    assert PROMPT in started.prompt_text


def test_cached_prefix_gives_the_same_output(api, generation):
    prompt = "Lily and Tom went to the park. " * 30
    _, cold, _ = run(generation, request(api, prompt, logprobs=0))
    started, warm, completed = run(generation, request(api, prompt, logprobs=0))
    assert started.cached_tokens >= 64 and completed[0].usage.cached_tokens == started.cached_tokens
    assert warm[0][1] == cold[0][1]
    assert [row.logprob for row in warm[0][2]] == [row.logprob for row in cold[0][2]]
    made = request(api, prompt)
    made.cache.skip_read = True
    assert run(generation, made)[0].cached_tokens == 0


def test_cancel_by_id_frees_the_pages(api, generation, admin):
    made = request(api)
    made.request_id = "to-be-cancelled"
    made.sampling.choice_count = 16
    made.stopping.max_tokens = 400
    made.stopping.ignore_eos = True
    stream = generation.Generate(made)
    assert next(stream).HasField("started")
    assert generation.Cancel(api.CancelRequest(request_id="to-be-cancelled")).found
    with pytest.raises(grpc.RpcError) as error:
        for _ in stream:
            pass
    assert error.value.code() == grpc.StatusCode.CANCELLED
    assert reason_of(error.value)[0] == "CANCELLED_BY_CALLER"
    assert not generation.Cancel(api.CancelRequest(request_id="to-be-cancelled")).found
    wait_for_idle(api, admin)


def test_disconnect_frees_the_pages(api, generation, admin):
    made = request(api)
    made.sampling.choice_count = 16
    made.stopping.max_tokens = 400
    made.stopping.ignore_eos = True
    stream = generation.Generate(made)
    assert next(stream).HasField("started")
    stream.cancel()
    wait_for_idle(api, admin)


def wait_for_idle(api, admin):
    def is_idle():
        stats = admin.GetStats(api.GetStatsRequest()).stats
        return stats.used_kv_page_count == stats.running_count == stats.waiting_count == 0

    wait_until(is_idle, "no request lives, and the pages are back")


def test_expired_deadline_is_an_error(api, generation):
    made = request(api)
    made.sampling.choice_count = 16
    made.stopping.max_tokens = 480
    made.stopping.ignore_eos = True
    made.timeout.nanos = 60_000_000
    with pytest.raises(grpc.RpcError) as error:
        for message in generation.Generate(made):
            assert not message.HasField("completed")
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert reason_of(error.value)[0] == "TIMEOUT"


def test_batch_items_are_independent(api, generation):
    def commands():
        for i in range(6):
            made = request(api, f"The little dragon number {i}", stream=i % 2 == 0)
            made.request_id = f"item-{i}"
            if i == 3:
                made.sampling.top_p = 2  # this item is rejected, the others continue
            yield api.BatchGenerateRequest(generate=made)

    done, errors, completed = set(), {}, set()
    for message in generation.BatchGenerate(commands(), timeout=60):
        kind = message.WhichOneof("result")
        if kind == "done":
            done.add(message.request_id)
        elif kind == "error":
            errors[message.request_id] = message.error
        elif message.response.HasField("completed"):
            completed.add(message.request_id)
    assert list(errors) == ["item-3"] and errors["item-3"].reason == "BAD_SAMPLING_PARAM"
    assert done == completed == {f"item-{i}" for i in range(6)} - {"item-3"}


def test_concurrent_streams_equal_sequential_ones(api, generation):
    prompts = [f"The little {word}" for word in "dog cat bird fish frog bear fox owl".split()] * 2
    alone = [run(generation, request(api, prompt))[1][0][1] for prompt in prompts]
    together = [None] * len(prompts)

    def one(i):
        together[i] = run(generation, request(api, prompts[i]))[1][0][1]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_request_id_is_returned_in_initial_metadata(api, generation):
    made = request(api)
    stream = generation.Generate(made, metadata=(("x-request-id", "from-metadata"),))
    assert dict(stream.initial_metadata())["quire-request-id"] == "from-metadata"
    assert {message.request_id for message in stream} == {"from-metadata"}
