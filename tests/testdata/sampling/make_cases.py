"""Writes llama_cpp.json.xz: what the samplers of llama.cpp do to random rows, for kernels_sampling_test and engine_test.

Asked through the C interface of the library that the package xllamacpp 2026.10.11549 (PyPI) holds:

    pip install xllamacpp==2026.10.11549
    python make_cases.py

Top-n-sigma and XTC say which tokens are left; XTC has probability 1, since the coin is each server's own. DRY says what
it takes from the logit of each token, without breakers: those need a model's vocabulary.
"""

import ctypes
import importlib.util
import json
import lzma
import pathlib
import random

PACKAGE = pathlib.Path(importlib.util.find_spec("xllamacpp").origin).parent
LIB = ctypes.CDLL(str(next(PACKAGE.glob("xllamacpp*.so"))))


class TokenData(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenDataArray(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(TokenData)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64),
                ("sorted", ctypes.c_bool)]


for name, arguments in (("top_n_sigma", [ctypes.c_float]),
                        ("xtc", [ctypes.c_float, ctypes.c_float, ctypes.c_size_t, ctypes.c_uint32]),
                        ("dry", [ctypes.c_void_p, ctypes.c_float, ctypes.c_float, ctypes.c_int32, ctypes.c_int32,
                                 ctypes.c_void_p, ctypes.c_size_t])):
    function = getattr(LIB, f"llama_sampler_init_{name}")
    function.restype, function.argtypes = ctypes.c_void_p, arguments
LIB.llama_sampler_apply.argtypes = [ctypes.c_void_p, ctypes.POINTER(TokenDataArray)]
LIB.llama_sampler_accept.argtypes = [ctypes.c_void_p, ctypes.c_int32]
LIB.llama_sampler_free.argtypes = [ctypes.c_void_p]


def applied(sampler, logits, tokens=()):
    """Logits by token, of those that are left."""
    data = (TokenData * len(logits))(*((i, z, 0) for i, z in enumerate(logits)))
    row = TokenDataArray(data, len(logits), -1, False)
    for token in tokens:
        LIB.llama_sampler_accept(sampler, token)
    LIB.llama_sampler_apply(sampler, ctypes.byref(row))
    LIB.llama_sampler_free(sampler)
    return {row.data[i].id: row.data[i].logit for i in range(row.size) if row.data[i].logit > float("-inf")}


def as_float(value):
    return ctypes.c_float(value).value


def random_logits(rng):
    spread = rng.uniform(0.5, 4)
    return [as_float(round(rng.gauss(0, spread), 4)) for _ in range(rng.randint(2, 60))]


def top_n_sigma_case(rng):
    logits, n = random_logits(rng), as_float(round(rng.uniform(0.05, 3), 3))
    return {"logits": logits, "n": n, "left": sorted(applied(LIB.llama_sampler_init_top_n_sigma(n), logits))}


def xtc_case(rng):
    logits, threshold = random_logits(rng), as_float(round(rng.choice([0.02, 0.1, 0.3]) * rng.random(), 4))
    return {"logits": logits, "threshold": threshold,
            "left": sorted(applied(LIB.llama_sampler_init_xtc(1, threshold, 0, 0), logits))}


def dry_case(rng):
    vocab = rng.randint(2, 12)
    tokens = [rng.randrange(vocab) for _ in range(rng.randint(0, 120))]
    if rng.random() < 0.7 and len(tokens) > 4:  # a part that comes again, with what stood before it
        begin = rng.randrange(len(tokens) - 2)
        tokens += tokens[begin:begin + rng.randint(2, 30)]
    case = {"vocab": vocab, "tokens": tokens,
            "multiplier": as_float(round(rng.uniform(0.1, 2), 3)), "base": as_float(round(rng.uniform(1, 2.5), 3)),
            "allowed_length": rng.randint(1, 5), "window": rng.choice([0, 0, rng.randint(1, 150)])}
    sampler = LIB.llama_sampler_init_dry(None, case["multiplier"], case["base"], case["allowed_length"],
                                         case["window"] if case["window"] > 0 else len(tokens) + 1, None, 0)
    left = applied(sampler, [0.0] * vocab, tokens)
    case["penalties"] = [[token, -z] for token, z in sorted(left.items()) if z != 0]
    return case


def main():
    rng = random.Random(20260)
    cases = {"top_n_sigma": [top_n_sigma_case(rng) for _ in range(100)], "xtc": [xtc_case(rng) for _ in range(100)],
             "dry": [dry_case(rng) for _ in range(250)]}
    lines = [f' "{kind}": [\n  ' + ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in of_kind) + "\n ]"
             for kind, of_kind in cases.items()]
    path = pathlib.Path(__file__).with_name("llama_cpp.json.xz")
    path.write_bytes(lzma.compress(("{\n" + ",\n".join(lines) + "\n}\n").encode()))


if __name__ == "__main__":
    main()
