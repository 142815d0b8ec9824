"""Streams a story to the terminal; Ctrl-C ends it on the server too."""

import argparse

from quire_client import Client

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("prompt", nargs="?", default="Once upon a time")
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--max-tokens", type=int, default=100)
arguments = parser.parse_args()

with Client(arguments.address) as client:
    with client.generate(arguments.prompt, max_tokens=arguments.max_tokens, temperature=0.8) as stream:
        for piece in stream.text():
            print(piece, end="", flush=True)
        answer = stream.result()
print(f"\n-- {answer.completion_tokens} tokens, ended by {answer.choices[0].finish_reason.name}")
print(f"-- the same again: seed={answer.started.seed}")
