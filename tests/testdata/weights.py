"""The random weights of the model fixtures, each tensor in the bytes that its file stores.

models/*, embeddings/models/*: drawn with torch's generator, parameters in the order of their names in transformers, as
init_weights of models/fixture_compute.py does. gguf/models/*: drawn with numpy's, in the order in
which a token meets them.
"""

import math
import re

import numpy as np
from ggml_blocks import BLOCKS
from torch_random import F32, Generator

# Standard deviations: of a matrix its gain / sqrt(inputs), of `embed`, `per_layer`, `bias` and
# `correction` the gain itself; the bounds of uniform weights. `heads` (norms of q and k), `gated`,
# `after` and `final` are norms where they differ from the others. `step` are the projections that
# give a recurrent layer its decay and the size of its update.
GAINS = {
    "embed": 1.0,
    "per_layer": 0.25,
    "head": 5.0,
    "q": 1.4,
    "attention": 1.6,
    "mlp": 1.6,
    "router": 2.0,
    "convolution": 1.2,
    "step": 1.2,
    "bias": 0.4,
    "correction": 0.2,
    "norm": (0.5, 1.5),
    "A_log": (-3.5, 0.3),
    "dt_bias": (-3.0, 0.0),
    "D": (0.4, 1.6),
    "layer_scalar": (0.6, 1.2),
    "score": 2.0,
}
QWEN_NORMS = {"norm": (-0.5, 0.5), "heads": (0.4, 1.4), "gated": (0.5, 1.5)}
GEMMA4 = {"embed": 0.12, "heads": (0.35, 0.75), "after": (1.0, 3.0), "final": (3.0, 5.0)}
OTHER_GAINS = {
    "deepseek-v2-lite-bf16": {"router": 1.4},
    "gemma2-bf16": {
        "embed": 0.12,
        "q": 2.0,
        "norm": (-0.5, 0.5),
        "after": (1.0, 3.0),
        "final": (3.0, 5.0),
    },
    "gemma3-text-bf16": {
        "embed": 0.1,
        "norm": (-0.5, 0.5),
        "after": (1.0, 3.0),
        "final": (3.0, 5.0),
    },
    "gemma4-bf16": GEMMA4,
    "gemma4-moe-bf16": {**GEMMA4, "router": 16.0},
    "gpt-oss-bf16": {"router": 1.5},
    "granite-bf16": {"embed": 0.25, "attention": 3.0, "mlp": 3.0},
    "granite-hybrid-bf16": {"embed": 0.25, "attention": 2.4, "mlp": 2.4},
    "lfm2-bf16": {"attention": 2.2, "mlp": 2.2},
    "nemotron-h-bf16": {"attention": 1.3, "mlp": 1.3},
    "olmo3-bf16": {"heads": (0.9, 2.1)},
    "qwen2-bf16": {"attention": 2.2, "mlp": 2.2, "bias": 0.5},
    "qwen3-embed-last-bf16": {"attention": 2.0, "mlp": 2.0},
    "qwen3-hd128-bf16": {"attention": 2.5, "mlp": 2.5},
    "qwen3-next-bf16": QWEN_NORMS,
    "qwen3-rerank1-bf16": {"attention": 2.0, "mlp": 2.0},
    "qwen3-rerank-yesno-bf16": {"attention": 2.0, "mlp": 2.0},
    "qwen35-bf16": {**QWEN_NORMS, "attention": 2.4, "mlp": 2.0},
    "qwen35-moe-bf16": {**QWEN_NORMS, "attention": 2.4},
}
# Tensors of parts that the model leaves out, all of one value.
UNUSED = {
    "glm4-moe-bf16": (re.compile(r"model\.layers\.3\."), 0.5),
    "qwen35-moe-bf16": (re.compile(r"model\.visual\.|mtp\."), 0.25),
}
# Families whose parameters have other names in transformers than in published files.
MLP = (r"\.block_sparse_moe\.", ".mlp.")
RENAMED = {
    "granitemoehybrid": [
        (r"input_linear\.weight", "experts.gate_up_proj"),
        (r"(block_sparse_moe)\.output_linear\.weight", r"\1.experts.down_proj"),
        (r"router\.layer", "router"),
    ],
    "kimi_linear": [MLP, (r"\.(A_log|dt_bias|f_[ab]_proj)", r".forget_gate.\1")],
    "minimax_m2": [MLP],
    "mixtral": [MLP],
    "nemotron_h": [(r"^backbone\.", "model.")],
}
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
EMBEDDING = re.compile(r"embed_tokens|\.embeddings\.")
CONVOLUTION = re.compile(r"(.*\.)([qkv])_(conv1d\.weight)")


