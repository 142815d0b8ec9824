"""Asks a chat model questions, and prints the error if the server rejects one. Needs a model with a chat template."""

import argparse
import sys

from quire_client import Client, QuireError, v1

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("questions", nargs="+")
parser.add_argument("--system", default="Answer in one sentence.")
parser.add_argument("--address", default="127.0.0.1:50051")
arguments = parser.parse_args()

chat = v1.ChatPrompt(messages=[v1.ChatMessage(role="system", content=arguments.system)])
with Client(arguments.address, timeout=60) as client:
    for question in arguments.questions:
        chat.messages.add(role="user", content=question)
        request = v1.GenerateRequest(chat=chat)
        request.stopping.max_tokens = 64
        request.sampling.temperature = 0
        try:
            answer = client.complete(request)
        except QuireError as error:
            if error.reason == "CHAT_TEMPLATE_MISSING":
                sys.exit(f"this model cannot chat: {error.message}")
            sys.exit(f"{error}, {error.metadata}")
        print(answer.text.strip())
        chat.messages.append(answer.message)
