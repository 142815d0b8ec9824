#!/usr/bin/env python3
"""Records the error that bf16 activations cause in each model fixture, computed in float64.

    python3 -m venv .venv && .venv/bin/pip install -r tests/testdata/models/requirements.txt gguf==0.19.0
    .venv/bin/python tests/testdata/bf16_activations.py [--check] TESTDATA [NAME ...]

TESTDATA is the complete folder of test data, for example build/ci/tests/testdata. The script writes
bf16_activations.json beside it, or updates only the entries NAME ("models/qwen2-bf16"). With --check it writes nothing
and exits 1 if a figure differs from the file.

Each model runs twice in float64, exactly and with bf16 activations. The second run rounds both operands of every matrix
product that quire computes with kernels::Linear to bf16 (nearest even): projections, experts, routers and the output
matrix. Embeddings, norms, rope, attention scores and activation functions are not rounded. In latent attention quire
never expands the latents. It multiplies the queries without rope and the attended latents by the halves of kv_b_proj,
so the script rounds these two and not the latents.

A third run computes attention over bf16 pages as kernels/attention/bf16_attention.h defines it: stored keys, values,
latents and index keys are rounded, and so are queries and weights. Convolutions, recurrent states and index scores are
never rounded.

| field | value |
|---|---|
| relative_error | norm of the change of all recorded logits, divided by the norm of the exact logits |
| pages_relative_error | the same with bf16 pages, queries and attention weights |
| max_abs | largest change of a recorded logit |
| changed_tokens | number of greedy tokens that are no longer the best token after their recorded prefix |
| changed_routes | number of router decisions that select other experts, over prompts and greedy tokens |
| routes | number of router decisions |

Recorded logits are those of reference.safetensors, which tests/parity compares in the same way. changed_tokens is
absent if the fixture has no greedy tokens, and the router fields are absent if the model has no experts. The script
fails if the exact logits or tokens differ from the recorded ones.
"""

import argparse
import contextlib
import json
import math
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "models"), str(HERE / "formats")]

import gguf
import make_models
import numpy as np
import torch
from fixture_compute import distance, float32_means_float64, logits_of, ready, rounded
from safetensors.torch import load_file
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, Mxfp4Config
from transformers.masking_utils import eager_mask

TABLE = HERE / "bf16_activations.json"
# Largest accepted relative error of the recorded logits, which are float32.
MAX_FROM_RECORD = 5e-6
# Largest relative difference of a figure that --check accepts.
MAX_FIGURE = 0.01
MATRIX_PRODUCTS = (torch.bmm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().to(tensor.dtype)


# ----------------------------------------------------------------------------------------------------------------------
# Rounding


class Bf16Activations(TorchFunctionMode):
    """Rounds both operands of every product with a weight matrix to bf16.

    The experts of GPT-OSS and Llama 4 use `@` and `bmm` with a weight matrix or all of them. All other second operands
    of `@` have more than two dimensions, and no other is a parameter.
    """

    def __init__(self, exact_inputs: set[int]):
        super().__init__()
        self.exact_inputs = exact_inputs  # ids of weights whose input is not rounded

    def __torch_function__(self, function, types, args=(), kwargs=None):
        is_expert = function in MATRIX_PRODUCTS and (args[1].dim() == 2 or isinstance(args[1], torch.nn.Parameter))
        if function is torch.nn.functional.linear or is_expert:
            x, weight, *rest = args
            args = (x if id(weight) in self.exact_inputs else bf16(x), bf16(weight), *rest)
        return function(*args, **(kwargs or {}))


def selected_only(mask, indices):
    """Sparse attention gives the keys that an indexer selected for each query."""
    if indices is None:
        return mask
    others = torch.ones_like(mask, dtype=torch.bool).scatter(-1, indices.long().unsqueeze(1), False)
    return mask.masked_fill(others, torch.finfo(mask.dtype).min)


def latent_attention(module, query, key, value, mask, scaling, indices=None, **_):
    """Computes attention over module.latents with the products that quire rounds. Does not use `value`."""
    nope, heads = module.qk_nope_head_dim, query.shape[1]
    query = torch.cat((bf16(query[..., :nope]), query[..., nope:]), dim=-1)
    mask = selected_only(mask, indices)
    probabilities = torch.softmax(query @ key.transpose(2, 3) * scaling + mask, dim=-1)
    attended = bf16(probabilities @ module.latents)
    to_values = bf16(module.kv_b_proj.weight).view(heads, -1, attended.shape[-1])[:, nope:]
    return (attended @ to_values.transpose(1, 2)).transpose(1, 2).contiguous(), probabilities


def page_weights(query, key, mask, scaling, softcap=None, sinks=None):
    """Returns the attention weights of rounded queries over rounded keys. A fixture is shorter than a span."""
    scores = bf16(query * (scaling / math.log(2))) @ bf16(key).transpose(-2, -1) * math.log(2)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    largest = scores.amax(dim=-1, keepdim=True)
    weights = bf16(torch.exp(scores - largest))
    total = weights.sum(dim=-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.view(-1, 1, 1) - largest)
    return weights / total


def page_attention(module, query, key, value, mask, scaling, softcap=None, s_aux=None, **_):
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
    weights = page_weights(query, key, mask, scaling, softcap, s_aux)
    return (weights @ bf16(value)).transpose(1, 2).contiguous(), weights


def latent_page_attention(module, query, key, value, mask, scaling, indices=None, **_):
    """latent_attention over bf16 pages, which have the latents and the rotated part of the keys."""
    nope, heads = module.qk_nope_head_dim, query.shape[1]
    rank = module.latents.shape[-1]
    latents = module.latents.view(query.shape[0], 1, -1, rank).expand(-1, heads, -1, -1)
    projections = bf16(module.kv_b_proj.weight).view(heads, -1, rank)
    query = torch.cat((bf16(query[..., :nope]) @ projections[:, :nope], query[..., nope:]), dim=-1)
    weights = page_weights(query, torch.cat((latents, key[..., nope:]), dim=-1), selected_only(mask, indices), scaling)
    attended = bf16(weights @ bf16(latents))
    return (attended @ projections[:, nope:].transpose(1, 2)).transpose(1, 2).contiguous(), weights


for name, function in (
    ("bf16_latents", latent_attention), ("bf16_pages", page_attention), ("bf16_latent_pages", latent_page_attention),
):  # fmt: skip
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, eager_mask)


