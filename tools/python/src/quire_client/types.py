"""What goes in and what comes out: immutable values with the names of the schema (proto/quire/v1).

Times are seconds as float, points in time are aware datetimes. None means that the server did not say.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol, TypedDict, Union


class _WireEnum(enum.Enum):
    """Numbers of the schema; one that this version does not know yet is UNSPECIFIED."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls(0) if isinstance(value, int) and value != 0 else None


class FinishReason(_WireEnum):
    UNSPECIFIED = 0
    EOS = 1
    STOP_TEXT = 2
    STOP_TOKEN = 3
    LENGTH = 4
    CONTEXT_FULL = 5
    CONSTRAINT_DONE = 6
    TOOL_CALL = 7


class ToolChoice(_WireEnum):
    """Whether the model calls tools."""

    UNSPECIFIED = 0
    AUTO = 1
    NONE = 2
    REQUIRED = 3
    NAMED = 4


class ModelState(_WireEnum):
    UNSPECIFIED = 0
    LOADING = 1
    READY = 2
    UNLOADING = 3
    FAILED = 4


class ServerState(_WireEnum):
    UNSPECIFIED = 0
    LOADING = 1
    READY = 2
    PAUSED = 3
    DRAINING = 4
    FAILED = 5


# --- what goes in ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolCall:
    """A call that an assistant's turn, or an answer, made."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True)
class Tool:
    """A function offered to the model; its parameters are a JSON Schema document."""

    name: str
    description: str = ""
    parameters_json_schema: str = ""
    strict: bool = False


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str = ""
    name: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    reasoning_content: str = ""


@dataclass(frozen=True)
class Chat:
    """A conversation, which the model's chat template turns into a prompt."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    template_name: str = ""
    template_vars: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: Optional[bool] = None
    continue_final_message: bool = False
    tool_choice: ToolChoice = ToolChoice.UNSPECIFIED
    tool_name: str = ""
    parallel_tool_calls: Optional[bool] = None


class SchemaSource(Protocol):
    """What makes a JSON Schema of itself, as classes of Pydantic models do."""

    def model_json_schema(self) -> Mapping[str, Any]: ...


# Text, a conversation, or tokens as they are.
Prompt = Union[str, Chat, Sequence[int]]


class Options(TypedDict, total=False):
    """Everything that a generation can be told beside its prompt; a missing key, or None, is up to the server.

    Names, ranges and meanings are those of GenerateRequest and its parts in docs/api.md. Fields of CacheOptions begin
    with `cache_`.
    """

    model: Optional[str]
    request_id: Optional[str]
    priority: Optional[int]
    queue_timeout: Optional[float]  # seconds
    timeout: Optional[float]  # seconds for all of the call, waiting and trying again included
    labels: Optional[Mapping[str, str]]
    add_special_tokens: Optional[bool]
    parse_special_tokens: Optional[bool]
    truncate_prompt: Optional[bool]
    # how to sample
    temperature: Optional[float]
    top_p: Optional[float]
    top_k: Optional[int]
    min_p: Optional[float]
    top_n_sigma: Optional[float]
    xtc_probability: Optional[float]
    xtc_threshold: Optional[float]
    repetition_penalty: Optional[float]
    presence_penalty: Optional[float]
    frequency_penalty: Optional[float]
    seed: Optional[int]
    choice_count: Optional[int]
    logit_bias: Optional[Mapping[int, float]]
    banned_text: Optional[Sequence[str]]
    dry_multiplier: Optional[float]
    dry_base: Optional[float]
    dry_allowed_length: Optional[int]
    dry_window_tokens: Optional[int]
    dry_breakers: Optional[Sequence[str]]
    # when to stop
    max_tokens: Optional[int]
    min_tokens: Optional[int]
    stop: Union[str, Sequence[str], None]
    stop_token_ids: Optional[Sequence[int]]
    ignore_eos: Optional[bool]
    include_stop_text: Optional[bool]
    # the form of the answer; at most one of them
    json_schema: Union[str, Mapping[str, Any], SchemaSource, None]
    regex: Optional[str]
    grammar: Optional[str]  # EBNF, from `root`
    choices: Optional[Sequence[str]]
    structural_tags: Optional[Mapping[str, Any]]  # the fields of quire.v1.StructuralTags
    # "at_start", "after_reasoning", or a number of quire.v1.ConstraintStart
    constraint_start: Union[str, int, None]
    # "bounded", "compact", or a number of quire.v1.WhitespacePolicy
    constraint_whitespace: Union[str, int, None]
    # what to send back; text, unless only token_ids is set
    text: Optional[bool]
    token_ids: Optional[bool]
    logprobs: Optional[int]
    prompt_logprobs: Optional[int]
    skip_special_tokens: Optional[bool]
    stream_interval_tokens: Optional[int]
    echo_prompt: Optional[bool]
    timings: Optional[bool]
    usage_every_chunk: Optional[bool]
    processed_logprobs: Optional[bool]
    parse: Optional[bool]  # reasoning and tool calls apart from the text
    # use of the prefix cache
    cache_skip_read: Optional[bool]
    cache_skip_write: Optional[bool]
    cache_salt: Optional[str]


@dataclass(frozen=True)
class Request:
    """One item of a batch."""

    prompt: Prompt
    options: Options = field(default_factory=lambda: Options())


