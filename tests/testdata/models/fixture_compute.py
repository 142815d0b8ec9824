"""What make_fixture.py computes with torch and transformers: random weights, greedy tokens, logits, hidden states and
how far other number formats are from float32."""

import contextlib
import json
import math
import re
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

GREEDY_TOKENS = 64  # of each prompt
TOP5_STEPS = 8  # of the greedy tokens, of which the five best are kept
ALL_LOGITS_UP_TO = 17  # tokens of a prompt whose logits are kept at every position
HIDDEN_TOKENS = 17  # of the first prompt whose hidden states are kept
MIN_MARGIN = 2e-3  # between the best and the second logit of every greedy step
MIN_ROUTING_MARGIN = 5e-5  # between the last chosen and the first other logit of every router
MIN_DISTINCT = 8  # ids among the greedy tokens of three quarters of the prompts
MAX_SEEDS = 400


def rounded(value: float, digits: int = 7) -> float:
    return float(f"{value:.{digits}g}")


# ----------------------------------------------------------------------------------------------------------------------
# Models


def ready(model):
    with contextlib.suppress(ValueError):  # models without experts
        model.set_experts_implementation("eager")
    for parameter in model.parameters():
        # Off the mapped file: products differ in the last digit with the alignment.
        parameter.data = parameter.data.clone()
    return model.eval()


def new_model(config: dict):
    """In float32, with weights that say nothing yet."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        parsed = AutoConfig.from_pretrained(folder)
    return ready(AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32))


def load_model(folder, dtype=torch.float32):
    return ready(AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype).to(dtype))


def correction_biases(model) -> list:
    """Of routers that choose by more than their scores; no parameters, but drawn like them."""
    return [(name, buffer) for name, buffer in model.named_buffers() if "e_score_correction_bias" in name]


def init_weights(model, config: dict, gains: dict, vocabulary: int, seed: int) -> None:
    """Draws every parameter and rounds it to bfloat16.

    Matrices are normal with a standard deviation of gain / sqrt(inputs), much larger than the usual 0.02, which would
    leave all logits nearly equal. Norm weights are uniform and never all 1. Rows of embedding and head behind the
    tokenizer's vocabulary are small, so that they are there and never win. Correction biases of routers stay float32.
    """
    tied = config.get("tie_word_embeddings", False)
    gain = {"embed": 4.2 / math.sqrt(config["hidden_size"]) if tied else 1.0, "head": 5.0, "q": 1.4, "attention": 1.6,
            "mlp": 1.6, "router": 2.0, "correction": 0.2, "norm": (0.5, 1.5), **gains}  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def normal(shape, deviation):
        return torch.randn(shape, generator=generator, dtype=torch.float32) * deviation

    def value_of(name, shape):
        if name.endswith("norm.weight"):
            low, high = gain["norm"]
            return torch.rand(shape, generator=generator, dtype=torch.float32) * (high - low) + low
        if "embed_tokens" in name or "lm_head" in name:
            value = normal(shape, gain["embed"] if "embed_tokens" in name else gain["head"] / math.sqrt(shape[1]))
            value[vocabulary:] *= 0.05
            return value
        if re.search(r"mlp\.gate\.weight$", name):
            return normal(shape, gain["router"] / math.sqrt(shape[-1]))
        if len(shape) == 3:  # experts in one tensor
            return normal(shape, gain["mlp"] / math.sqrt(shape[2]))
        kind = "q" if re.search(r"[qk]_proj|q_b_proj|qkv_proj", name) else "attention" if "self_attn" in name else "mlp"
        return normal(shape, gain[kind] / math.sqrt(shape[1]))

    with torch.no_grad():
        for name, parameter in sorted([*model.named_parameters(), *correction_biases(model)]):
            if "e_score_correction_bias" in name:
                parameter.copy_(normal(parameter.shape, gain["correction"]))
                continue
            if name.endswith("bias"):
                raise NotImplementedError(f"{name}: no gain is known for biases")
            parameter.copy_(value_of(name, parameter.shape).bfloat16().to(parameter.dtype))


class Router:
    """Watches how close every decision of a model's expert routers is, until it is closed."""

    def __init__(self, model):
        self.smallest = math.inf
        routers = [m for m in model.modules() if type(m).__name__.endswith("Router")]
        self.handles = [router.register_forward_hook(self.note) for router in routers]

    def note(self, module, inputs, output):
        logits = output[0].float()
        if not hasattr(module, "e_score_correction_bias"):
            self.note_choice(logits, module.top_k)
            return
        groups = (logits.sigmoid() + module.e_score_correction_bias).unflatten(-1, (module.num_group, -1))
        sums = groups.topk(2, dim=-1).values.sum(-1)
        self.note_choice(sums, module.topk_group)
        kept = torch.zeros_like(sums).scatter(-1, sums.topk(module.topk_group, dim=-1).indices, 1).bool()
        self.note_choice(groups.masked_fill(~kept[..., None], -1e9).flatten(-2), module.top_k)

    def note_choice(self, scores, count):
        if count < scores.shape[-1]:
            best = scores.topk(count + 1, dim=-1).values
            self.smallest = min(self.smallest, (best[..., -2] - best[..., -1]).min().item())

    def margin(self) -> float | None:
        return rounded(self.smallest, 4) if math.isfinite(self.smallest) else None

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


