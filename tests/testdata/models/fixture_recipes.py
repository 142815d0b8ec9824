"""What make_fixture.py makes, and how each special feature of a fixture is switched off.

A recipe is the configuration of a small model of one family. A switch changes one feature alone, in a draft of the
folder (its config.json and tensors) or in the loaded model; how far the logits move then is what feature_checks in
reference.json records, and what tests/parity/feature_off_test.cc repeats.
"""

import copy
import dataclasses
import math
import re
from collections.abc import Callable

import torch

BOS, EOS, PAD = 0, 1, 2


class Draft:
    """A copy of a folder's contents that a switch may change, and what it wants to change in the loaded model."""

    def __init__(self, config: dict, tensors: dict):
        self.config, self.tensors, self.patches = copy.deepcopy(config), dict(tensors), []


Switch = Callable[[Draft], None]


@dataclasses.dataclass
class Recipe:
    family: str
    features: list[str]
    config: dict
    source: str  # the fixture whose tokenizer and prompts it takes
    switches: dict[str, Switch]
    gains: dict = dataclasses.field(default_factory=dict)  # that differ from those of random weights by default


# ----------------------------------------------------------------------------------------------------------------------
# Switches


def set_config(**values) -> Switch:
    return lambda draft: draft.config.update(values)


def set_rope(**values) -> Switch:
    return lambda draft: draft.config["rope_scaling"].update(values)


def copy_rope(source: str, target: str) -> Switch:
    return lambda draft: draft.config["rope_scaling"].update({target: draft.config["rope_scaling"][source]})


def zeros(pattern: str) -> Switch:
    def change(draft):
        names = [name for name in draft.tensors if re.search(pattern, name)]
        assert names, pattern
        for name in names:
            draft.tensors[name] = torch.zeros_like(draft.tensors[name])

    return change


def patch(function: Callable) -> Switch:
    return lambda draft: draft.patches.append(function)


def patch_attention(function: Callable) -> Switch:
    return patch(lambda model: [function(layer.self_attn) for layer in model.model.layers])


def layer_types(kind: str) -> Switch:
    return lambda draft: draft.config.update(layer_types=[kind] * draft.config["num_hidden_layers"])


def shuffle_head(draft: Draft) -> None:
    embedding = draft.tensors["model.embed_tokens.weight"]
    order = torch.randperm(embedding.shape[0], generator=torch.Generator().manual_seed(1))
    draft.tensors["lm_head.weight"] = embedding[order].clone()
    draft.config["tie_word_embeddings"] = False


def scale_by_hidden_size(attention) -> None:
    attention.scaling = (attention.config.hidden_size / attention.config.num_attention_heads) ** -0.5


def rotate_last_part(attention) -> None:
    """As if the last columns of every head rotated and not the first: rows of the fused projection change places."""
    config, size = attention.config, attention.head_dim
    part = int(size * config.rope_parameters["partial_rotary_factor"])
    heads = config.num_attention_heads + config.num_key_value_heads
    rows = attention.qkv_proj.weight.data[: heads * size].view(heads, size, -1)
    rows.copy_(torch.cat([rows[:, size - part :], rows[:, : size - part]], 1))