# --- what comes out of a generation ---------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    accepted_draft_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True)
class Timings:
    queue: Optional[float]
    prefill: Optional[float]
    decode: Optional[float]
    time_to_first_token: Optional[float]
    preemption_count: int
    recomputed_tokens: int


@dataclass(frozen=True)
class TopLogprob:
    token_id: int
    logprob: float
    token_bytes: bytes


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithms of the model's own distribution."""

    token_id: int
    logprob: float
    token_bytes: bytes
    top: tuple[TopLogprob, ...]
    rank: int
    processed_logprob: Optional[float]


@dataclass(frozen=True)
class Started:
    """The request runs; first event of every stream."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    seed: int
    schedule_time: Optional[datetime.datetime]
    prompt_text: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class PromptLogprobs:
    start_position: int
    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class ToolCallDelta:
    """Part of a call; this version of the server sends each whole."""

    call_index: int
    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True)
class Delta:
    """New output of one choice."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    usage: Optional[Usage]
    reasoning_text: str
    tool_calls: tuple[ToolCallDelta, ...]
    parse_error: str


@dataclass(frozen=True)
class Completed:
    """The end of one choice; its output is here when nothing was streamed."""

    index: int
    finish_reason: FinishReason
    stop_token_id: Optional[int]
    stop_text: Optional[str]
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    usage: Usage
    timings: Optional[Timings]
    reasoning_text: str
    tool_calls: tuple[ToolCall, ...]
    parse_error: str


Event = Union[Started, PromptLogprobs, Delta, Completed]


@dataclass(frozen=True)
class Completion:
    """A whole answer: what Started said, and one Completed with its output for each choice, by index."""

    request_id: str
    started: Started
    prompt_logprobs: tuple[TokenLogprob, ...]
    choices: tuple[Completed, ...]

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def completion_tokens(self) -> int:
        """Sampled tokens of all choices."""
        return sum(choice.usage.completion_tokens for choice in self.choices)


# --- other answers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenPiece:
    """One token as bytes, and its place in the input; -1 for special tokens that were added."""

    piece: bytes
    start_byte: int
    end_byte: int
    special: bool


@dataclass(frozen=True)
class Tokenized:
    token_ids: tuple[int, ...]
    pieces: tuple[TokenPiece, ...]
    max_context_tokens: int


@dataclass(frozen=True)
class Embedding:
    values: tuple[float, ...]
    prompt_tokens: int


@dataclass(frozen=True)
class Score:
    """total_logprob: the sum of ln p over the continuation. is_greedy: greedy decoding would have produced it."""

    total_logprob: float
    token_count: int
    is_greedy: bool
    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class Embeddings:
    """One vector an input, in their order."""

    embeddings: tuple[Embedding, ...]
    usage: Optional[Usage]

    @property
    def vectors(self) -> list[tuple[float, ...]]:
        return [embedding.values for embedding in self.embeddings]


@dataclass(frozen=True)
class Scores:
    """One score an item, in their order."""

    results: tuple[Score, ...]
    usage: Optional[Usage]


@dataclass(frozen=True)
class Detokenized:
    text: str
    raw: bytes


@dataclass(frozen=True)
class Rendered:
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class SamplingDefaults:
    temperature: Optional[float]
    top_p: Optional[float]
    top_k: Optional[int]
    min_p: Optional[float]
    top_n_sigma: Optional[float]
    xtc_probability: Optional[float]
    xtc_threshold: Optional[float]
    repetition_penalty: Optional[float]
    presence_penalty: Optional[float]
    frequency_penalty: Optional[float]
    seed: Optional[int]
    choice_count: Optional[int]
    logit_bias: Mapping[int, float]
    banned_text: tuple[str, ...]
    dry_multiplier: Optional[float]
    dry_base: Optional[float]
    dry_allowed_length: Optional[int]
    dry_window_tokens: Optional[int]
    dry_breakers: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    id: str
    aliases: tuple[str, ...]
    base_model: str
    state: ModelState
    architecture: str
    dtype: str
    quantization: str
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: Optional[int]
    pad_token_id: Optional[int]
    tokenizer_sha256: str
    weights_fingerprint: str
    has_chat_template: bool
    capabilities: tuple[str, ...]
    sampling_defaults: Optional[SamplingDefaults]
    parameter_count: int
    load_time: Optional[datetime.datetime]
    kv_page_size: int
    kv_page_count: int
    kv_dtype: str


@dataclass(frozen=True)
class Device:
    ordinal: int
    kind: str
    name: str
    uuid: str
    memory_total_bytes: int
    memory_free_bytes: int
    architecture: str
    unproven_kernels: bool


@dataclass(frozen=True)
class Limits:
    max_context_tokens: int
    max_choices: int
    max_logprobs: int
    max_stop_sequences: int
    max_logit_bias_entries: int
    default_max_tokens: int
    max_receive_message_bytes: int
    max_request_duration: Optional[float]


@dataclass(frozen=True)
class ServerInfo:
    version: str
    git_commit: str
    build_type: str
    start_time: Optional[datetime.datetime]
    state: ServerState
    devices: tuple[Device, ...]
    config_sha256: str
    limits: Optional[Limits]
