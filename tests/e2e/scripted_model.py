"""Models that generate given texts. In the one Llama layer attention and MLP add nothing, so the next token depends on
the last one only. Each text is cut into tokens that occur nowhere else, and the head maps each token to the next."""

import json
import random
import struct

HIDDEN = 64
BASE = 256  # tokens of single bytes


def _byte_letters():
    """The byte-to-character table of byte-level BPE (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + byte - len([b for b in plain if b < byte])))
    return letters


def _pieces(text, markers, taken, generator):
    """Cuts the text at its markers, and the rest into pieces of a few characters. No piece occurs twice."""
    while text:
        marker = next((m for m in markers if text.startswith(m)), None)
        if marker:
            piece = marker
        else:
            end = min([at for at in (text.find(m) for m in markers) if at > 0] or [len(text)])
            size = min(end, generator.randint(3, 7))
            # A single character already is a token of the vocabulary.
            while size < end and (text[:size] in taken or end - size == 1):
                size += 1
            piece = text[:size]
        assert piece not in taken, f"{piece!r} occurs twice"
        taken.add(piece)
        yield piece
        text = text[len(piece) :]


def _tensor(rows):
    return struct.pack(f"<{len(rows) * len(rows[0])}f", *(value for row in rows for value in row))


def _write_weights(path, successor, vocabulary):
    generator = random.Random(7)
    embeddings = []
    for _ in range(vocabulary):
        row = [generator.gauss(0, 1) for _ in range(HIDDEN)]
        norm = sum(value * value for value in row) ** 0.5
        embeddings.append([value / norm for value in row])
    head = [[0.0] * HIDDEN for _ in range(vocabulary)]
    for token, following in successor.items():
        head[following] = [old + 40 * new for old, new in zip(head[following], embeddings[token], strict=True)]
    zeros, ones = [[0.0] * HIDDEN] * HIDDEN, [[1.0] * HIDDEN]
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": embeddings, "lm_head.weight": head, "model.norm.weight": ones,
        layer + "input_layernorm.weight": ones, layer + "post_attention_layernorm.weight": ones,
        **{f"{layer}self_attn.{name}_proj.weight": zeros for name in "qkvo"},
        **{f"{layer}mlp.{name}_proj.weight": zeros for name in ("gate", "up", "down")},
    }
    entries, data = {}, b""
    for name, rows in tensors.items():
        content = _tensor(rows)
        shape = [len(rows), HIDDEN] if len(rows) > 1 else [HIDDEN]
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def write_scripted_model(folder, scripts, *, template, special=(), plain=()):
    """Writes a model folder. `scripts` maps an opener (a special token) to a text.

    A prompt that ends with an opener is answered with its text and the end of sequence. `special` and `plain` are
    markers with one token each; special markers are not part of the text. A script may contain each marker once, and a
    marker leads to one text.
    """
    generator = random.Random(11)
    markers, end = [*special, *plain], "<|im_end|>"
    added = {end: True, **{opener: True for opener in scripts}, **{m: m in special for m in markers}}
    ids = {text: BASE + index for index, text in enumerate(added)}
    successor, taken = {}, set()
    for opener, text in scripts.items():
        last = ids[opener]
        local = set()
        for piece in _pieces(text, markers, taken, generator):
            if piece in markers:
                taken.discard(piece)
                assert piece not in local, f"{piece!r} occurs twice"
                local.add(piece)
            else:
                added[piece] = False
                ids[piece] = BASE + len(ids)
            assert successor.setdefault(last, ids[piece]) == ids[piece], f"{piece!r} does not follow alone"
            last = ids[piece]
        successor[last] = ids[end]
    letters = _byte_letters()
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "added_tokens": [
            {"id": ids[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": is_special}
            for text, is_special in added.items()
        ],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {letters[byte]: byte for byte in range(BASE)}, "merges": [],
        },
    }
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": HIDDEN, "vocab_size": BASE + len(ids), "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "eos_token_id": ids[end], "torch_dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "clean_up_tokenization_spaces": False}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids[end], "temperature": 0.0, "do_sample": False}))
    (folder / "chat_template.jinja").write_text(template)
    _write_weights(folder / "model.safetensors", successor, BASE + len(ids))
    return folder
