"""Client of quire, the LLM inference server.

    from quire_client import Client, v1

    with Client("127.0.0.1:50051") as client:
        request = v1.GenerateRequest(text="Once upon a time", stopping=v1.StoppingParams(max_tokens=32))
        print(client.complete(request).text)

The messages of v1 are those of proto/quire/v1, made by protoc. AsyncClient is the same for asyncio.
"""

from . import v1
from ._connection import VERSION, RetryPolicy, tls_credentials
from .client import AsyncClient, AsyncGenerationStream, BatchItem, Client, Completion, GenerationStream
from .errors import QuireError

__version__ = VERSION
__all__ = [
    "AsyncClient",
    "AsyncGenerationStream",
    "BatchItem",
    "Client",
    "Completion",
    "GenerationStream",
    "QuireError",
    "RetryPolicy",
    "tls_credentials",
    "v1",
]
