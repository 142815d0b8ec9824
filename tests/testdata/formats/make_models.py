#!/usr/bin/env python3
"""Makes one small model in every quantised format that is read, with the logits that its exact values give.

    python3 make_models.py [--checkpoints] SOURCE OUT

The model is the first layer of SOURCE, the folder models/llama-gqa-tied-bf16 with its weights, as ../generate.py makes
it. Weights are rounded to the nearest code; what a code is worth follows the README beside this file and nothing of the
program under test. Needs numpy. Writes

    base.safetensors       embedding and norms, shared by all formats
    NAME.safetensors       the matrices in one format
    config.json            of the model, without a quantization_config
    index.json             per format its quantization_config; the prompts
    reference.safetensors  NAME.logits F32 [prompts, vocabulary], at the last token of each prompt, in float64 from the
                           dequantised weights; "original" is the model before it was rounded, NAME.rounded.logits
                           those of an fp8 format whose matrices have their inputs rounded to e4m3, row by row

With --checkpoints only the first two: they have the same bits everywhere, which sums of products need not have.
"""
import argparse
import json
import pathlib

import numpy as np

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
GROUP = 32
MATRICES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
            "mlp.up_proj", "mlp.down_proj"]

# ----------------------------------------------------------------------------------------------------------------------
# Files


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """Rounds to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path: pathlib.Path) -> dict:
    """Tensors of bf16 and f32 as float32."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + x for x in entry["data_offsets"])
        raw = data[begin:end]
        values = bf16_values(np.frombuffer(raw, np.uint16)) if entry["dtype"] == "BF16" else np.frombuffer(raw, np.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_safetensors(path: pathlib.Path, tensors: dict) -> None:
    """`tensors` is name -> (dtype, array of the same bytes)."""
    header, blobs, at = {}, [], 0
    for name, (dtype, array) in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


# ----------------------------------------------------------------------------------------------------------------------
# Formats. Each takes a matrix [out, in] and returns its tensors (suffix -> (dtype, array)) and its exact values.


def pack(values: np.ndarray, bits: int, axis: int, order=None) -> np.ndarray:
    """Unsigned integers into 32-bit words along an axis, lowest bits first; order[slot] is the column of a slot."""
    per = 32 // bits
    v = np.moveaxis(values.astype(np.uint32), axis, -1)
    v = np.concatenate([v, np.zeros((*v.shape[:-1], -v.shape[-1] % per), np.uint32)], -1)
    v = v.reshape(*v.shape[:-1], v.shape[-1] // per, per)
    word = np.zeros(v.shape[:-1], np.uint32)
    for slot, column in enumerate(range(per) if order is None else order):
        word |= v[..., column] << np.uint32(bits * slot)
    return np.ascontiguousarray(np.moveaxis(word, -1, axis)).view(np.int32)


def round_scales(scales: np.ndarray, dtype: str) -> tuple:
    """Stored scales and what they are worth."""
    if dtype == "BF16":
        bits = bf16_bits(scales)
        return bits, bf16_values(bits)
    stored = scales.astype(np.float16 if dtype == "F16" else np.float32)
    return stored, stored.astype(np.float32)


def integers(w: np.ndarray, bits: int, group_of: np.ndarray, symmetric: bool, dtype: str) -> tuple:
    """Codes q, zero points z and scales s [out, groups], stored and real, so that w is about (q - z) s."""
    groups = int(group_of.max()) + 1
    top, half = 2**bits - 1, 2**(bits - 1)
    low = np.stack([w[:, group_of == g].min(1) for g in range(groups)], 1)
    high = np.stack([w[:, group_of == g].max(1) for g in range(groups)], 1)
    if symmetric:
        wanted = np.maximum(-low, high) / (half - 0.5)
        zeros = np.full(low.shape, half)
    else:
        wanted = (np.maximum(high, 0) - np.minimum(low, 0)) / top
        zeros = np.clip(np.rint(-np.minimum(low, 0) / wanted), 1, top).astype(np.int64)
    stored, scales = round_scales(wanted, dtype)
    codes = np.clip(np.rint(w / scales[:, group_of]) + zeros[:, group_of], 0, top).astype(np.int64)
    exact = (codes - zeros[:, group_of]).astype(np.float32) * scales[:, group_of]
    return codes, zeros, stored, exact


def plain_groups(inputs: int, group: int) -> np.ndarray:
    return np.arange(inputs) // (inputs if group < 0 else group)


def shuffled_groups(inputs: int, group: int) -> np.ndarray:
    return plain_groups(inputs, group)[np.random.default_rng(inputs).permutation(inputs)]


def awq(w: np.ndarray) -> tuple:
    codes, zeros, scales, exact = integers(w, 4, plain_groups(w.shape[1], GROUP), False, "F16")
    return {"qweight": ("I32", pack(codes.T, 4, 1, AWQ_ORDER)), "qzeros": ("I32", pack(zeros.T, 4, 1, AWQ_ORDER)),
            "scales": ("F16", scales.T)}, exact


def gptq(w: np.ndarray, bits: int, group: int, version: int, symmetric: bool, order: bool) -> tuple:
    group_of = (shuffled_groups if order else plain_groups)(w.shape[1], group)
    codes, zeros, scales, exact = integers(w, bits, group_of, symmetric, "F16")
    stored = zeros - 1 if version == 1 else zeros
    return {"qweight": ("I32", pack(codes.T, bits, 0)), "qzeros": ("I32", pack(stored.T, bits, 1)),
            "scales": ("F16", scales.T), "g_idx": ("I32", group_of.astype(np.int32))}, exact


def ct_packed(w: np.ndarray, bits: int, group: int, symmetric: bool, dtype: str, order: bool = False) -> tuple:
    group_of = (shuffled_groups if order else plain_groups)(w.shape[1], group)
    codes, zeros, scales, exact = integers(w, bits, group_of, symmetric, dtype)
    tensors = {"weight_packed": ("I32", pack(codes, bits, 1)), "weight_scale": (dtype, scales),
               "weight_shape": ("I64", np.array(w.shape, np.int64))}
    if not symmetric:
        tensors["weight_zero_point"] = ("I32", pack(zeros, bits, 0))
    if order:
        tensors["weight_g_idx"] = ("I32", group_of.astype(np.int32))
    return tensors, exact


def ct_int8(w: np.ndarray, symmetric: bool) -> tuple:
    codes, zeros, scales, exact = integers(w, 8, plain_groups(w.shape[1], -1), symmetric, "BF16")
    tensors = {"weight": ("I8", (codes - 128).astype(np.int8)), "weight_scale": ("BF16", scales)}
    if not symmetric:
        tensors["weight_zero_point"] = ("I8", (zeros - 128).astype(np.int8))
    return tensors, exact


def e4m3_table() -> np.ndarray:
    """Sign, 4 exponent bits (bias 7), 3 mantissa bits; 7f and ff are NaN."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), np.ldexp(1 + mantissa / 8.0, exponent - 7))
    value = np.where((codes & 127) == 127, np.nan, value)
    return np.where(codes & 128, -value, value).astype(np.float32)


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """The nearest code of each value."""
    table = e4m3_table()
    magnitudes = table[:127].astype(np.float64)
    near = np.abs(np.abs(x)[..., None] - magnitudes).argmin(-1)
    return (near + np.where(x < 0, 128, 0)).astype(np.uint8)


def fp8(w: np.ndarray, name: str, rows: int, columns: int, shape, powers_of_two: bool = False) -> tuple:
    """One scale for each block of rows x columns (-1: all), stored in the shape that shape(blocks) gives."""
    rows, columns = rows if rows > 0 else w.shape[0], columns if columns > 0 else w.shape[1]
    blocks = np.zeros((-(-w.shape[0] // rows), -(-w.shape[1] // columns)), np.float32)
    for i in range(blocks.shape[0]):
        for j in range(blocks.shape[1]):
            most = np.abs(w[i * rows:(i + 1) * rows, j * columns:(j + 1) * columns]).max()
            blocks[i, j] = 2.0 ** np.ceil(np.log2(most / 448)) if powers_of_two else most / 448
    spread = np.repeat(np.repeat(blocks, rows, 0)[:w.shape[0]], columns, 1)[:, :w.shape[1]]
    codes = to_e4m3(w / spread)
    exact = e4m3_table()[codes] * spread
    return {"weight": ("F8_E4M3", codes), name: ("F32", blocks.reshape(shape(blocks)))}, exact


def gptq_config(bits: int, group: int, version: int, symmetric: bool, order: bool) -> dict:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": symmetric,
            "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}


def ct_config(fmt: str, bits: int, kind: str, strategy: str, activations: bool = False, **more) -> dict:
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": False, **more}
    inputs = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    return {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "output_activations": None,
                                          "input_activations": inputs if activations else None}}, "ignore": ["lm_head"]}


FP8_BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def formats() -> dict:
    """name -> (quantization_config, function of a matrix)."""
    result = {"awq-int4-g32": ({"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32,
                                "zero_point": True}, awq)}
    for name, *args in (("gptq-v1-int4-g32", 4, 32, 1, False, False), ("gptq-v1-int4-sym-g32", 4, 32, 1, True, False),
                        ("gptq-v1-int4-g32-actorder", 4, 32, 1, False, True),
                        ("gptq-v2-int4-channel", 4, -1, 2, False, False), ("gptq-v1-int8-g32", 8, 32, 1, False, False),
                        ("gptq-v2-int8-sym-channel", 8, -1, 2, True, False)):
        result[name] = gptq_config(*args), lambda w, args=args: gptq(w, *args)
    group = {"group_size": 32, "actorder": None}
    result["ct-int4-sym-g32"] = (ct_config("pack-quantized", 4, "int", "group", **group),
                                 lambda w: ct_packed(w, 4, 32, True, "BF16"))
    result["ct-int4-asym-g32"] = (ct_config("pack-quantized", 4, "int", "group", **{**group, "symmetric": False}),
                                  lambda w: ct_packed(w, 4, 32, False, "F16"))
    result["ct-int4-sym-g32-actorder"] = (
        ct_config("pack-quantized", 4, "int", "group", **{**group, "actorder": "group"}),
        lambda w: ct_packed(w, 4, 32, True, "F16", True))
    result["ct-int8-sym-channel"] = (ct_config("pack-quantized", 8, "int", "channel", group_size=None),
                                     lambda w: ct_packed(w, 8, -1, True, "BF16"))
    result["ct-int8-w8a8"] = (ct_config("int-quantized", 8, "int", "channel", True), lambda w: ct_int8(w, True))
    result["ct-int8-asym"] = (ct_config("int-quantized", 8, "int", "channel", symmetric=False),
                              lambda w: ct_int8(w, False))
    result["ct-fp8-tensor"] = (ct_config("float-quantized", 8, "float", "tensor", True),
                               lambda w: fp8(w, "weight_scale", -1, -1, lambda b: (1,)))
    result["ct-fp8-channel"] = (ct_config("float-quantized", 8, "float", "channel", True),
                                lambda w: fp8(w, "weight_scale", 1, -1, lambda b: b.shape))
    result["fp8-tensor"] = ({"quant_method": "fp8", "activation_scheme": "dynamic"},
                            lambda w: fp8(w, "weight_scale", -1, -1, lambda b: ()))
    result["fp8-block128"] = (FP8_BLOCK, lambda w: fp8(w, "weight_scale_inv", 128, 128, lambda b: b.shape))
    result["fp8-block128-ue8m0"] = ({**FP8_BLOCK, "scale_fmt": "ue8m0"},
                                    lambda w: fp8(w, "weight_scale_inv", 128, 128, lambda b: b.shape, True))
    return result


# ----------------------------------------------------------------------------------------------------------------------
# The model


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """x is [tokens, heads, size]; columns i and i + size / 2 are a pair."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[0])[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def round_rows(x: np.ndarray) -> np.ndarray:
    """To e4m3, the scale of a row being the smallest power of two that brings its largest magnitude to 448."""
    scale = 2.0 ** np.ceil(np.log2(np.abs(x).max(-1, keepdims=True) / 448))
    return e4m3_table()[to_e4m3(x / scale)].astype(np.float64) * scale


def forward(config: dict, weights: dict, tokens: list, rounded=lambda x: x) -> np.ndarray:
    """Logits of the last token, in float64; rounded(x) is what the matrices of the layer multiply."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    layer = lambda name: w[f"model.layers.0.{name}.weight"]
    eps, heads, kv = config["rms_norm_eps"], config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads
    x = w["model.embed_tokens.weight"][tokens]
    h = rounded(norm(x, layer("input_layernorm"), eps))
    q = rotate((h @ layer("self_attn.q_proj").T).reshape(len(tokens), heads, size), config["rope_theta"])
    k = rotate((h @ layer("self_attn.k_proj").T).reshape(len(tokens), kv, size), config["rope_theta"])
    v = (h @ layer("self_attn.v_proj").T).reshape(len(tokens), kv, size)
    k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(size)
    scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    o = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(len(tokens), -1)
    x = x + rounded(o) @ layer("self_attn.o_proj").T
    h = rounded(norm(x, layer("post_attention_layernorm"), eps))
    gate, up = h @ layer("mlp.gate_proj").T, h @ layer("mlp.up_proj").T
    x = x + rounded(gate / (1 + np.exp(-gate)) * up) @ layer("mlp.down_proj").T
    return norm(x, w["model.norm.weight"], eps)[-1] @ w["model.embed_tokens.weight"].T


def divergence(exact: np.ndarray, other: np.ndarray) -> float:
    """Mean Kullback-Leibler divergence of the rows."""
    log = [x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
           for x in (exact, other)]
    return float((np.exp(log[0]) * (log[0] - log[1])).sum(-1).mean())


def write_checkpoints(out: pathlib.Path, plain: dict) -> dict:
    """Returns what the weights of each format are worth."""
    names = [f"model.layers.0.{m}.weight" for m in MATRICES]
    base = {n: v for n, v in plain.items() if n not in names}
    write_safetensors(out / "base.safetensors", {n: ("BF16", bf16_bits(v)) for n, v in base.items()})
    worth = {}
    for name, (_, convert) in formats().items():
        tensors, exact = {}, dict(base)
        for matrix in names:
            parts, exact[matrix] = convert(plain[matrix])
            tensors.update({matrix.removesuffix("weight") + suffix: part for suffix, part in parts.items()})
        write_safetensors(out / f"{name}.safetensors", tensors)
        worth[name] = exact
    return worth


def write_reference(out: pathlib.Path, config: dict, plain: dict, worth: dict) -> None:
    config["num_hidden_layers"] = 1
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    rng = np.random.default_rng(7)
    prompts = [rng.integers(0, 300, n).tolist() for n in (1, 2, 5, 9, 16, 17, 33, 40)]
    logits = {}
    for name, weights in {"original": plain, **worth}.items():
        logits[name] = np.stack([forward(config, weights, p) for p in prompts])
        print(f"{name}: divergence from the original {divergence(logits['original'], logits[name]):.2e}")
        if "fp8" in name:
            rounded = np.stack([forward(config, weights, p, round_rows) for p in prompts])
            print(f"{name}, rows rounded: divergence from not rounded {divergence(logits[name], rounded):.2e}")
            logits[f"{name}.rounded"] = rounded
    write_safetensors(out / "reference.safetensors",
                      {f"{n}.logits": ("F32", v.astype(np.float32)) for n, v in logits.items()})
    lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(q)}" for n, (q, _) in formats().items())
    text = f'{{\n "prompts": {json.dumps(prompts)},\n "formats": {{\n{lines}\n }}\n}}\n'
    (out / "index.json").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    stored = read_safetensors(arguments.source / "model.safetensors")
    plain = {n: v for n, v in stored.items() if not n.startswith("model.layers.") or n.startswith("model.layers.0.")}
    worth = write_checkpoints(arguments.out, plain)
    if not arguments.checkpoints:
        config = json.loads((arguments.source / "config.json").read_text(encoding="utf-8"))
        write_reference(arguments.out, config, plain, worth)


if __name__ == "__main__":
    main()
