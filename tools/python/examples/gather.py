"""Several prompts at once with asyncio, each with a time limit."""

import argparse
import asyncio

import grpc

from quire_client import AsyncClient, QuireError, v1


async def ask(client: AsyncClient, prompt: str) -> str:
    request = v1.GenerateRequest(
        text=prompt, stopping=v1.StoppingParams(max_tokens=24), sampling=v1.SamplingParams(seed=1)
    )
    try:
        answer = await client.complete(request, timeout=30)
    except QuireError as error:
        if error.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return f"{prompt} ... (too slow)"
    return f"{prompt}{answer.text}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1:50051")
    async with AsyncClient(parser.parse_args().address) as client:
        prompts = ["A dog", "A cat", "The old boat"]
        for line in await asyncio.gather(*(ask(client, prompt) for prompt in prompts)):
            print(line.replace("\n", " "))


asyncio.run(main())
