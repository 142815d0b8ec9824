#!/usr/bin/env python3
"""Writes a model with synthetic weights for load tests: `bench_model.py QUIRE KIND SHAPE FOLDER`.

QUIRE is the client, whose make-model writes the tokenizer and the configuration of SHAPE. KIND is

    bf16    no weights; serve it with model.load_mode=dummy
    moe     no weights either; layers of Qwen3-30B-A3B, or small ones for the shape tiny
    fp8     weights in e4m3 with one scale per output (compressed-tensors), because dummy weights are not quantized
"""

import json
import pathlib
import random
import struct
import subprocess
import sys

MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
       "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
       "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
       "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
       "rope_theta": 1e6, "rope_scaling": None, "rms_norm_eps": 1e-6}
TINY_MOE = {**MOE, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 64, "moe_intermediate_size": 64, "num_experts": 8,
            "num_experts_per_tok": 2, "vocab_size": 512, "max_position_embeddings": 512}
FP8 = {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
       "ignore": ["lm_head"],
       "config_groups": {"group_0": {
           "targets": ["Linear"], "output_activations": None,
           "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
           "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token",
                                 "dynamic": True}}}}
PATTERN_BYTES = 1 << 24


def patterns():
    """Returns repeatable bytes of each kind of tensor. Magnitudes are 0.5 to 1 in e4m3 and 0.008 to 0.03 in bf16."""
    source = random.Random(1)
    high = source.randbytes(PATTERN_BYTES // 2).translate(bytes((byte & 0x80) | 0x3C for byte in range(256)))
    bf16 = bytearray(PATTERN_BYTES)
    bf16[0::2], bf16[1::2] = source.randbytes(PATTERN_BYTES // 2), high
    return {"F8_E4M3": source.randbytes(PATTERN_BYTES).translate(bytes((byte & 0x87) | 0x30 for byte in range(256))),
            "BF16": bytes(bf16), "F32": struct.pack("<f", 0.03) * (PATTERN_BYTES // 4),
            "norm": struct.pack("<H", 0x3F80) * (PATTERN_BYTES // 2)}


def tensors(config):
    """Returns (name, kind, shape) of the tensors of a Llama in e4m3."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    matrices = (("self_attn.q_proj", queries, hidden), ("self_attn.k_proj", keys, hidden), ("self_attn.v_proj", keys, hidden),
                ("self_attn.o_proj", hidden, queries), ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                ("mlp.down_proj", hidden, inner))
    yield "model.embed_tokens.weight", "BF16", (config["vocab_size"], hidden)
    yield "lm_head.weight", "BF16", (config["vocab_size"], hidden)
    yield "model.norm.weight", "norm", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}{norm}.weight", "norm", (hidden,)
        for name, rows, columns in matrices:
            yield f"{prefix}{name}.weight", "F8_E4M3", (rows, columns)
            yield f"{prefix}{name}.weight_scale", "F32", (rows, 1)


def write_weights(config, path):
    sizes, header, end = [], {}, 0
    for name, kind, shape in tensors(config):
        dtype = "BF16" if kind == "norm" else kind
        size = {"F8_E4M3": 1, "BF16": 2, "F32": 4}[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        sizes.append((kind, size))
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = {kind: memoryview(pattern) for kind, pattern in patterns().items()}
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for kind, size in sizes:
            for start in range(0, size, PATTERN_BYTES):
                file.write(content[kind][:size - start])


def main():
    quire, kind, shape, folder = sys.argv[1:]
    subprocess.run([quire, "make-model", "--shape", shape, "--out", folder], check=True)
    path = pathlib.Path(folder, "config.json")
    config = json.loads(path.read_text(encoding="utf-8"))
    if kind == "moe":
        config.update(TINY_MOE if shape == "tiny" else MOE)
    if kind == "fp8":
        config["quantization_config"] = FP8
        write_weights(config, pathlib.Path(folder, "model.safetensors"))
    path.write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    main()