def stored(values: np.ndarray, dtype: str) -> bytes:
    values = np.ascontiguousarray(values, F32)
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    if dtype == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return BLOCKS[dtype](values)


# --------------------------------------------------------------------------------------------------
# models/*


def parameter_of(name: str, model_type: str) -> tuple:
    """Of a tensor in a file: the parameter that transformers has for it, the expert if the
    parameter has experts, which part of the rows the tensor is, and the number of parts."""
    for pattern, replacement in RENAMED.get(model_type, []):
        name = re.sub(pattern, replacement, name)
    if found := CONVOLUTION.fullmatch(name):
        return found[1] + found[3], None, "qkv".index(found[2]), 3
    if found := EXPERT.fullmatch(name):
        expert = int(found[2])
        if found[3] in ("down_proj", "w2"):
            return f"{found[1]}.down_proj", expert, 0, 1
        if model_type == "nemotron_h":  # has no gate
            return f"{found[1]}.up_proj", expert, 0, 1
        return f"{found[1]}.gate_up_proj", expert, int(found[3] in ("up_proj", "w3")), 2
    return name, None, 0, 1


def parameters(shapes: dict, model_type: str) -> dict:
    """The parameters that transformers has for the tensors of a file, with their shapes."""
    found, experts = {}, {}
    for name, shape in shapes.items():
        if name.endswith("inv_freq"):
            continue
        parameter, expert, _, parts = parameter_of(name, model_type)
        found[parameter] = [parts * shape[0], *shape[1:]]
        if expert is not None:
            experts[parameter] = max(experts.get(parameter, 0), expert + 1)
    return {
        name: [experts[name], *shape] if name in experts else shape for name, shape in found.items()
    }


def bounds_of(name: str, gain: dict) -> tuple | None:
    """Of a parameter whose weights are uniform."""
    last = name.rsplit(".", 1)[-1]
    if last in ("A_log", "dt_bias", "D", "layer_scalar"):
        return gain[last]
    if last in ("scale", "per_expert_scale"):
        return gain["norm"]
    if not re.search(r"norm\w*\.weight$", name):
        return None
    if name == "model.norm.weight":
        kind = "final"
    elif re.search(r"post_(attention|feedforward)_layernorm", name):
        kind = "after"
    elif "linear_attn" in name:
        kind = "gated"
    else:
        kind = "heads" if re.search(r"\.[qk]_norm\.", name) else "norm"
    return gain.get(kind, gain["norm"])


def kind_of_matrix(name: str) -> str:
    if name == "lm_head.weight":
        return "head"
    if re.search(r"(mlp|mixer)\.gate\.|router|weights_proj", name):
        return "router"
    if "conv1d" in name or ".conv.conv." in name:
        return "convolution"
    if re.search(r"in_proj_(a|b|ba)\.|self_attn\.b_proj", name):
        return "step"
    if re.search(r"[qk]_proj|q_b_proj|qkv_proj|\.wk\.|wq_b", name):
        return "q"
    return "attention" if "self_attn" in name else "mlp"


def draw(name: str, shape: list, gain: dict, transposed: bool, generator: Generator) -> np.ndarray:
    bounds = bounds_of(name, gain)
    if bounds:
        low, high = bounds
        return generator.rand(shape) * F32(high - low) + F32(low)
    normal = generator.randn(shape)
    if name.endswith("sinks"):
        return normal + F32(0.5)
    if EMBEDDING.search(name):
        return normal * F32(gain["per_layer" if "per_layer" in name else "embed"])
    if name.endswith("bias"):
        return normal * F32(gain["correction" if "correction" in name else "bias"])
    inputs = shape[-2] if transposed and len(shape) == 3 else shape[-1]
    return normal * F32(gain[kind_of_matrix(name)] / math.sqrt(inputs))


WHOLE = ("model.", "lm_head.", "score.", "backbone.")


def whole_name(name: str) -> str:
    """Of a parameter as it is in a whole model; a bare decoder has no prefix."""
    return name if name.startswith(WHOLE) else "model." + name