class IndexPages:
    """Stands for the cache of an indexer."""

    def update_indexer(self, keys, layer):
        return bf16(keys)


def with_pages(indexer, inputs, named):
    return inputs, {**named, "past_key_values": IndexPages()}


@contextlib.contextmanager
def bf16_activations(model, pages: bool):
    """Inside the context the model uses bf16 activations and, with `pages`, attention over bf16 pages."""
    latent = [module for module in model.modules() if hasattr(module, "kv_b_proj")]

    def note_latents(attention):
        def note(module, inputs):
            attention.latents = inputs[0]

        return note

    handles = [attention.kv_b_proj.register_forward_pre_hook(note_latents(attention)) for attention in latent]
    indexers = [module.indexer for module in latent if getattr(module, "indexer", None) is not None]
    if pages:
        handles += [indexer.register_forward_pre_hook(with_pages, with_kwargs=True) for indexer in indexers]
    if latent:
        model.config._attn_implementation = "bf16_latent_pages" if pages else "bf16_latents"
    elif pages:
        model.config._attn_implementation = "bf16_pages"
    with Bf16Activations({id(attention.kv_b_proj.weight) for attention in latent}):
        yield
    model.config._attn_implementation = "eager"
    for handle in handles:
        handle.remove()


class Routes:
    """Collects the experts that every router selects."""

    def __init__(self, model):
        self.chosen = []
        routers = [module for module in model.modules() if type(module).__name__.lower().endswith("router")]
        for router in routers:
            router.register_forward_hook(self.note)

    def note(self, module, inputs, output):
        experts = [part for part in output if not part.is_floating_point()]
        # Llama 4 gives scores, which are 0 for other experts.
        (chosen,) = experts or [output[0].topk(module.top_k, dim=-1).indices]
        self.chosen.append(chosen.sort(dim=-1).values)

    def take(self) -> list[torch.Tensor]:
        chosen, self.chosen = self.chosen, []
        return chosen


# ----------------------------------------------------------------------------------------------------------------------
# Models


def read_model(folder: Path):
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    if "quantization_config" in read_json(folder / "config.json"):
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    return ready(AutoModelForCausalLM.from_pretrained(folder, **options))


def new_llama(config: dict, tensors: dict):
    parsed = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or missing != ["lm_head.weight"] * parsed.tie_word_embeddings:
        raise RuntimeError(f"missing: {missing}, unexpected: {unexpected}")
    return ready(model)


def published_name(name: str) -> str:
    """Returns the Hugging Face name of a Llama tensor of a GGUF file."""
    for old, new in (
        ("attn_output", "self_attn.o_proj"), ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"), ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"), ("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
        ("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output.", "lm_head."),
        ("blk.", "model.layers."),
    ):  # fmt: skip
        name = name.replace(old, new)
    return name


def gguf_tensors(file: Path, config: dict) -> dict:
    """Returns the dequantized weights of a GGUF Llama, with the rows of q and k in the order of Hugging Face."""
    tensors = {}
    for tensor in gguf.GGUFReader(file).tensors:
        if tensor.name == "rope_freqs.weight":
            continue  # The configuration has the same information.
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        for kind, key in (("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")):
            if kind in tensor.name:
                pairs = values.reshape(config[key], -1, 2, *values.shape[1:])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        tensors[published_name(tensor.name)] = torch.from_numpy(values)
    return tensors


# ----------------------------------------------------------------------------------------------------------------------
# Fixtures


