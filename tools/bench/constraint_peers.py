#!/usr/bin/env python3
"""Measures compile and mask times of other libraries with the output of `bench_constraints --export FILE`.

    constraint_peers.py FILE

Needs the packages xgrammar, llguidance, numpy and torch. Prints the minimum compile time of several runs in milliseconds.
Prints the mask time in microseconds: mean and 99th percentile of all passes but the first, and maximum of the first.
"""

import json
import sys
import time

import llguidance
import llguidance.numpy
import numpy
import xgrammar

PASSES = 20
COMPILES = 5


class Vocabulary:
    """The tokenizer interface of llguidance."""

    def __init__(self, tokens):
        self.eos_token_id = len(tokens) - 1
        self.bos_token_id = None
        self.tokens = tokens
        self.special_token_ids = [index for index, token in enumerate(tokens) if not token]
        self.ids = {token: index for index, token in enumerate(tokens) if token}
        self.longest = max(map(len, tokens))

    def __call__(self, text):
        """Tokenizes text that the grammar forces, by always taking the longest token."""
        rest = text if isinstance(text, bytes) else text.encode()
        ids = []
        while rest:
            token = next(rest[:size] for size in range(self.longest, 0, -1) if rest[:size] in self.ids)
            ids.append(self.ids[token])
            rest = rest[len(token):]
        return ids


def measure(name, compile_schema, begin, fill, accept, document):
    compiled = None
    compile_seconds = []
    for _ in range(COMPILES):
        start = time.perf_counter()
        compiled = compile_schema()
        compile_seconds.append(time.perf_counter() - start)
    first, later = [], []
    for number in range(PASSES):
        matcher = begin(compiled)
        for token in document:
            start = time.perf_counter()
            fill(matcher)
            (later if number else first).append((time.perf_counter() - start) * 1e6)
            assert accept(matcher, token), f"{name}: token {token} was refused"
    later.sort()
    print(f"{name:60} {min(compile_seconds) * 1e3:9.2f} ms  mean {sum(later) / len(later):8.1f}  "
          f"p99 {later[len(later) * 99 // 100]:8.1f}  first {max(first):8.1f}")


def main(path):
    with open(path) as file:
        exported = json.load(file)
    tokens = [bytes.fromhex(token) for token in exported["vocabulary"]]

    info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, stop_token_ids=[len(tokens) - 1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    xgrammar_mask = xgrammar.allocate_token_bitmask(1, len(tokens))

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary(tokens)))
    llguidance_mask = llguidance.numpy.allocate_token_bitmask(1, len(tokens))

    for case in exported["cases"]:
        measure(f"xgrammar/{case['name']}",
                lambda: compiler.compile_json_schema(case["schema"]),
                xgrammar.GrammarMatcher,
                lambda matcher: matcher.fill_next_token_bitmask(xgrammar_mask),
                lambda matcher, token: matcher.accept_token(token),
                case["tokens"])
        grammar = llguidance.LLMatcher.grammar_from_json_schema(case["schema"])
        measure(f"llguidance/{case['name']}",
                lambda: llguidance.LLMatcher(tokenizer, grammar),
                lambda compiled: compiled.deep_copy(),
                lambda matcher: llguidance.numpy.fill_next_token_bitmask(matcher, llguidance_mask),
                lambda matcher, token: matcher.consume_token(token),
                case["tokens"])


if __name__ == "__main__":
    main(sys.argv[1])
