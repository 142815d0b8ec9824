"""Records greedy answers of SmolLM2-135M-Instruct to chat prompts, computed by transformers in float32:

  scripts/fetch_smollm2
  pip install torch transformers gguf accelerate       # answers.json has the versions
  make_answers.py build/smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf

Writes answers.json beside this file. The margin of an answer is the least difference of the two best logits over its
tokens. Answers with a margin below MIN_MARGIN are left out: float32 rounding, about 1e-4 here, must not change a token.
"""

import hashlib
import importlib.metadata
import json
import pathlib
import sys

import gguf
import numpy
import tokenizers
import torch
import transformers
from tokenizers import pre_tokenizers

MAX_TOKENS = 20
MIN_MARGIN = 0.02
WATER = (
    "Summarize in one sentence: Water evaporates from the surface of the earth, rises into the atmosphere, cools "
    "and condenses into rain or snow in clouds, and falls again to the surface. Water that falls on land collects "
    "in rivers and lakes, soil and porous layers of rock, and much of it flows back into the oceans, where it "
    "evaporates again."
)
# The roles of a conversation are user and assistant in turn, behind a system message if its first text is one.
PROMPTS = {
    "question": ["What is the capital of France?"],
    "greeting": ["Hi!"],
    "arithmetic": ["What is 12 + 30?"],
    "numbers": ["Count from 1 to 10, separated by commas."],
    "python": ["Write a Python function that returns the square of a number."],
    "c": ["```c\nint main(void) {\n    return 0;\n}\n```\nWhat does this program do?"],
    "sql": ["SELECT name FROM users WHERE id = 7; -- what does this query return?"],
    "json": ['Explain this JSON: {"name": "Bob", "age": 42, "tags": ["x", "y"]}'],
    "pirate": [("system", "You are a pirate. Answer in one sentence."), "How are you today?"],
    "one-word": [("system", "You answer with a single word."), "Is the sky blue?"],
    "name": ["My name is Alice and I live in Berlin.", "Nice to meet you, Alice!", "What is my name?"],
    "fruit": [("system", "You are a helpful assistant."), "Name a fruit.", "Apple.", "Name another one.", "Banana.",
              "And one more?"],
    "french": ["Bonjour, comment allez-vous ?"],
    "german": ["Übersetze ins Englische: Guten Morgen, schöne Grüße aus Köln!"],
    "japanese": ["日本の首都はどこですか。"],
    "russian": ["Привет! Как тебя зовут?"],
    "emoji": ["What does 🎉👩‍🚀 mean?"],
    "spaces": ["Fix the  spacing:\n\n\tHello   world ,\n  it is   5 o'clock on  24 May 1999 ."],
    "long": [WATER],
    "planets": ["List the planets of the solar system."],
    "markup": ["What does <b>bold</b> mean in HTML? And &amp;?"],
}


def messages(texts):
    out = []
    for text in texts:
        role, content = text if isinstance(text, tuple) else (None, text)
        after_user = out and out[-1]["role"] == "user"
        out.append({"role": role or ("assistant" if after_user else "user"), "content": content})
    return out


def load(path):
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    # transformers does not read tokenizer.ggml.pre. "smollm" is what the model's own tokenizer.json has:
    tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.29.ffn_down.weight")
    exact = gguf.quants.dequantize(stored.data, stored.tensor_type)
    assert numpy.array_equal(model.model.layers[29].mlp.down_proj.weight.detach().numpy(), exact)
    return tokenizer, model


@torch.no_grad()
def answer(model, ids):
    """Token ids without the end of text, and the margin."""
    tokens, margins, cache, step = [], [], None, ids
    while len(tokens) < MAX_TOKENS:
        out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        best = out.logits[0, -1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        step = [int(best.indices[0])]
        if step[0] == model.config.eos_token_id:
            break
        tokens += step
    return tokens, min(margins)


def main(path):
    tokenizer, model = load(path)
    lines = []
    for name, texts in PROMPTS.items():
        ids = tokenizer.apply_chat_template(messages(texts), add_generation_prompt=True, return_dict=True)["input_ids"]
        tokens, margin = answer(model, ids)
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        print(f"{name}: {margin:.4f} {text!r}", flush=True)
        if margin >= MIN_MARGIN:
            case = {"id": name, "messages": messages(texts), "prompt_token_ids": ids, "token_ids": tokens,
                    "is_whole": len(tokens) < MAX_TOKENS, "text": text, "margin": round(margin, 4)}
            lines.append(json.dumps(case, ensure_ascii=False, separators=(",", ":")))
    head = {"model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "max_tokens": MAX_TOKENS,
            "versions": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                         "torch": torch.__version__, "gguf": importlib.metadata.version("gguf")}}
    text = json.dumps(head)[:-1] + ', "answers": [\n' + ",\n".join(lines) + "\n]}\n"
    (pathlib.Path(__file__).parent / "answers.json").write_text(text)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
