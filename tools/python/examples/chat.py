"""Asks a chat model, with errors told apart; needs a model with a chat template."""

import argparse
import sys

from quire_client import Chat, Client, FailedPrecondition, InvalidArgument, Message

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("question")
parser.add_argument("--system", default="Answer in one sentence.")
parser.add_argument("--address", default="127.0.0.1:50051")
arguments = parser.parse_args()

conversation = Chat([Message("system", arguments.system), Message("user", arguments.question)])
with Client(arguments.address, timeout=60) as client:
    try:
        print(client.complete(conversation, max_tokens=64, temperature=0).text.strip())
    except FailedPrecondition as error:
        sys.exit(f"this model cannot chat: {error.message}")
    except InvalidArgument as error:
        sys.exit(f"{error.reason}: {error.message}, limits {dict(error.limits)}")