def inverse_frequencies(config: dict) -> np.ndarray:
    size = config["hidden_size"] // config["num_attention_heads"]
    exponents = np.arange(0, size, 2).astype(F32) / F32(size)
    return F32(1) / (10000.0 ** exponents.astype(np.float64)).astype(F32)


def tensor_of(name: str, values: dict, config: dict) -> np.ndarray:
    if name.endswith("inv_freq"):
        return inverse_frequencies(config)
    parameter, expert, part, parts = parameter_of(name, config["model_type"])
    value = values[parameter] if expert is None else values[parameter][expert]
    return np.split(value, parts)[part]


def of_checkpoint(folder: str, config: dict, reference: dict, tensors: dict) -> dict:
    """The bytes of each tensor; `tensors` are the entries of the heads of all files of a model."""
    model_type = config["model_type"]
    pattern, constant = UNUSED.get(folder, (None, 0.0))
    unused = {name for name in tensors if pattern and pattern.match(name)}
    shapes = parameters(
        {whole_name(name): tensors[name]["shape"] for name in tensors if name not in unused},
        model_type,
    )
    is_bare = config["architectures"][0].endswith("Model")
    has_no_head = "lm_head.weight" not in shapes and not is_bare
    tied = has_no_head or config.get("tie_word_embeddings", False)
    if tied:
        shapes.pop("lm_head.weight", None)
    gain = {
        **GAINS,
        **({"embed": 4.2 / math.sqrt(config["hidden_size"])} if tied else {}),
        **OTHER_GAINS.get(folder, {}),
    }
    transposed = model_type in ("gpt_oss", "llama4_text")
    generator, values = Generator(reference["seed"]), {}
    # The head of a classifier has a generator of its own.
    score = shapes.pop("score.weight", None)
    if score is not None:
        scale = F32(gain["score"] / math.sqrt(score[1]))
        values["score.weight"] = Generator(reference["seed"] + 1).randn(score) * scale
    for name in sorted(shapes):
        values[name] = draw(name, shapes[name], gain, transposed, generator)
        if EMBEDDING.search(name) or name == "lm_head.weight":
            values[name][reference["tokenizer_vocab_size"] :] *= F32(0.05)
        # The last rows of a projection into Mamba-2 give the step of each head.
        heads = shapes.get(name.replace("in_proj.weight", "A_log"))
        if heads and name.endswith("in_proj.weight"):
            values[name][-heads[0] :] *= F32(0.5)
    if tied:
        values["lm_head.weight"] = values["model.embed_tokens.weight"]
    return {
        name: stored(
            (
                np.full(entry["shape"], constant)
                if name in unused
                else tensor_of(whole_name(name), values, config)
            ),
            entry["dtype"],
        )
        for name, entry in tensors.items()
    }


# --------------------------------------------------------------------------------------------------
# gguf/models/*


MATRICES = [
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
]


def place(tensor: dict) -> tuple:
    """Where a token meets it; the bias of a matrix follows the matrix."""
    part, *rest = tensor["name"].split(".")
    if part == "blk":
        return 1, int(rest[0]), MATRICES.index(rest[1]), rest[2] == "bias"
    return (["token_embd", "blk", "output_norm", "output"].index(part),)


def neighbouring_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q and k as GGUF has them: what rotates together of the halves of a head is beside
    each other."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def of_gguf(reference: dict) -> dict:
    """The bytes of each tensor but rope_freqs.weight, which is not random."""
    model, generator, result = (
        reference["hyper_parameters"],
        np.random.default_rng(reference["seed"]),
        {},
    )
    tensors = [tensor for tensor in reference["tensors"] if tensor["name"] != "rope_freqs.weight"]
    for tensor in sorted(tensors, key=place):
        name, shape = tensor["name"], tensor["shape"]
        normal = generator.standard_normal(shape)
        if "norm" in name:
            values = 1 + 0.2 * normal
        elif name.endswith("bias"):
            values = 0.3 * normal
        elif name == "token_embd.weight":
            values = normal * (0.25 if model["tied_output"] else 1.0)
        else:
            values = normal * ((2.5 if name == "output.weight" else 1.6) / math.sqrt(shape[1]))
        values = values.astype(F32)
        if "attn_q" in name or "attn_k" in name:
            values = neighbouring_pairs(
                values, model["head_count" if "attn_q" in name else "head_count_kv"]
            )
        result[name] = stored(values, tensor["type"])
    return result
