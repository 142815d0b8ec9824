"""Records what sentencepiece makes of texts with models that the folders in ../cases do not have.

    python generate.py            # writes <variant>/tokenizer.model and <variant>/cases.jsonl here

Each variant is one of the models of ../cases with other settings or other pieces. Package:
sentencepiece 0.2.1. The output is the same in every run.
"""

import json
import pathlib
import random
import struct

import sentencepiece

HERE = pathlib.Path(__file__).parent
META = "\u2581"
NORMAL, USER_DEFINED, UNUSED, BYTE = 1, 4, 5, 6


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """(number, wire type, value) of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        elif tag & 7 == 5:
            value, at = data[at : at + 4], at + 4
        else:
            size, at = read_varint(data, at)
            value, at = data[at : at + size], at + size
        yield tag >> 3, tag & 7, value


def message(parts):
    out = b""
    for number, wire, value in parts:
        body = varint(value) if wire == 0 else value if wire == 5 else varint(len(value)) + value
        out += varint(number << 3 | wire) + body
    return out


class Model:
    def __init__(self, name):
        data = (HERE.parent / "cases" / name / "tokenizer.model").read_bytes()
        self.pieces, self.trainer, self.normalizer = [], [], []
        for number, _, value in fields(data):
            if number == 1:
                piece = {n: v for n, _, v in fields(value)}
                self.pieces.append([piece[1].decode(), struct.unpack("<f", piece[2])[0], piece.get(3, NORMAL)])
            elif number == 2:
                self.trainer = list(fields(value))
            elif number == 3:
                self.normalizer = list(fields(value))

    def set(self, spec, number, value):
        spec[:] = [field for field in spec if field[0] != number] + [(number, 0, value)]

    def add(self, text, kind, score=0.0):
        self.pieces = [piece for piece in self.pieces if piece[0] != text]
        self.pieces.append([text, score, kind])

    def bytes(self):
        pieces = [
            (1, 2, message([(1, 2, text.encode()), (2, 5, struct.pack("<f", score)), (3, 0, kind)]))
            for text, score, kind in self.pieces
        ]
        specs = [(2, 2, message(self.trainer)), (3, 2, message(self.normalizer))]
        return message(pieces + specs)


def no_prefix_user_defined():
    """As Gemma: no sign in front, runs of spaces and newlines as pieces of their own."""
    model = Model("llama2-sentencepiece")
    model.set(model.normalizer, 3, 0)
    for text in (META * 2, META * 4, "\n\n", "\n", "<turn>", "he", "a b", "<0x0A>x"):
        model.add(text, USER_DEFINED)
    return model


def no_byte_fallback():
    """Unknown pieces, and characters that occur in pieces without being one."""
    model = Model("llama2-sentencepiece")
    model.pieces = [p for p in model.pieces if p[2] != BYTE and p[0] not in ("e", "h", "o", "\u00e9", META)]
    model.set(model.trainer, 35, 0)
    return model


def equal_scores():
    """Many merges of one score: the leftmost is first."""
    model = Model("llama2-sentencepiece")
    for piece in model.pieces:
        if piece[2] == NORMAL:
            piece[1] = -float(len(piece[0]) % 3)
    return model


def extra_spaces():
    """Runs of spaces become one; an unused piece of one character, which BPE finds all the same."""
    model = Model("llama2-sentencepiece")
    model.add("q", UNUSED)
    model.set(model.normalizer, 4, 1)
    return model


def unigram_user_defined():
    """User-defined pieces that overlap others, unused pieces, an own surface of unknown pieces."""
    model = Model("unigram-byte-fallback-sentencepiece")
    for text in ("the cat", "ing", META + "wor", "\u00e9", "12", "123"):
        model.add(text, USER_DEFINED)
    for text in (META + "the", "s", "world"):
        model.add(text, UNUSED, -1.0)
    return model


def unigram_keeps_spaces():
    model = Model("unigram-byte-fallback-sentencepiece")
    model.set(model.normalizer, 4, 0)
    model.pieces = [p for p in model.pieces if p[2] != BYTE]
    model.set(model.trainer, 35, 0)
    model.trainer.append((44, 2, b"<?>"))
    return model


def unigram_plain_spaces():
    """Spaces are not rewritten; pieces have them as they are."""
    model = Model("unigram-byte-fallback-sentencepiece")
    model.set(model.normalizer, 5, 0)
    for piece in model.pieces:
        piece[0] = piece[0].replace(META, " ")
    return model


VARIANTS = (no_prefix_user_defined, no_byte_fallback, equal_scores, extra_spaces)
VARIANTS += (unigram_user_defined, unigram_keeps_spaces, unigram_plain_spaces)

TEXTS = [
    "", " ", "   ", "a", " a", "a ", "  a  b  ", "Hello world", "hello  world", "the cat sat", "the  cat",
    "\n", "\n\n", "\n\n\n", "a\n\nb\n", " \n ", "\t", "a\tb", "a b", "a b a b", "he he hehe", "<turn>user\nhi<turn>",
    META, META * 3, "a" + META + "b", META + " " + META, "    four", "x    y     z", "caf\u00e9", "\u00e9\u00e9", "e\u0301",
    "#", "a#b ##", "queen q qq", "<unk> <s> </s>", "<0x41>", "<0x0A>x<0x0A>", "0123456789", "12 123 1234 12312",
    "\u6f22\u5b57", "a\u6f22\u5b57b\u6f22", "\U0001f600\U0001f601 hi", "\u00a0x\u3000y", "\u2460 \ufb01 \u00bd \uff21\uff22", "\uff76\uff9e",
    "singing ringing", "wor world worlds", "hohoho ehehe", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", "the" * 20, "ab" * 50, " e" * 40,
]
LETTERS = ["a", "b", "e", "h", "o", "t", "the", " ", "  ", "\n", "1", "2", "3", "\u00e9", "\u6f22", "#", "q", META, "ing", "wor", "<turn>"]


def texts():
    rng = random.Random(7)
    mixed = ["".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 40))) for _ in range(60)]
    return TEXTS + mixed


def main():
    for make in VARIANTS:
        folder = HERE / make.__name__.replace("_", "-")
        folder.mkdir(exist_ok=True)
        data = make().bytes()
        (folder / "tokenizer.model").write_bytes(data)
        model = sentencepiece.SentencePieceProcessor(model_proto=data)
        with open(folder / "cases.jsonl", "w", encoding="utf-8") as out:
            for text in texts():
                ids = model.encode(text)
                case = {"text": text, "ids": ids, "decode": model.decode(ids)}
                out.write(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
