"""Structured output and tools through langchain-openai and instructor. Argument: the API's base URL of a daemon."""

import sys
from typing import Literal

import instructor
import openai
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

URL = sys.argv[1]


class Fruit(BaseModel):
    """A fruit."""

    name: str = Field(max_length=12)
    color: Literal["red", "green", "yellow"]


@tool
def weigh(fruit: Literal["apple", "pear"], grams: Literal[1, 2, 3]) -> str:
    """Weighs a fruit."""
    return f"{fruit}: {grams}"


chat = ChatOpenAI(base_url=URL, api_key="none", model="smollm2", temperature=0, max_tokens=300, max_retries=0)
assert chat.invoke("Hello").content
assert "".join(piece.content for piece in chat.stream("Hello")) == chat.invoke("Hello").content
for method in ("json_schema", "function_calling"):
    fruit = chat.with_structured_output(Fruit, method=method).invoke("Name a fruit.")
    assert isinstance(fruit, Fruit), (method, fruit)
call = chat.bind_tools([weigh], tool_choice="any").invoke("Weigh an apple.").tool_calls[0]
assert call["name"] == "weigh" and weigh.invoke(call["args"]), call
again = chat.bind_tools([weigh], tool_choice="weigh").invoke("Weigh a pear.").tool_calls[0]
assert again["name"] == "weigh", again

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    made = instructor.from_openai(client, mode=mode).chat.completions.create(
        model="smollm2", response_model=Fruit, messages=[{"role": "user", "content": "A fruit."}], max_tokens=300,
        temperature=0, max_retries=0)
    assert isinstance(made, Fruit), (mode, made)
parsed = client.chat.completions.parse(model="smollm2", response_format=Fruit, max_tokens=300, temperature=0,
                                       messages=[{"role": "user", "content": "A fruit."}])
assert isinstance(parsed.choices[0].message.parsed, Fruit), parsed
print("structured done")
