"""Calls of litellm: exceptions, streams, and fallbacks of its router. Arguments: the API's base URLs of a daemon with a short
context, of one with a long context, and of one that drains."""

import sys

import litellm

SHORT, LONG, DRAINING = sys.argv[1:]
LONG_PROMPT = [{"role": "user", "content": "word " * 400}]
HELLO = [{"role": "user", "content": "Hello"}]


def ask(messages, url=SHORT, model="story", **more):
    return litellm.completion(model=f"openai/{model}", api_base=url, api_key="none", messages=messages, max_tokens=8,
                              num_retries=0, **{"temperature": 0, **more})


def error_of(kind, *arguments, **more):
    try:
        ask(*arguments, **more)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


whole = ask(HELLO)
assert whole.usage.completion_tokens == 8 and whole.system_fingerprint.startswith("fp_"), whole
pieces = [chunk.choices[0].delta.content or "" for chunk in ask(HELLO, stream=True)]
assert "".join(pieces) == whole.choices[0].message.content and len(pieces) > 2, pieces

assert error_of(litellm.ContextWindowExceededError, LONG_PROMPT).status_code == 400
assert error_of(litellm.NotFoundError, HELLO, model="nosuch").status_code == 404
assert error_of(litellm.BadRequestError, HELLO, temperature=-1).status_code == 400
assert error_of(litellm.ServiceUnavailableError, HELLO, url=DRAINING).status_code == 503

router = litellm.Router(
    model_list=[
        {"model_name": name, "litellm_params": {"model": "openai/story", "api_base": url, "api_key": "none"}}
        for name, url in (("short", SHORT), ("long", LONG), ("draining", DRAINING))
    ],
    context_window_fallbacks=[{"short": ["long"]}],
    fallbacks=[{"draining": ["long"]}],
    num_retries=0,
)
answer = router.completion(model="short", messages=LONG_PROMPT, max_tokens=8)
assert answer.usage.prompt_tokens > 128 and answer.usage.completion_tokens == 8, answer
answer = router.completion(model="draining", messages=HELLO, max_tokens=8)
assert answer.usage.completion_tokens == 8, answer
print("litellm done")
