"""Ranks endings of a sentence by their log-probability."""

import argparse

from quire_client import Client, v1

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--address", default="127.0.0.1:50051")
arguments = parser.parse_args()

START = "Once upon a time there was a little"
ENDINGS = [" girl", " dog", " refrigerator"]
request = v1.ScoreRequest(items=[v1.ScoreItem(context_text=START, text=ending) for ending in ENDINGS])
with Client(arguments.address) as client:
    results = client.score(request).results
scores = {ending: result.total_logprob for ending, result in zip(ENDINGS, results)}
for ending, score in sorted(scores.items(), key=lambda pair: -pair[1]):
    print(f"{score:8.3f} {ending}")