def best_tokens(model, prompts: list[dict]) -> torch.Tensor:
    """Returns the best token after every recorded prefix of the greedy tokens."""
    best = []
    for prompt in prompts:
        logits = logits_of(model, prompt["token_ids"] + prompt["greedy_token_ids"])
        best.append(logits[len(prompt["token_ids"]) - 1 : -1].argmax(-1))
    return torch.cat(best)


def run(model, prompts: list[dict], routes: Routes) -> tuple:
    """Returns the logits that a record holds, the best tokens, and the experts that routers select."""
    logits = [logits_of(model, prompt["token_ids"]) for prompt in prompts]
    kept = [rows if prompt.get("logits_positions") == "all" else rows[-1:] for rows, prompt in zip(logits, prompts)]
    if "greedy_token_ids" not in prompts[0]:
        return kept, None, routes.take()
    routes.take()  # The longer sequences have the same tokens.
    return kept, best_tokens(model, prompts), routes.take()


def entry_of(model, prompts: list[dict], record: list[torch.Tensor]) -> dict:
    """Returns the table entry of a model. `record` has the recorded logits of each prompt."""
    model = model.double()
    routes = Routes(model)
    with float32_means_float64():
        if getattr(model.model, "rotary_emb", None) is not None:
            model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        exact, best, chosen = run(model, prompts, routes)
        with bf16_activations(model, pages=False):
            got, got_best, got_chosen = run(model, prompts, routes)
        with bf16_activations(model, pages=True):
            with_pages, *_ = run(model, prompts, routes)
    error, _ = distance(exact, record)
    if error > MAX_FROM_RECORD:
        raise RuntimeError(f"exact logits are {error:.1e} from the recorded ones")
    relative, largest = distance(got, exact)
    entry = {"relative_error": rounded(relative, 4), "max_abs": rounded(largest, 4)}
    entry["pages_relative_error"] = rounded(distance(with_pages, exact)[0], 4)
    if best is not None:
        if best.tolist() != [token for prompt in prompts for token in prompt["greedy_token_ids"]]:
            raise RuntimeError("exact greedy tokens are not those recorded")
        entry["changed_tokens"] = int((got_best != best).sum())
    if chosen:
        entry["changed_routes"] = sum(int((a != b).any(-1).sum()) for a, b in zip(got_chosen, chosen))
        entry["routes"] = sum(len(part) for part in chosen)
    return entry


def folder_entry(folder: Path) -> dict:
    """Returns the entry of a folder with a reference.json."""
    reference = read_json(folder / "reference.json")
    record = load_file(folder / "reference.safetensors")
    if (folder / "model.gguf").exists():
        model = new_llama(reference["config"], gguf_tensors(folder / "model.gguf", reference["config"]))
    else:
        model = read_model(folder)
    prompts = reference["prompts"]
    return entry_of(model, prompts, [record[f"{prompt['id']}.logits"] for prompt in prompts])


def format_entry(testdata: Path, name: str) -> dict:
    """Returns the entry of a checkpoint of formats/models."""
    folder = testdata / "formats/models"
    config = read_json(folder / "config.json")
    tensors = make_models.read_safetensors(folder / "base.safetensors")
    source = make_models.read_safetensors(testdata / "models/llama-gqa-tied-bf16/model.safetensors")
    _, convert = make_models.formats()[name]
    for matrix in make_models.MATRICES:
        key = f"model.layers.0.{matrix}.weight"
        _, tensors[key] = convert(source[key])
    tensors = {key: torch.from_numpy(np.array(values, dtype=np.float32)) for key, values in tensors.items()}
    prompts = [{"token_ids": tokens} for tokens in read_json(folder / "index.json")["prompts"]]
    record = load_file(folder / "reference.safetensors")[f"{name}.logits"]
    return entry_of(new_llama(config, tensors), prompts, list(record.unsqueeze(1)))


def fixtures(testdata: Path) -> list[str]:
    folders = [file.parent for kind in ("models", "gguf/models") for file in testdata.glob(f"{kind}/*/reference.json")]
    names = [folder.relative_to(testdata).as_posix() for folder in folders]
    return sorted(names + [f"formats/models/{name}" for name in make_models.formats()])


def differs(got: dict, want: dict) -> bool:
    return set(got) != set(want) or any(abs(got[key] - want[key]) > MAX_FIGURE * want[key] for key in want)


def write_table(table: dict) -> None:
    lines = [f" {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("testdata", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    testdata = arguments.testdata.resolve()
    every = fixtures(testdata)
    if unknown := set(arguments.names) - set(every):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(every)}")
    known = read_json(TABLE) if arguments.check or arguments.names else {}
    failed = False
    table = {name: known[name] for name in every if name in known}
    for name in arguments.names or every:
        is_format = name.startswith("formats/")
        entry = format_entry(testdata, Path(name).name) if is_format else folder_entry(testdata / name)
        is_different = arguments.check and differs(entry, known.get(name, {}))
        failed = failed or is_different
        print(f"{name}: {entry}" + (f" DIFFERENT: {known.get(name)}" if is_different else ""), flush=True)
        table[name] = entry
    if not arguments.check:
        write_table(table)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
