"""Streams a story to the terminal. Ctrl-C ends it on the server too."""

import argparse

from quire_client import Client, v1

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("prompt", nargs="?", default="Once upon a time")
parser.add_argument("--address", default="127.0.0.1:50051")
parser.add_argument("--max-tokens", type=int, default=100)
arguments = parser.parse_args()

request = v1.GenerateRequest(
    text=arguments.prompt,
    stopping=v1.StoppingParams(max_tokens=arguments.max_tokens),
    sampling=v1.SamplingParams(temperature=0.8),
)
with Client(arguments.address) as client:
    with client.generate(request) as stream:
        for piece in stream.text():
            print(piece, end="", flush=True)
        answer = stream.result()
end = answer.choices[0]
print(f"\n-- {end.usage.completion_tokens} tokens, ended by {v1.FinishReason.Name(end.finish_reason)}")
print(f"-- the same again: seed={answer.started.seed}")
