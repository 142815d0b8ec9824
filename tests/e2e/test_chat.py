"""Chat templates: a model with a template renders conversations, and a model without one reports that."""

import json
import shutil
import struct
import subprocess

import grpc
import openai
import pytest
from daemon import QUIRE, QUIRED, ROOT, TESTDATA, Daemon, reason_of

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


def copy_without_template(folder):
    """Copies the embedded model without its chat template, and returns the folder."""
    shutil.copytree(ROOT / "assets" / "story", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


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


def test_rendering_equals_the_prompt_of_the_model(api, service):
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


def test_bad_conversations_are_rejected_with_their_field(api, service):
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
    # The next call succeeds.
    assert service.RenderChat(api.RenderChatRequest(chat=say(api, ("user", "ok")))).text


def test_model_without_template_reports_it(api, tmp_path):
    chat = say(api, ("user", "hi"))
    with Daemon(tmp_path, copy_without_template(tmp_path / "model")) as running:
        running.wait_serving()
        with running.channel() as channel:
            service = api.GenerationServiceStub(channel)
            for call in (
                lambda: service.RenderChat(api.RenderChatRequest(chat=chat)),
                lambda: list(service.Generate(greedy(api, chat=chat))),
                lambda: service.Tokenize(api.TokenizeRequest(chat=chat)),
            ):
                code, reason, text = refusal(call)
                assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_TEMPLATE_MISSING")
                assert text == ("the model has no chat template; set chat.template_file to a Jinja file, "
                                "such as one of configs/templates")
            assert not service.GetModel(api.GetModelRequest()).model.has_chat_template


@pytest.mark.parametrize("wish, prompt", [
    ("tell me a story about a cat", "<|endoftext|>Once upon a time, there was a cat.\n"),
    ("A story about two frogs, please!", "<|endoftext|>Once upon a time, there was two frogs, please.\n"),
    ("Tell me a story.", "<|endoftext|>"),
    (" Lily and Tom ", "<|endoftext|>Lily and Tom"),
])
def test_the_embedded_model_turns_a_wish_into_a_story(api, generation, wish, prompt):
    chat = say(api, ("system", "Be kind."), ("user", "hi"), ("assistant", "Hi."), ("user", wish))
    assert generation.RenderChat(api.RenderChatRequest(chat=chat)).text == prompt
    assert len(list(generation.Generate(greedy(api, chat=chat)))[-1].completed.text) > 10


# The models' own templates render these texts. The special tokens are those of the embedded model.
TURNS = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")]
READY = {
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
              "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<|endoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<|endoftext|>[INST] Be brief.\n\nHi [/INST] Hello<|endoftext|>[INST] Bye [/INST]",
    "gemma": "<|endoftext|><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
             "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    "plain": "System: Be brief.\nUser: Hi\nAssistant: Hello\nUser: Bye\nAssistant:",
}


def test_ready_templates_render_the_formats_of_their_models(api, tmp_path):
    files = sorted((ROOT / "configs" / "templates").glob("*.jinja"))
    assert [file.stem for file in files] == sorted(READY)
    for file in files:
        with Daemon(tmp_path, settings=[f"chat.template_file={file}"]) as running:
            running.wait_serving()
            with running.channel() as channel:
                rendering = api.RenderChatRequest(chat=say(api, *TURNS))
                assert api.GenerationServiceStub(channel).RenderChat(rendering).text == READY[file.stem], file


def test_template_of_a_gguf_file_is_used(api, tmp_path):
    path = TESTDATA / "gguf" / "models" / "llama-f16" / "model.gguf"
    with Daemon(tmp_path, str(path), settings=["kv_cache.dtype=f32", "kv_cache.page_size=16"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            service = api.GenerationServiceStub(channel)
            chat = say(api, ("system", "be"), ("user", "hi"))
            assert service.RenderChat(api.RenderChatRequest(chat=chat)).text == "system: be\nuser: hi\n"


def test_configured_template_is_used_and_reload_changes_it(api, tmp_path):
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
            # A broken template does not replace a working one.
            template.write_text("{% if %}")
            errors = admin.ReloadConfig(api.ReloadConfigRequest()).errors
            assert len(errors) == 1 and "chat.template_file" in errors[0] and str(template) in errors[0], errors
            assert "line 1, column 7" in errors[0]
            assert service.RenderChat(request).text == "Servus, you"


@pytest.mark.parametrize(
    "source, place",
    [("{% if %}", "line 1, column 7"), ("a\n{{ x|nosuch }}", "line 2, column 6"), ("", "is empty"),
     (b"\xff", "not UTF-8"), ("{{ 'a'.encode() }}", "the method 'encode' is not supported")],
)
def test_broken_template_file_fails_start_and_validation(tmp_path, source, place):
    template = tmp_path / "own.jinja"
    template.write_bytes(source if isinstance(source, bytes) else source.encode())
    setting = f"chat.template_file={template}"
    checked = subprocess.run(
        [str(QUIRED), "--validate", "--set", setting], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert checked.returncode != 0
    output = checked.stdout + checked.stderr
    assert "chat.template_file" in output and str(template) in output and place in output
    with Daemon(tmp_path, settings=[setting]) as daemon:
        assert daemon.wait(60) != 0
        assert "chat.template_file" in daemon.log and place in daemon.log


def test_unsupported_filter_warns_at_start_and_fails_when_reached(api, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text("{% if tools %}{{ tools|nosuch }}{% else %}{{ messages[0].content }}{% endif %}")
    with Daemon(tmp_path, settings=[f"chat.template_file={template}"]) as daemon:
        daemon.wait_serving()
        warnings = [line for line in daemon.lines if "the filter 'nosuch' is not supported" in line]
        assert warnings and "line 1, column 24" in warnings[0]
        with daemon.channel() as channel:
            service = api.GenerationServiceStub(channel)
            chat = say(api, ("user", "you"))
            assert service.RenderChat(api.RenderChatRequest(chat=chat)).text == "you"
            chat.tools.add(name="f")
            code, reason, text = refusal(lambda: service.RenderChat(api.RenderChatRequest(chat=chat)))
            assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_TEMPLATE_MISSING")
            assert "nosuch" in text


PLAIN = "P:{% for m in messages %}{{ m.content }};{% endfor %}"
TOOL_USE = "T:{% for t in tools %}{{ t.function.name }},{% endfor %}"
RAG = "R{% if tools %}{{ tools[0].function.name }}{% endif %}"


def list_in_tokenizer_config(folder):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.unlink()
    config["chat_template"] = [{"name": name, "template": template} for name, template in
                               (("default", PLAIN), ("tool_use", TOOL_USE), ("rag", RAG))]
    path.write_text(json.dumps(config))


def files_of_a_folder(folder):
    (folder / "chat_template.jinja").write_text(PLAIN)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE)
    (folder / "additional_chat_templates" / "rag.jinja").write_text(RAG)
    (folder / "additional_chat_templates" / "notes.txt").write_text("no template")


def named_keys_of_a_gguf_file(source, target):
    """Inserts metadata before a file's own. Its size is a multiple of the data alignment."""
    def text(value):
        return struct.pack("<Q", len(value)) + value

    bytes_ = source.read_bytes()
    added = b""
    for name, template in ((".tool_use", TOOL_USE), (".rag", RAG)):
        entry = text(b"tokenizer.chat_template" + name.encode()) + struct.pack("<I", 8)
        size = 8 + len(template)
        template = template.encode() + b"{#" + b" " * (-(len(entry) + size + 4) % 32) + b"#}"
        added += entry + text(template)
    count = struct.unpack("<Q", bytes_[16:24])[0]
    target.write_bytes(bytes_[:16] + struct.pack("<Q", count + 2) + added + bytes_[24:])


@pytest.mark.parametrize("layout", ["list", "folder", "gguf"])
def test_chats_with_tools_get_the_template_tool_use(api, tmp_path, layout):
    plain = "P:hi;"
    if layout == "gguf":
        model = tmp_path / "model.gguf"
        named_keys_of_a_gguf_file(TESTDATA / "gguf" / "models" / "llama-f16" / "model.gguf", model)
        plain = "user: hi\n"
    else:
        model = tmp_path / "model"
        model.mkdir()
        for file in (ROOT / "assets" / "story").iterdir():
            (model / file.name).write_bytes(file.read_bytes())
        (list_in_tokenizer_config if layout == "list" else files_of_a_folder)(model)
    with Daemon(tmp_path, settings=[f"model.path={model}", "kv_cache.dtype=f32", "kv_cache.page_size=16"]) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            service = api.GenerationServiceStub(channel)

            def render(chat):
                return service.RenderChat(api.RenderChatRequest(chat=chat)).text

            chat = say(api, ("user", "hi"))
            assert render(chat) == plain
            chat.tools.add(name="get_weather")
            chat.tools.add(name="stop")
            assert render(chat) == "T:get_weather,stop,"
            chat.tool_choice = api.TOOL_CHOICE_NONE
            assert render(chat) == plain
            chat.tool_choice = api.TOOL_CHOICE_AUTO
            chat.template_name = "rag"
            assert render(chat) == "Rget_weather"
            chat.template_name = "default"
            code, _, text = refusal(lambda: render(chat))
            assert code == grpc.StatusCode.FAILED_PRECONDITION and '"default" does not print' in text


def test_parts_of_content_reach_the_template_over_both_interfaces(api, model_dir, tmp_path):
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %};{% endfor %}"
    )
    settings = [f"model.path={model_dir}", "openai.enabled=true", "openai.listen=127.0.0.1:0"]
    for more, expected in (([f"chat.template_file={template}"], "<a><b>;<>;c;"),
                           ([], "User: a\nb\nUser:\nUser: c\n")):
        with Daemon(tmp_path, settings=[*settings, *more]) as daemon:
            daemon.wait_serving()
            with daemon.channel() as channel:
                service = api.GenerationServiceStub(channel)
                chat = api.ChatPrompt(add_generation_prompt=False)
                chat.messages.add(role="user").parts.extend([api.ContentPart(text="a"), api.ContentPart(text="b")])
                chat.messages.add(role="user").parts.add()
                chat.messages.add(role="user", content="c")
                rendered = service.RenderChat(api.RenderChatRequest(chat=chat))
                assert rendered.text.replace(": \n", ":\n") == expected
                chat.messages[0].content = "both"
                code, reason, text = refusal(lambda: service.RenderChat(api.RenderChatRequest(chat=chat)))
                assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_CHAT_TEMPLATE_INPUT")
                assert "chat.messages[0]" in text and "content and parts" in text
            client = openai.OpenAI(base_url=f"http://{daemon.openai_address}/v1", api_key="x", max_retries=0)
            part = [{"type": "text", "text": word} for word in ("a", "b")]
            answer = client.chat.completions.create(
                model=client.models.list().data[0].id, max_tokens=1,
                messages=[{"role": "user", "content": part}, {"role": "user", "content": [{"type": "text", "text": ""}]},
                          {"role": "user", "content": "c"}],
                extra_body={"add_generation_prompt": False},
            )
            assert answer.usage.prompt_tokens == len(rendered.token_ids)


def test_missing_template_file_fails_the_start(tmp_path):
    with Daemon(tmp_path, settings=["chat.template_file=/nowhere/x.jinja"]) as daemon:
        assert daemon.wait(30) != 0
        assert "chat.template_file" in daemon.log and "/nowhere/x.jinja" in daemon.log


def quire(daemon, *arguments, text=None):
    command = [str(QUIRE), "--address", daemon.grpc_address, "--timeout", "60", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=90)


def test_command_line_client_chats(api, chatty, service, tmp_path):
    rendered = quire(chatty, "render", "--system", "Be brief.", "hi", "--var", 'speaker="Bot"')
    assert (rendered.returncode, rendered.stdout) == (0, "System: Be brief.\nUser: hi\nBot:")
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]))
    rendered = quire(chatty, "render", "--messages", str(messages), "--continue")
    assert rendered.stdout == "User: hi\nAssistant: Once"
    ids = quire(chatty, "render", "hi", "--ids").stdout.split()
    assert [int(word) for word in ids] == list(service.RenderChat(api.RenderChatRequest(chat=say(api, ("user", "hi")))).token_ids)

    refused = quire(chatty, "chat", "hi", "--var", 'a=1,"b":2')
    assert refused.returncode == 2 and '--var a=1,"b":2' in refused.stderr, refused
    refused = quire(chatty, "chat", "--messages", "-", "-", text="[]")
    assert refused.returncode == 2 and "only one of the message, --messages and --tools" in refused.stderr, refused

    arguments = ("--temperature", "0", "--max-tokens", "8")
    once = quire(chatty, "chat", "Tell me of a dog", *arguments)
    expected = greedy(api, chat=say(api, ("user", "Tell me of a dog")))
    expected.stopping.max_tokens = 8
    first = list(service.Generate(expected))[-1].completed.text
    assert (once.returncode, once.stdout) == (0, first + "\n")
    # The chat runs line by line. The second answer depends on the first.
    turns = quire(chatty, "chat", *arguments, text="Tell me of a dog\n\nAnd a cat\n")
    expected = greedy(api, chat=say(api, ("user", "Tell me of a dog"), ("assistant", first), ("user", "And a cat")))
    expected.stopping.max_tokens = 8
    second = list(service.Generate(expected))[-1].completed.text
    assert (turns.returncode, turns.stdout) == (0, f"{first}\n{second}\n")
    refused = quire(chatty, "chat", "--template", "nosuch", "hi")
    assert refused.returncode == 1 and "CHAT_TEMPLATE_MISSING" in refused.stderr
