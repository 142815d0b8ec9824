"""`quire inspect` reports the content of a model's files without a server."""

import json
import re
import shutil
import subprocess

import pytest
from daemon import QUIRE, QUIRED, TESTDATA

MODELS = TESTDATA / "models"
TOKENIZERS = TESTDATA / "tokenizers" / "cases"


def inspect(*arguments, code=0):
    command = [str(QUIRE), "inspect", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def inspect_json(*arguments, code=0):
    return json.loads(inspect("--json", *arguments, code=code))


@pytest.fixture
def model(tmp_path):
    """A copy of a small Llama model that tests modify."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in (MODELS / "llama-gqa-tied-bf16").iterdir():
        if not path.name.startswith("reference"):
            shutil.copyfile(path, copy / path.name)
    return copy


def edit(model, **keys):
    config = json.loads((model / "config.json").read_text())
    config.update(keys)
    (model / "config.json").write_text(json.dumps(config))


def test_json_report_of_a_model(model):
    hidden, inner, layers, kv = 128, 160, 2, 32
    attention = layers * (2 * hidden * hidden + 2 * kv * hidden)
    groups = {
        "embedding": {"tensors": 1, "parameters": 384 * hidden},
        "attention": {"tensors": 4 * layers, "parameters": attention},
        "mlp": {"tensors": 3 * layers, "parameters": layers * 3 * hidden * inner},
        "norms": {"tensors": 2 * layers + 1, "parameters": (2 * layers + 1) * hidden},
    }
    for group in groups.values():
        group["stored_bytes"] = 2 * group["parameters"]
    report = inspect_json(model)
    assert report["groups"] == groups
    assert report["parameters"] == sum(group["parameters"] for group in groups.values())
    assert report["stored_bytes"] == 2 * report["parameters"]
    assert report["stored_bytes_by_type"] == {"BF16": report["stored_bytes"]}
    assert report["architecture"] == "LlamaForCausalLM" and report["family"] == "llama"
    ids = {f"{name}_token_id": id for name, id in (("bos", 0), ("eos", 1), ("pad", 2))}
    assert report["tokenizer"] == {"kind": "BPE (tokenizer.json)", "vocab_size": 320, **ids}
    assert report["keys"] == {
        "ignored": ["attention_dropout", "initializer_range", "pretraining_tp", "transformers_version", "use_cache"],
        "unknown": [],
        "refused": [],
    }
    assert report["problems"] == [] and report["warnings"] == []
    assert report["spec"][0] == "model vocab 384 hidden 128 max_position 512 tied eos 1 bos 0 pad 2"
    assert sum(line.startswith("layers 0 to 1: ") for line in report["spec"]) == 1, "equal layers are one line"
    assert report["plan"]["weights_bytes"] > 0 and "page_bytes" in report["plan"]


def test_text_report_of_a_model(model):
    text = inspect(model)
    assert re.search(r"^architecture +LlamaForCausalLM, family llama$", text, re.M)
    assert re.search(r"^parameters +254592 in 20 tensors, 0\.49 MiB in files$", text, re.M)
    assert re.search(r"^ +embedding +49152 parameters +0\.09 MiB in 1 tensors$", text, re.M)
    assert re.search(r"^model +2 layers, hidden size 128, vocabulary 384, context 512 tokens, the head shares ", text, re.M)
    layer = "attention with 4 heads of size 32 on 1 KV head, rotary positions; MLP: gated SiLU of inner size 160; "
    assert re.search(rf"^layers 0-1 +{layer}RMSNorm before attention, before the MLP$", text, re.M)
    assert re.search(r"^tokenizer +BPE \(tokenizer\.json\), vocabulary 320, bos 0, eos 1, pad 2$", text, re.M)
    assert re.search(r"^CPU plan +weights ", text, re.M)
    assert re.search(r"^keys +ignored: attention_dropout, ", text, re.M)
    assert "problem" not in text


def test_plan_equals_that_of_quire_plan(model):
    report = inspect_json(model, "--device-memory", "2GiB", "--set", "kv_cache.dtype=int8")
    command = [QUIRE, "--json", "plan", model, "--device-memory", "2GiB", "--set", "kv_cache.dtype=int8"]
    assert report["plan"] == json.loads(subprocess.check_output(list(map(str, command)), timeout=60))
    assert report["plan"]["kv_dtype"] == "int8"


def refusal_of_the_server(model, *sets):
    """Returns the error of quired --validate for the same configuration."""
    command = [QUIRED, "--validate", "--set", f"model.path={model}", "--set", "device.type=cpu", *sets]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    return done.stderr + done.stdout if done.returncode else ""


def test_context_beyond_the_model_is_rejected_as_by_the_server(model):
    own = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    allowed = ("--set", f"model.max_context_tokens={own}")
    assert refusal_of_the_server(model, *allowed) == ""
    assert inspect_json(model, *allowed)["problems"] == []
    beyond = ("--set", f"model.max_context_tokens={own + 1}")
    text = f"model.max_context_tokens is {own + 1}, the model's own context is {own}"
    assert text in refusal_of_the_server(model, *beyond)
    assert inspect_json(model, *beyond, code=1)["problems"] == [text]
    report = inspect_json(model, "--device-memory", "2GiB", *beyond, code=1)
    assert report["problems"] == [text]


def test_context_beyond_the_pool_is_rejected(model):
    page = inspect_json(model)["plan"]
    tokens = 4 * page["page_tokens"]
    sets = ["--set", f"kv_cache.capacity_bytes={5 * page['page_bytes']}", "--set"]
    assert inspect_json(model, *sets, f"model.max_context_tokens={tokens}")["problems"] == []
    (problem,) = inspect_json(model, *sets, f"model.max_context_tokens={tokens + 1}", code=1)["problems"]
    assert f"model.max_context_tokens is {tokens + 1}, the KV pool holds {tokens} tokens" in problem


def test_activations_that_the_instruction_set_lacks_are_rejected(model):
    sets = ("--set", "device.cpu.isa=scalar", "--set", "device.cpu.activations=bf16")
    text = "device.cpu.activations: bf16 is not available with instruction set scalar"
    assert text in refusal_of_the_server(model, *sets)
    (problem,) = inspect_json(model, *sets, code=1)["problems"]
    assert text in problem


def test_context_length_selects_the_longrope_table():
    def rope(*arguments):
        (line,) = (line for line in inspect_json(folder, *arguments)["spec"] if line.startswith("rope 0: "))
        return line

    folder = MODELS / "phi3-longrope-bf16"
    original = json.loads((folder / "config.json").read_text())["original_max_position_embeddings"]
    short = rope("--set", f"model.max_context_tokens={original}")
    assert rope() == rope("--set", f"model.max_context_tokens={original + 1}") != short


def test_experts_and_router_have_their_groups():
    groups = inspect_json(MODELS / "qwen3-moe-bf16")["groups"]
    assert groups["experts"]["parameters"] == 2 * 8 * 3 * 64 * 32
    assert groups["router"] == {"tensors": 2, "parameters": 2 * 8 * 64, "stored_bytes": 2 * 2 * 8 * 64}
    assert "other" not in groups and "mlp" not in groups


def test_quantized_weight_bytes_cover_the_whole_file():
    folder = MODELS / "gpt-oss-mxfp4"
    data = (folder / "model.safetensors").read_bytes()
    report = inspect_json(folder)
    assert report["stored_bytes"] == len(data) - 8 - int.from_bytes(data[:8], "little")
    assert sum(group["stored_bytes"] for group in report["groups"].values()) == report["stored_bytes"]
    assert set(report["stored_bytes_by_type"]) == {"BF16", "mxfp4"}


@pytest.mark.parametrize("name", ["llama-q4_k_m", "llama-spm"])
def test_gguf(name):
    (path,) = (TESTDATA / "gguf" / "models" / name).glob("*.gguf")
    report = inspect_json(path)
    assert report["tokenizer"]["kind"] in ("gpt2 (GGUF)", "llama (GGUF)")
    assert "keys" not in report and "other" not in report["groups"]
    assert report["problems"] == []


@pytest.mark.parametrize("name", ["granite-hybrid-bf16", "nemotron-h-bf16", "lfm2-bf16", "kimi-linear-bf16"])
def test_hybrid_models(name):
    """All keys are read or ignored, also those of a config.json with a bare Infinity."""
    report = inspect_json(MODELS / name)
    assert report["keys"]["ignored"] and report["keys"]["unknown"] == report["keys"]["refused"] == []
    assert report["problems"] == [] and report["warnings"] == []
    assert ("experts" in report["groups"]) == (name != "lfm2-bf16") and "other" not in report["groups"]
    assert report["plan"]["state_slot_bytes"] > 0


def test_every_rejected_key_is_named(model):
    edit(model, alibi=True, clip_qkv=8.0, sliding_window=None, colour="red")
    report = inspect_json(model, code=1)
    assert report["keys"]["refused"] == ["alibi", "clip_qkv"]
    assert report["keys"]["unknown"] == ["colour"]
    assert "sliding_window" in report["keys"]["ignored"]
    assert any("alibi true is not supported" in problem for problem in report["problems"])
    assert report["tokenizer"]["kind"] == "BPE (tokenizer.json)", "the rest is reported nevertheless"
    text = inspect(model, code=1)
    assert re.search(r"refused: alibi = true, clip_qkv = 8\.0$", text, re.M)
    assert re.search(r"^problem +.*alibi true is not supported", text, re.M)


def test_layers_are_described_in_words():
    text = inspect(MODELS / "gpt-oss-mxfp4")
    assert "window of 32 tokens, attention sinks, biases of Q, K, V, output; mixture of 4 experts, 2 per token, " in text
    assert re.search(r"layers +a page holds 1 layer; 1 layer keeps all tokens, 2 layers keep the last 32 tokens$", text, re.M)
    assert "latent attention (MLA) with " in inspect(MODELS / "deepseek-v3-bf16")


def test_unknown_architecture(model):
    edit(model, architectures=["FooForCausalLM"], model_type="foo")
    report = inspect_json(model, code=1)
    assert any("FooForCausalLM" in problem for problem in report["problems"])
    assert "spec" not in report and "keys" not in report


def test_broken_parts_are_listed_as_problems(model):
    (model / "model.safetensors").write_bytes(b"\0" * 100)
    (model / "tokenizer.json").unlink()
    problems = inspect_json(model, code=1)["problems"]
    assert any("model.safetensors" in problem for problem in problems)
    assert any("tokenizer.json does not exist" in problem for problem in problems)
    assert inspect_json(model / "nowhere", code=1)["problems"]


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("tekken-file", "byte ranks (tekken.json)"),
        ("tiktoken-cl100k", "byte ranks (tokenizer.tiktoken)"),
        ("llama2-sentencepiece", "SentencePiece BPE (tokenizer.model)"),
        ("unigram-nmt-nfkc", "Unigram (tokenizer.json)"),
    ],
)
def test_tokenizer_kind_is_reported(model, folder, kind):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    for path in (TOKENIZERS / folder).iterdir():
        if not path.name.endswith(".jsonl"):
            shutil.copyfile(path, model / path.name)
    assert inspect_json(model)["tokenizer"]["kind"] == kind


def test_templates(model):
    assert inspect_json(model)["templates"] == {"origin": "tokenizer_config.json", "names": ["default"]}
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    assert inspect_json(model)["templates"]["names"] == []
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert inspect_json(model)["templates"] == {"origin": "chat_template.jinja", "names": ["default"]}
    (model / "chat_template.jinja").write_text("{% nonsense %}")
    assert "nonsense" in inspect_json(model)["templates"]["problem"]


def test_wrong_usage_is_rejected():
    done = subprocess.run([str(QUIRE), "inspect"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "model is required" in done.stderr + done.stdout
