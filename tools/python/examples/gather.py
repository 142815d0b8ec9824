"""Several prompts at once with asyncio; one that takes too long is given up."""

import argparse
import asyncio

from quire_client import AsyncClient, DeadlineExceeded


async def ask(client: AsyncClient, prompt: str) -> str:
    try:
        answer = await client.complete(prompt, max_tokens=24, seed=1, timeout=30)
    except DeadlineExceeded:
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
