"""What comes in and goes out: OpenAI's completions with their extras, and the smaller endpoints.

A field that is null has its default. One that is unknown, of the wrong type or out of range is refused by
name: nothing that a client sends is silently ignored.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from glassgpt.generate.sampling.params import FILTERS
from glassgpt.http.errors import UNKNOWN_FIELD

MAX_PROMPTS = 2048
MAX_PROMPT_CHARACTERS = 1_000_000
MAX_N = 128
MAX_SEQUENCES = 4096  # texts of one request: prompts times n, or best_of
MAX_RESPONSE_LOGPROBS = 1_000_000  # in one response, with the alternatives: about 40 MB of JSON
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_BIASES = 1024
MAX_EDITS = 64
MAX_TOKEN_ID = 2**31 - 1


def explained(message: str) -> WrapValidator:
    """One sentence in place of pydantic's list of what each member of a union expected."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(message) from None

    return WrapValidator(check)


TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)]
# With fail_fast, a million wrong ids are one error and not a million.
Ids = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_CHARACTERS, fail_fast=True)]
Prompt = Annotated[
    Text
    | Ids
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)],
    explained(
        "must be a string, a list of strings, a list of token ids or a list of lists of token ids, "
        f"and not empty; at most {MAX_PROMPTS} prompts of {MAX_PROMPT_CHARACTERS:,} characters"
    ),
]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[
    StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)],
    explained(f"must be a string or a list of at most {MAX_STOPS} strings of 1 to 256 characters"),
]
LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIASES),
    explained(f"must map at most {MAX_BIASES} token ids to numbers from -100 to 100"),
]
Name = Annotated[str, Field(max_length=256)]
Pattern = Annotated[str, Field(max_length=100_000)]
JsonSchema = dict[str, Any]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(min_length=1, max_length=1000)
]


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown(cls, body: Any) -> Any:
        """One unknown field is enough to refuse a body, and to say what it could have been."""
        if not isinstance(body, dict):
            return body
        known = [name if field.alias is None else field.alias for name, field in cls.model_fields.items()]
        unknown = next((name for name in body if name not in known), None)
        if unknown is None:
            return body
        unknown = str(unknown)[:100].encode("utf-8", "backslashreplace").decode()  # half a surrogate pair
        close = get_close_matches(unknown, known, n=1)
        advice = f"Did you mean {close[0]}?" if close else "Leave it out, or see the fields at /docs."
        message = f"is not a field of this request. {advice}"
        raise PydanticCustomError(UNKNOWN_FIELD, "{message}", {"name": unknown, "message": message})


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = Field(None, description="Nothing is added to the chunks.")


class TextFormat(StrictModel):
    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    type: Literal["json_object"]


class NamedJsonSchema(StrictModel):
    name: Name | None = None
    description: Pattern | None = None
    content: JsonSchema | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(StrictModel):
    type: Literal["json_schema"]
    json_schema: NamedJsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


if TYPE_CHECKING:
    FilterFields = StrictModel
else:  # a field for each filter: null, or a number in its range
    FilterFields = create_model(
        "FilterFields",
        __base__=StrictModel,
        **{
            name: (Annotated[float, Field(**{"gt" if f.above else "ge": f.low}, le=f.high)] | None, None)
            for name, f in FILTERS.items()
        },
    )


class CompletionRequest(FilterFields):
    """The filters, OpenAI's other fields, then those that vLLM added."""

    model: Name | None = Field(None, description="One of GET /v1/models; by default the first.")
    prompt: Prompt | None = Field(None, description="By default the beginning of a document.")
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)] | None = Field(
        None, description="16 by default. With 0, echo and logprobs the prompt is scored."
    )
    temperature: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description="0 is greedy.")
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    stop: Stop | None = None
    suffix: Text | None = Field(
        None, description="What follows the gap: of 16 guesses those are returned that it suits best."
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    logit_bias: LogitBias | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Name | None = None
    # Extras.
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID)] | None = Field(
        None, description="-1 or 0 switches it off."
    )
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_BIASES)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = Field(None, description="text, json_object or json_schema.")
    guided_json: JsonSchema | None = Field(None, description="A JSON schema that the text follows.")
    guided_regex: Pattern | None = Field(None, description="A regular expression that the text matches.")
    guided_choice: Choices | None = Field(None, description="The text is one of these strings.")
    guided_grammar: Pattern | None = Field(None, description="A grammar in the syntax of Lark or GBNF.")
    return_token_ids: bool | None = None
    edits: Annotated[list[dict[str, Any]], Field(max_length=MAX_EDITS)] | None = Field(
        None, description="Changes to the forward pass, such as an ablated head or a steering vector."
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID)] | None = Field(
        None, description="Keep the last tokens of a prompt; -1 keeps as many as fit."
    )


class Logprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(BaseModel):
    logprob: float
    rank: int | None
    decoded_token: str


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorDetail


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None  # None until it was loaded once
    loaded: bool


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class Health(BaseModel):
    status: Literal["ok"]


class Version(BaseModel):
    version: str


class TokenizeRequest(StrictModel):
    model: Name | None = None
    prompt: Text
    add_special_tokens: bool | None = Field(None, description="Changes nothing: GPT-2 adds none.")
    return_token_strs: bool | None = None


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(StrictModel):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_PROMPT_CHARACTERS, fail_fast=True)]


class DetokenizeResponse(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    """What lm-evaluation-harness and others ask for before they tokenize through the server."""

    tokenizer_class: str | None
    model_max_length: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None
    hash: str | None


# Any route may answer with these: the middleware checks Host, Origin, the API key and the size of the body.
COMMON_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "What was sent is not valid; `param` names the field."},
    401: {"model": ErrorResponse, "description": "The API key is missing or wrong."},
    403: {"model": ErrorResponse, "description": "The Host or the Origin is not allowed."},
    413: {"model": ErrorResponse, "description": "The body is too large."},
    431: {"model": ErrorResponse, "description": "The headers are too large."},
    503: {"model": ErrorResponse, "description": "A model is being loaded, or the server is shutting down."},
}
MODEL_ERRORS: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorResponse, "description": "There is no model by that name."},
    **COMMON_ERRORS,
}
COMPLETION_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completions; with `stream`, chunks of them as server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    408: {"model": ErrorResponse, "description": "The request took too long."},
    429: {"model": ErrorResponse, "description": "Too many requests are waiting; see Retry-After."},
    **MODEL_ERRORS,
}
