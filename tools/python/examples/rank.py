"""Which ending fits best? Log-probabilities of prompts, as a batch over one stream."""

import argparse

from quire_client import Client, Options, Request

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--address", default="127.0.0.1:50051")
arguments = parser.parse_args()

START = "Once upon a time there was a little"
ENDINGS = [" girl", " dog", " refrigerator"]
wanted = Options(prompt_logprobs=0, max_tokens=1)
scores = {}
with Client(arguments.address) as client:
    common = len(client.tokenize(START).token_ids)
    for item in client.batch([Request(START + ending, wanted) for ending in ENDINGS]):
        # Position 0 has no prediction, so entry i belongs to token i + 1.
        scores[ENDINGS[item.index]] = sum(one.logprob for one in item.result().prompt_logprobs[common - 1 :])
for ending, score in sorted(scores.items(), key=lambda pair: -pair[1]):
    print(f"{score:8.3f} {ending}")
