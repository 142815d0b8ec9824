"""Endpoints that gateways and tools of vLLM and sglang call, /metrics and /openapi.json, on a real daemon."""

import json
import urllib.error
import urllib.request

import pytest
from attack_tools import token_line
from daemon import Daemon
from openapi_spec_validator import OpenAPIV31SpecValidator

SETTINGS = ("openai.enabled=true", "openai.listen=127.0.0.1:0", "kv_cache.dtype=f32")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("quired"), settings=SETTINGS) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


def ask(running, path, body=None, method=None, headers=None, address=None):
    """Returns status, Content-Type and body of an answer."""
    request = urllib.request.Request(f"http://{address or running.openai_address}{path}", method=method,
                                     data=None if body is None else json.dumps(body).encode(), headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def get(running, path):
    status, content_type, body = ask(running, path)
    assert status == 200 and content_type == "application/json", body
    return json.loads(body)


def post(running, path, body):
    status, _, answer = ask(running, path, body)
    assert status == 200, answer
    return json.loads(answer)


def test_tokenize_is_what_a_completion_counts(served):
    """Evaluation harnesses count tokens with /tokenize before they send a prompt."""
    prompt = "Once upon a time, there was a small dragon."
    tokens = post(served, "/tokenize", {"prompt": prompt, "return_token_strs": True})
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    usage = post(served, "/v1/completions", {"prompt": prompt, "max_tokens": 1})["usage"]
    assert usage["prompt_tokens"] == tokens["count"]
    assert tokens["max_model_len"] == get(served, "/v1/models")["data"][0]["max_model_len"]
    bare = post(served, "/tokenize", {"prompt": prompt, "add_special_tokens": False})["tokens"]
    assert post(served, "/detokenize", {"tokens": bare}) == {"prompt": prompt}


def test_tokenize_of_a_chat_is_what_the_chat_counts(tmp_path):
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    (tmp_path / "chat.jinja").write_text(template)
    with Daemon(tmp_path, settings=(*SETTINGS, f"chat.template_file={tmp_path}/chat.jinja")) as running:
        running.wait_serving()
        messages = [{"role": "user", "content": "Tell me a story."}]
        tokens = post(running, "/tokenize", {"messages": messages})
        chat = post(running, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        assert chat["usage"]["prompt_tokens"] == tokens["count"]
        assert post(running, "/detokenize", {"tokens": tokens["tokens"]})["prompt"] == "[user] Tell me a story.\n>"
        without = post(running, "/tokenize", {"messages": messages, "add_generation_prompt": False})
        assert without["count"] < tokens["count"]


def test_probes(served):
    for path in ("/health", "/ping"):
        assert ask(served, path)[0] == 200
    assert ask(served, "/ping", method="POST", body={})[0] == 200
    assert ask(served, "/", method="HEAD")[0] == 200
    assert get(served, "/version")["version"] == get(served, "/api/version")["version"]
    assert get(served, "/load") == {"server_load": 0}


def test_gateways_find_the_worker(served):
    """smg and sglang-router read these members when a worker is added."""
    model = get(served, "/v1/models")["data"][0]
    for path in ("/server_info", "/get_server_info"):
        server = get(served, path)
        assert server["served_model_name"] == model["id"] and server["tp_size"] == server["dp_size"] == 1
        assert server["max_running_requests"] > 0 and server["max_total_tokens"] > 0
    for path in ("/model_info", "/get_model_info"):
        assert get(served, path)["is_generation"] is True


def test_metrics_are_those_of_the_operators_listener(served):
    def names(text):
        return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}

    status, content_type, body = ask(served, "/metrics")
    assert status == 200 and content_type.startswith("text/plain; version=0.0.4")
    assert names(body) == names(ask(served, "/metrics", address=served.http_address)[2])


def test_openapi_document_is_valid(served):
    document = get(served, "/openapi.json")
    OpenAPIV31SpecValidator(document).validate()
    assert document["info"]["version"] == get(served, "/version")["version"]
    for path in ("/v1/completions", "/v1/chat/completions", "/api/chat", "/tokenize"):
        assert "post" in document["paths"][path]


def test_endpoints_respect_the_scopes_of_tokens(tmp_path):
    (tmp_path / "tokens").write_text(token_line("sesame-generate", "generator", "generate")
                                     + token_line("sesame-metrics", "scraper", "metrics"))
    settings = (*SETTINGS, "auth.mode=token", f"auth.tokens_file={tmp_path}/tokens")
    with Daemon(tmp_path, settings=settings) as running:
        running.wait_listening()

        def status(path, token=None, **more):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return ask(running, path, headers=headers, **more)[0]

        for path in ("/health", "/ping", "/"):
            assert status(path) in (200, 503), path
        for path in ("/version", "/load", "/server_info", "/model_info", "/metrics", "/openapi.json", "/api/tags",
                     "/api/ps", "/api/version"):
            assert status(path) == 401, path
        for path in ("/tokenize", "/detokenize", "/api/show", "/api/chat"):
            assert status(path, body={}) == 401, path
        assert status("/version", "sesame-generate") == 200
        assert status("/version", "sesame-metrics") == 403
        assert status("/metrics", "sesame-metrics") == 200
        assert status("/metrics", "sesame-generate") == 403