# ----------------------------------------------------------------------------------------------------------------------
# Running


@torch.no_grad()
def logits_of(model, ids: list[int]) -> torch.Tensor:
    """At every position, from one pass without a cache."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model, ids: list[int]) -> tuple[list[int], float]:
    """Argmax with a key/value cache, and the smallest gap to the second best; stops at one that is too small."""
    out = model(input_ids=torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    tokens, smallest = [], math.inf
    while True:
        best = out.logits[0, -1].topk(2)
        smallest = min(smallest, (best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
        if smallest <= MIN_MARGIN or len(tokens) == GREEDY_TOKENS:
            return tokens, smallest
        out = model(input_ids=torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)


def find_seed(model, recipe, vocabulary: int, prompts: list[dict], first: int) -> int:
    """The first seed from `first` on whose greedy tokens are varied and never decided by a narrow margin."""
    for seed in range(first, first + MAX_SEEDS):
        init_weights(model, recipe.config, recipe.gains, vocabulary, seed)
        router, dull = Router(model), 0
        for prompt in sorted(prompts, key=lambda p: p["num_tokens"]):
            tokens, margin = greedy(model, prompt["token_ids"])
            dull += len(set(tokens)) < MIN_DISTINCT
            if margin <= MIN_MARGIN or router.smallest <= MIN_ROUTING_MARGIN or dull > len(prompts) // 4:
                break
        else:
            router.close()
            return seed
        router.close()
    raise RuntimeError(f"no seed from {first} to {first + MAX_SEEDS} is good enough; raise the gains")


@torch.no_grad()
def hidden_states(model, ids: list[int]) -> torch.Tensor:
    """Input of the first layer, output of every layer, output of the final norm: [layers + 2, tokens, hidden]."""
    rows, layers = [], model.model.layers

    def before(module, positional, named):
        rows.append((positional[0] if positional else named["hidden_states"])[0].clone())

    def after(module, inputs, output):
        rows.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    handles = [layers[0].register_forward_pre_hook(before, with_kwargs=True)]
    handles += [module.register_forward_hook(after) for module in [*layers, model.model.norm]]
    logits_of(model, ids)
    for handle in handles:
        handle.remove()
    return torch.stack(rows)


def record_prompt(model, tokenizer, prompt: dict, eos: int) -> tuple[dict, list[int], torch.Tensor]:
    """The entry of reference.json, the whole sequence and its logits."""
    ids = prompt["token_ids"]
    tokens, _ = greedy(model, ids)
    logits = logits_of(model, ids + tokens)
    steps = logits[len(ids) - 1 : -1]
    if steps.argmax(-1).tolist() != tokens:
        raise RuntimeError(f"{prompt['id']}: passes with and without a cache disagree")
    logprobs = torch.log_softmax(steps.double(), -1)
    best = steps.double().topk(2, dim=-1).values
    margins = (best[:, 0] - best[:, 1]).tolist()
    top5 = logprobs[:TOP5_STEPS].topk(5, dim=-1)
    row = {
        "id": prompt["id"],
        "text": prompt["text"],
        "num_tokens": len(ids),
        "token_ids": ids,
        "logits_positions": "all" if len(ids) <= ALL_LOGITS_UP_TO else "last",
        "greedy_token_ids": tokens,
        "greedy_text": tokenizer.decode(tokens, skip_special_tokens=False),
        "greedy_distinct": len(set(tokens)),
        "first_eos_index": tokens.index(eos) if eos in tokens else None,
        "greedy_logprobs": [rounded(logprobs[i, token].item()) for i, token in enumerate(tokens)],
        "margins": [rounded(margin, 5) for margin in margins],
        "min_margin": rounded(min(margins), 5),
        "top5_ids": top5.indices.tolist(),
        "top5_logprobs": [[rounded(value) for value in values] for values in top5.values.tolist()],
    }
    return row, ids + tokens, logits


def record_prompts(model, tokenizer, prompts: list[dict], eos: int):
    """Entries of reference.json, tensors of reference.safetensors, all sequences and their logits."""
    rows, arrays, sequences, full = [], {}, [], []
    has_hidden = False
    for prompt in prompts:
        row, sequence, logits = record_prompt(model, tokenizer, prompt, eos)
        rows.append(row)
        sequences.append(sequence)
        full.append(logits)
        of_prompt = logits_of(model, prompt["token_ids"])
        kept = of_prompt if row["logits_positions"] == "all" else of_prompt[-1:]
        arrays[f"{row['id']}.logits"] = kept.contiguous()
        if row["num_tokens"] == HIDDEN_TOKENS and not has_hidden:
            arrays[f"{row['id']}.hidden"] = hidden_states(model, prompt["token_ids"])
            has_hidden = True
    return rows, arrays, sequences, full


# ----------------------------------------------------------------------------------------------------------------------
# Accuracy


def distance(a: list[torch.Tensor], b: list[torch.Tensor]) -> tuple[float, float]:
    """|a - b| / |b| by norm, and the largest difference."""
    x, y = (torch.cat([tensor.double().flatten() for tensor in tensors]) for tensors in (a, b))
    return ((x - y).norm() / y.norm()).item(), (x - y).abs().max().item()


@contextlib.contextmanager
def float32_means_float64():
    """Modelling code asks for float32 by name in norms, softmax and rope."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved


