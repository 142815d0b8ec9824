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

# Standard deviations: of a matrix its gain / sqrt(inputs), of `embed`, `bias` and `correction` the
# gain itself; the bounds of a norm's uniform weights. `after` and `final` are norms where they
# differ from the others.
GAINS = {
    "embed": 1.0,
    "head": 5.0,
    "q": 1.4,
    "attention": 1.6,
    "mlp": 1.6,
    "router": 2.0,
    "bias": 0.4,
    "correction": 0.2,
    "norm": (0.5, 1.5),
    "score": 2.0,
}
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
    "gpt-oss-bf16": {"router": 1.5},
    "granite-bf16": {"embed": 0.25, "attention": 3.0, "mlp": 3.0},
    "qwen2-bf16": {"attention": 2.2, "mlp": 2.2, "bias": 0.5},
    "qwen3-embed-last-bf16": {"attention": 2.0, "mlp": 2.0},
    "qwen3-hd128-bf16": {"attention": 2.5, "mlp": 2.5},
    "qwen3-rerank1-bf16": {"attention": 2.0, "mlp": 2.0},
    "qwen3-rerank-yesno-bf16": {"attention": 2.0, "mlp": 2.0},
}
EXPERT = re.compile(
    r"(.*)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight"
)


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


def parameters(shapes: dict) -> dict:
    """The parameters that transformers has for the tensors of a file, with their shapes: it keeps
    all experts of a layer in one, and calls a layer's experts and router `mlp`."""
    found, experts = {}, {}
    for name, shape in shapes.items():
        expert = EXPERT.fullmatch(name)
        if expert:
            kind = "down_proj" if expert[3] in ("down_proj", "w2") else "gate_up_proj"
            rows = shape[0] if kind == "down_proj" else 2 * shape[0]
            parameter = f"{expert[1]}.mlp.experts.{kind}"
            experts[parameter] = max(experts.get(parameter, 0), int(expert[2]) + 1)
            found[parameter] = [experts[parameter], rows, shape[1]]
        elif not name.endswith("inv_freq"):
            found[name.replace("block_sparse_moe", "mlp")] = shape
    return found


def draw(
    name: str, shape: list, gain: dict, fused_experts: bool, generator: Generator
) -> np.ndarray:
    if name.endswith("norm.weight"):
        kind = "final" if name == "model.norm.weight" else "after" if "post_" in name else "norm"
        low, high = gain.get(kind, gain["norm"])
        return generator.rand(shape) * F32(high - low) + F32(low)
    normal = generator.randn(shape)
    if name.endswith("sinks"):
        return normal + F32(0.5)
    if "embed_tokens" in name:
        return normal * F32(gain["embed"])
    if name.endswith("bias"):
        return normal * F32(gain["correction" if "correction" in name else "bias"])
    inputs = shape[1] if len(shape) == 2 or fused_experts else shape[2]
    if name == "lm_head.weight":
        kind = "head"
    elif re.search(r"mlp\.(gate|router)\.weight$", name):
        kind = "router"
    elif re.search(r"[qk]_proj|q_b_proj|qkv_proj", name):
        kind = "q"
    else:
        kind = "attention" if "self_attn" in name else "mlp"
    return normal * F32(gain[kind] / math.sqrt(inputs))


def whole_name(name: str) -> str:
    """Of a parameter as it is in a whole model; a bare decoder has no prefix."""
    return name if name.startswith(("model.", "lm_head.", "score.")) else "model." + name


def inverse_frequencies(config: dict) -> np.ndarray:
    size = config["hidden_size"] // config["num_attention_heads"]
    exponents = np.arange(0, size, 2).astype(F32) / F32(size)
    return F32(1) / (10000.0 ** exponents.astype(np.float64)).astype(F32)


def tensor_of(name: str, values: dict, config: dict) -> np.ndarray:
    expert = EXPERT.fullmatch(name)
    if not expert:
        if name.endswith("inv_freq"):
            return inverse_frequencies(config)
        return values[name.replace("block_sparse_moe", "mlp")]
    if expert[3] in ("down_proj", "w2"):
        return values[f"{expert[1]}.mlp.experts.down_proj"][int(expert[2])]
    gate, up = np.split(values[f"{expert[1]}.mlp.experts.gate_up_proj"][int(expert[2])], 2)
    return gate if expert[3] in ("gate_proj", "w1") else up


def of_checkpoint(folder: str, config: dict, reference: dict, tensors: dict) -> dict:
    """The bytes of each tensor; `tensors` are the entries of the heads of all files of a model."""
    shapes = parameters({whole_name(name): entry["shape"] for name, entry in tensors.items()})
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
    fused_experts = config["model_type"] == "gpt_oss"
    generator, values = Generator(reference["seed"]), {}
    # The head of a classifier has a generator of its own.
    score = shapes.pop("score.weight", None)
    if score is not None:
        scale = F32(gain["score"] / math.sqrt(score[1]))
        values["score.weight"] = Generator(reference["seed"] + 1).randn(score) * scale
    for name in sorted(shapes):
        values[name] = draw(name, shapes[name], gain, fused_experts, generator)
        if "embed_tokens" in name or name == "lm_head.weight":
            values[name][reference["tokenizer_vocab_size"] :] *= F32(0.05)
    if tied:
        values["lm_head.weight"] = values["model.embed_tokens.weight"]
    return {
        name: stored(tensor_of(whole_name(name), values, config), entry["dtype"])
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