def rotate_halves(attention) -> None:
    """Pairs column i with i + half, as Llama does, and not with its neighbour."""
    half = attention.qk_rope_head_dim // 2
    order = torch.tensor([j // 2 + j % 2 * half for j in range(2 * half)])
    q = attention.q_proj.weight.data.view(attention.num_heads, attention.qk_head_dim, -1)
    q[:, attention.qk_nope_head_dim :] = q[:, attention.qk_nope_head_dim + order]
    k = attention.kv_a_proj_with_mqa.weight.data
    k[attention.kv_lora_rank :] = k[attention.kv_lora_rank + order]


def drop_mscale(attention) -> None:
    attention.scaling = attention.qk_head_dim**-0.5


def drop_latent_norm(attention) -> None:
    attention.kv_a_layernorm = torch.nn.Identity()


def drop_latent_norms(attention) -> None:
    attention.q_a_layernorm = torch.nn.Identity()
    attention.kv_a_layernorm = torch.nn.Identity()


def patch_routers(function: Callable) -> Switch:
    return patch(lambda model: [function(layer.mlp.gate) for layer in model.model.layers if hasattr(layer.mlp, "gate")])


def keep_all_groups(router) -> None:
    router.topk_group = router.num_group


def drop_correction(router) -> None:
    router.e_score_correction_bias.zero_()


def divide_by_sum(model) -> None:
    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(
                lambda module, inputs, output: (output[0], output[1] / output[1].sum(-1, keepdim=True), output[2])
            )


WINDOW = {"sliding window": set_config(sliding_window=None), "window one token longer": set_config(sliding_window=33)}
LONGROPE = {
    "long factors (short ones everywhere)": copy_rope("short_factor", "long_factor"),
    "short factors (long ones everywhere)": copy_rope("long_factor", "short_factor"),
    "derived attention factor (set to 1)": set_rope(attention_factor=1.0),
    "which part is rotated (last instead of first)": patch_attention(rotate_last_part),
}
LATENT = {
    "rope scaling": set_config(rope_scaling=None),
    "mscale in the attention scale": patch_attention(drop_mscale),
    "neighbouring pairs in rope (halves instead)": patch_attention(rotate_halves),
    "norm of the latent (left out)": patch_attention(drop_latent_norm),
    "shared experts": zeros(r"shared_experts\.down_proj"),
}

# Of DeepSeek-V3 and what followed it.
SIGMOID_LATENT = {
    "neighbouring pairs in rope (halves instead)": set_config(rope_interleave=False),
    "norms of the latents (left out)": patch_attention(drop_latent_norms),
    "correction bias": patch_routers(drop_correction),
    "renormalised expert weights": set_config(norm_topk_prob=False),
    "routed_scaling_factor": set_config(routed_scaling_factor=1.0),
    "shared expert": zeros(r"shared_experts\.down_proj"),
}

# Of fixtures that came from elsewhere: with them `make_fixture.py check` proves the method of this script.
SWITCHES: dict[str, dict[str, Switch]] = {
    "mistral-window-bf16": WINDOW,
    "phi3-longrope-bf16": LONGROPE,
    "deepseek-v2-bf16": {
        **LATENT,
        "attention factor of cos and sin (set to 1)": set_rope(attention_factor=1.0),
        "routed_scaling_factor": set_config(routed_scaling_factor=1.0),
    },
    "deepseek-v3-bf16": {
        **SIGMOID_LATENT,
        "rope scaling": set_config(rope_scaling=None),
        "mscale in the attention scale": patch_attention(drop_mscale),
        "choice of groups": patch_routers(keep_all_groups),
    },
}


# ----------------------------------------------------------------------------------------------------------------------
# Recipes


def config_of(architecture: str, model_type: str, **values) -> dict:
    """config.json in the form of published checkpoints of 2024."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **values,
    }


def ministral() -> Recipe:
    types = ["full_attention", *["sliding_attention"] * 3, "full_attention"]
    config = config_of(
        "MinistralForCausalLM", "ministral", head_dim=32, hidden_size=64, intermediate_size=96,
        layer_types=types, max_position_embeddings=512, num_attention_heads=4, num_hidden_layers=len(types),
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=100000000.0, sliding_window=24,
        tie_word_embeddings=False, transformers_version="4.57.0", vocab_size=384,
    )  # fmt: skip
    return Recipe(
        "mistral",
        ["window 24 in the layers that layer_types says, full attention in the others",
         "head size given apart", "grouped queries 2:1"],
        config,
        "mistral-window-bf16",
        {
            "windows (full attention everywhere)": layer_types("full_attention"),
            "full layers (windows everywhere)": layer_types("sliding_attention"),
            "window one token longer": set_config(sliding_window=25),
            "rope_theta (10000)": set_config(rope_theta=10000.0),
            "head_dim in the attention scale (hidden/heads used instead)": patch_attention(scale_by_hidden_size),
        },
    )  # fmt: skip


def phi4_mini() -> Recipe:
    columns = 12  # half of those that rotate
    rope = {
        "long_factor": [round(16 ** (i / (columns - 1)), 4) for i in range(columns)],
        "short_factor": [1.0] * columns,
        "type": "longrope",
    }
    config = config_of(
        "Phi3ForCausalLM", "phi3", attention_bias=False, embd_pdrop=0.0, full_attn_mod=1, hidden_size=96,
        intermediate_size=128, interpolate_factor=1, lm_head_bias=False, max_position_embeddings=1120,
        mlp_bias=False, num_attention_heads=3, num_hidden_layers=3, num_key_value_heads=1,
        original_max_position_embeddings=140, pad_token_id=PAD, partial_rotary_factor=0.75, resid_pdrop=0.0,
        rms_norm_eps=1e-5, rope_scaling=rope, rope_theta=10000.0, sliding_window=262144, tie_word_embeddings=True,
        transformers_version="4.45.0", vocab_size=384,
    )  # fmt: skip
    return Recipe(
        "phi3",
        ["rope longrope: short factors, all 1, up to 140 tokens, long ones above", "partial rotary factor 0.75",
         "grouped queries 3:1", "tied embeddings", "a window beyond every context"],
        config,
        "phi3-longrope-bf16",
        {**LONGROPE, "tied output matrix (replaced by a shuffled copy)": shuffle_head},
    )  # fmt: skip


def deepseek_v2_lite() -> Recipe:
    factor, mscale = 40.0, 0.707
    rope = {
        "beta_fast": 32, "beta_slow": 1, "factor": factor, "mscale": mscale, "mscale_all_dim": mscale,
        "original_max_position_embeddings": 64, "type": "yarn",
    }  # fmt: skip
    config = config_of(
        "DeepseekV2ForCausalLM", "deepseek_v2", attention_bias=False, aux_loss_alpha=0.001, first_k_dense_replace=1,
        hidden_size=64, intermediate_size=176, kv_lora_rank=64, max_position_embeddings=2560,
        moe_intermediate_size=24, moe_layer_freq=1, n_group=1, n_routed_experts=16, n_shared_experts=2,
        norm_topk_prob=False, num_attention_heads=4, num_experts_per_tok=4, num_hidden_layers=3,
        num_key_value_heads=4, pretraining_tp=1, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8,
        rms_norm_eps=1e-6, rope_scaling=rope, rope_theta=10000, routed_scaling_factor=1.0, scoring_func="softmax",
        seq_aux=True, tie_word_embeddings=False, topk_group=1, topk_method="greedy", transformers_version="4.33.1",
        v_head_dim=16, vocab_size=320,
    )  # fmt: skip
    return Recipe(
        "deepseek_v2",
        ["latent attention without q_lora", "rope on neighbouring pairs",
         "yarn whose mscale is mscale_all_dim, so that cos and sin keep their size and scores do not",
         "16 experts, 4 active, 2 shared, weights neither scaled nor divided by their sum", "first layer dense"],
        config,
        "deepseek-v2-bf16",
        {
            **LATENT,
            "attention factor of cos and sin (of mscale alone instead of the quotient)": set_rope(
                attention_factor=0.1 * mscale * math.log(factor) + 1
            ),
            "expert weights as softmax gives them (divided by their sum instead)": patch(divide_by_sum),
        },
        gains={"router": 1.4},
    )  # fmt: skip


def glm4_moe_lite() -> Recipe:
    config = config_of(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", attention_bias=False, first_k_dense_replace=1, hidden_size=64,
        intermediate_size=96, kv_lora_rank=32, max_position_embeddings=512, moe_intermediate_size=16, n_group=1,
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=4, num_experts_per_tok=4,
        num_hidden_layers=3, num_key_value_heads=4, num_nextn_predict_layers=1, pad_token_id=PAD,
        partial_rotary_factor=1.0, q_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=8, rms_norm_eps=1e-5,
        rope_scaling=None, rope_theta=1000000, routed_scaling_factor=1.8, tie_word_embeddings=False, topk_group=1,
        topk_method="noaux_tc", transformers_version="5.0.0rc0", v_head_dim=32, vocab_size=304,
    )  # fmt: skip
    return Recipe(
        "glm4_moe_lite",
        ["latent attention with q_lora, value heads wider than nope keys", "rope on neighbouring pairs, not scaled",
         "8 experts, 4 active, sigmoid with a float32 correction bias, 1 shared", "first layer dense"],
        config,
        "glm4-moe-bf16",
        SIGMOID_LATENT,
    )  # fmt: skip


RECIPES: dict[str, Callable[[], Recipe]] = {
    "ministral-bf16": ministral,
    "phi4-mini-bf16": phi4_mini,
    "deepseek-v2-lite-bf16": deepseek_v2_lite,
    "glm4-moe-lite-bf16": glm4_moe_lite,
}