def float64_logits(folder, sequences: list) -> list[torch.Tensor]:
    model = load_model(folder).double()
    with float32_means_float64():
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
        return [logits_of(model, sequence) for sequence in sequences]


class RoundedCache(transformers.DynamicCache):
    """Keeps keys and values, or latents and rotated keys, rounded to bfloat16."""

    def update(self, keys, values, *arguments, **named):
        return super().update(keys.bfloat16().to(keys.dtype), values.bfloat16().to(values.dtype), *arguments, **named)


@torch.no_grad()
def logits_with_rounded_cache(model, ids: list[int]) -> torch.Tensor:
    cache = RoundedCache(config=model.config)
    return model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0]


def accuracy(folder, model, prompts: list[dict], sequences: list, full: list) -> dict:
    """How far other number formats are from float32, over all tokens of all sequences."""
    def same_argmax(other):
        hits = [(a.argmax(-1) == b.argmax(-1))[prompt["num_tokens"] - 1 : -1]
                for a, b, prompt in zip(other, full, prompts, strict=True)]  # fmt: skip
        return rounded(torch.cat(hits).float().mean().item(), 4)

    def figures(relative, largest):
        return {"relative_error": rounded(relative, 3), "max_abs": rounded(largest, 3)}

    half_model = load_model(folder, torch.bfloat16)
    half = [logits_of(half_model, sequence) for sequence in sequences]
    worst = max(distance([a], [b])[0] for a, b in zip(half, full, strict=True))
    cached = [logits_with_rounded_cache(model, sequence) for sequence in sequences]
    half_error, half_largest = distance(half, full)
    return {
        "float32_vs_float64": figures(*distance(full, float64_logits(folder, sequences))),
        "half_vs_float32": {
            "type": "bfloat16",
            "relative_error": rounded(half_error, 3),
            "worst_prompt_relative_error": rounded(worst, 3),
            "max_abs": rounded(half_largest, 3),
            "same_argmax": same_argmax(half),
        },
        "bfloat16_cache_vs_float32": {**figures(*distance(cached, full)), "same_argmax": same_argmax(cached)},
    }
