"""Chat templates: a served model with a template renders conversations, and one without says so."""

import json
import subprocess

import grpc
import pytest
from daemon import QUIRE, ROOT, TESTDATA, Daemon, reason_of

TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role ' ~ message.role) }}
    {%- endif %}
    {{- message.role.title() ~ ': ' ~ message.content | trim ~ '\\n' }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{{ '\\n' }}{% endif %}
{%- if add_generation_prompt %}{{ speaker | default('Assistant') ~ ':' }}{% endif %}
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """The embedded model as a directory, with a chat template."""
    folder = tmp_path_factory.mktemp("storyteller")
    for file in (ROOT / "assets" / "story").iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def chatty(model_dir, tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("chatty"), settings=[f"model.path={model_dir}"]) as running:
        yield running.wait_serving()
        assert running.process.poll() is None, "quired died:\n" + running.log


@pytest.fixture
def service(api, chatty):
    with chatty.channel() as channel:
        yield api.GenerationServiceStub(channel)


def say(api, *messages, **fields):
    chat = api.ChatPrompt(**fields)
    for role, content in messages:
        chat.messages.add(role=role, content=content)
    return chat


def refusal(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), reason_of(error.value)[0], error.value.details()


def greedy(api, **prompt):
    request = api.GenerateRequest(**prompt)
    request.sampling.temperature = 0
    request.stopping.max_tokens = 12
    request.output.text = request.output.token_ids = request.output.echo_prompt = True
    return request


def test_rendering_shows_what_the_model_sees(api, service):
    chat = say(api, ("system", "Be brief."), ("user", "  Grüße {{ 1 }} \n"))
    rendered = service.RenderChat(api.RenderChatRequest(chat=chat))
    assert rendered.text == "System: Be brief.\nUser: Grüße {{ 1 }}\nAssistant:"
    tokenized = service.Tokenize(api.TokenizeRequest(text=rendered.text, add_special_tokens=False))
    assert list(rendered.token_ids) == list(tokenized.token_ids)
    assert list(service.Tokenize(api.TokenizeRequest(chat=chat)).token_ids) == list(rendered.token_ids)
    model = service.GetModel(api.GetModelRequest()).model
    assert model.has_chat_template and "chat" in model.capabilities


def test_chat_generates_from_the_rendering(api, service):
    chat = say(api, ("user", "Tell me of a dog"))
    rendered = service.RenderChat(api.RenderChatRequest(chat=chat))
    messages = list(service.Generate(greedy(api, chat=chat)))
    started = messages[0].started
    assert started.prompt_text == rendered.text
    assert list(started.prompt_token_ids) == list(rendered.token_ids)
    plain = greedy(api, text=rendered.text, add_special_tokens=False)
    expected = list(service.Generate(plain))[-1].completed
    assert messages[-1].completed.token_ids == expected.token_ids
    assert messages[-1].completed.text == expected.text and expected.text


def test_tools_and_variables_reach_the_template(api, service):
    chat = say(api, ("user", "hi"))
    chat.tools.add(name="now", description="Time", parameters_json_schema='{"type": "object", "b": 1, "a": 2}')
    chat.template_vars.update({"speaker": "Bot"})
    assert service.RenderChat(api.RenderChatRequest(chat=chat)).text == (
        'User: hi\n[{"type": "function", "function": {"name": "now", "description": "Time", '
        '"parameters": {"type": "object", "b": 1, "a": 2}}}]\nBot:'
    )
    chat = say(api, ("user", "hi"), ("assistant", "Once upon"), continue_final_message=True)
    assert service.RenderChat(api.RenderChatRequest(chat=chat)).text == "User: hi\nAssistant: Once upon"
    chat = say(api, ("user", "hi"), add_generation_prompt=False)
    assert service.RenderChat(api.RenderChatRequest(chat=chat)).text == "User: hi\n"


def test_bad_conversations_are_refused_by_name(api, service):
    def outcome(chat):
        call = refusal(lambda: service.RenderChat(api.RenderChatRequest(chat=chat)))
        assert call[:2] == refusal(lambda: list(service.Generate(greedy(api, chat=chat))))[:2]
        return call

    invalid = (grpc.StatusCode.INVALID_ARGUMENT, "BAD_CHAT_TEMPLATE_INPUT")
    code, reason, text = outcome(say(api, ("robot", "beep")))
    assert (code, reason) == invalid
    assert text.endswith("unknown role robot") and 'template "default", line 3, column' in text
    assert outcome(api.ChatPrompt())[:2] == invalid
    bad_tool = say(api, ("user", "hi"))
    bad_tool.tools.add(name="f", parameters_json_schema="{")
    assert outcome(bad_tool)[:2] == invalid
    code, reason, text = outcome(say(api, ("user", "hi"), template_name="nosuch"))
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_TEMPLATE_MISSING")
    assert "default" in text
    # No other call is disturbed.
    assert service.RenderChat(api.RenderChatRequest(chat=say(api, ("user", "ok")))).text


def test_a_model_without_template_says_so(api, generation):
    chat = say(api, ("user", "hi"))
    for call in (
        lambda: generation.RenderChat(api.RenderChatRequest(chat=chat)),
        lambda: list(generation.Generate(greedy(api, chat=chat))),
        lambda: generation.Tokenize(api.TokenizeRequest(chat=chat)),
    ):
        code, reason, text = refusal(call)
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_TEMPLATE_MISSING")
        assert text == "the model's files have no chat template"
    assert not generation.GetModel(api.GetModelRequest()).model.has_chat_template


def test_the_template_of_a_gguf_file_is_used(api, tmp_path):
    path = TESTDATA / "gguf" / "models" / "llama-f16" / "model.gguf"
    with Daemon(tmp_path, str(path), settings=["kv_cache.dtype=f32", "kv_cache.page_size=16"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            service = api.GenerationServiceStub(channel)
            chat = say(api, ("system", "be"), ("user", "hi"))
            assert service.RenderChat(api.RenderChatRequest(chat=chat)).text == "system: be\nuser: hi\n"


def test_the_configuration_brings_a_template_and_a_reload_changes_it(api, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{{ greeting }} {{ messages[0].content }}")
    config = tmp_path / "quired.yaml"
    config.write_text(f"chat:\n  template_file: {template}\n  default_vars: '{{\"greeting\": \"Hello\"}}'\n")
    request = api.RenderChatRequest(chat=say(api, ("user", "you")))
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel, daemon.admin_channel() as admin_channel:
            service = api.GenerationServiceStub(channel)
            admin = api.AdminServiceStub(admin_channel)
            assert service.RenderChat(request).text == "Hello you"
            config.write_text(config.read_text().replace("Hello", "Servus"))
            template.write_text("{{ greeting }}, {{ messages[0].content }}")
            admin.ReloadConfig(api.ReloadConfigRequest())
            assert service.RenderChat(request).text == "Servus, you"
            # A broken template does not replace one that works.
            template.write_text("{% if %}")
            errors = admin.ReloadConfig(api.ReloadConfigRequest()).errors
            assert len(errors) == 1 and "chat template: chat.template_file" in errors[0], errors
            assert "line 1, column 7" in errors[0]
            assert service.RenderChat(request).text == "Servus, you"


def test_a_template_that_was_broken_at_the_start_refuses_chats(api, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{% if %}")
    with Daemon(tmp_path, settings=[f"chat.template_file={template}"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            request = api.RenderChatRequest(chat=say(api, ("user", "you")))
            code, reason, text = refusal(lambda: api.GenerationServiceStub(channel).RenderChat(request))
            assert reason == "CHAT_TEMPLATE_MISSING" and "line 1, column 7" in text


def test_a_missing_template_file_ends_the_start(tmp_path):
    with Daemon(tmp_path, settings=["chat.template_file=/nowhere/x.jinja"]) as daemon:
        assert daemon.wait(30) != 0
        assert "chat.template_file" in daemon.log and "/nowhere/x.jinja" in daemon.log


def quire(daemon, *arguments, text=None):
    command = [str(QUIRE), "--address", daemon.grpc_address, "--timeout", "60", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=90)


def test_the_command_line_chats(api, chatty, service, tmp_path):
    rendered = quire(chatty, "render", "--system", "Be brief.", "hi", "--var", 'speaker="Bot"')
    assert (rendered.returncode, rendered.stdout) == (0, "System: Be brief.\nUser: hi\nBot:")
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]))
    rendered = quire(chatty, "render", "--messages", str(messages), "--continue")
    assert rendered.stdout == "User: hi\nAssistant: Once"
    ids = quire(chatty, "render", "hi", "--ids").stdout.split()
    assert [int(word) for word in ids] == list(service.RenderChat(api.RenderChatRequest(chat=say(api, ("user", "hi")))).token_ids)

    arguments = ("--temperature", "0", "--max-tokens", "8")
    once = quire(chatty, "chat", "Tell me of a dog", *arguments)
    expected = greedy(api, chat=say(api, ("user", "Tell me of a dog")))
    expected.stopping.max_tokens = 8
    first = list(service.Generate(expected))[-1].completed.text
    assert (once.returncode, once.stdout) == (0, first + "\n")
    # Line by line: the second answer knows the first.
    turns = quire(chatty, "chat", *arguments, text="Tell me of a dog\n\nAnd a cat\n")
    expected = greedy(api, chat=say(api, ("user", "Tell me of a dog"), ("assistant", first), ("user", "And a cat")))
    expected.stopping.max_tokens = 8
    second = list(service.Generate(expected))[-1].completed.text
    assert (turns.returncode, turns.stdout) == (0, f"{first}\n{second}\n")
    refused = quire(chatty, "chat", "--template", "nosuch", "hi")
    assert refused.returncode == 1 and "CHAT_TEMPLATE_MISSING" in refused.stderr
