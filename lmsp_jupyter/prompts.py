"""From the items of a request, and of the responses that it continues, to what an engine is asked."""

from __future__ import annotations

from collections.abc import Sequence

from .engines import Call, Prompt, Turn
from .protocol import FunctionCall, FunctionCallOutput, Item, Message, Request, Response
from .strict_json import refuse

MAX_TOKENS = 2**31 - 1
"""What engines can count up to."""

TURN_TOKENS = 32
"""More tokens than a chat template puts around one message."""

Link = tuple[Sequence[Item], Response]
"""One earlier response of a chain: the input of its request, and the response."""


def prompt_of(request: Request, chain: Sequence[Link] = ()) -> Prompt:
    """What the engine is asked: the whole context as turns, the system's joined into one in front (B6.2). Earlier
    reasoning is not shown to the model again.

    Raises `BadRequest` where calls and their outputs do not fit together (B0.10), or nothing is there to go on with.
    """
    earlier = [item for items, response in chain for item in (*items, *response.output)]
    _check_pairs(earlier, request.input)
    items = [*earlier, *request.input]
    goes_on = _goes_on(request, chain)
    return Prompt(
        turns=_turns(request.instructions, items),
        max_output_tokens=request.max_output_tokens and min(request.max_output_tokens, MAX_TOKENS),
        temperature=request.temperature,
        options=request.options,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel=request.options.parallel_tool_calls is not False,
        schema=request.schema,
        continue_last=goes_on,
    )


def size(prompt: Prompt) -> int | None:
    """At least the tokens of the prompt without what a template adds once; None where that is not known (B0.4)."""
    if prompt.tools:
        return None
    texts = [turn.content for turn in prompt.turns]
    texts += [call.name + call.arguments for turn in prompt.turns for call in turn.calls]
    return sum(len(text.encode()) + TURN_TOKENS for text in texts)


def _check_pairs(earlier: Sequence[Item], items: Sequence[Item]) -> None:
    calls = {item.call_id for item in earlier if isinstance(item, FunctionCall)}
    outputs = {item.call_id for item in earlier if isinstance(item, FunctionCallOutput)}
    for index, item in enumerate(items):
        pointer = f"/input/{index}/call_id"
        if isinstance(item, FunctionCall):
            if item.call_id in calls:
                refuse(pointer, f"There are two calls with the call_id {item.call_id!r}.")
            calls.add(item.call_id)
        elif isinstance(item, FunctionCallOutput):
            if item.call_id not in calls:
                refuse(pointer, f"There is no earlier call with the call_id {item.call_id!r}.")
            if item.call_id in outputs:
                refuse(pointer, f"There are two outputs for the call_id {item.call_id!r}.")
            outputs.add(item.call_id)


def _goes_on(request: Request, chain: Sequence[Link]) -> bool:
    """Whether the answer goes on inside the context's last message (B6.3)."""
    if request.input:
        last = request.input[-1]
        if not isinstance(last, Message) or last.role != "assistant" or last.status != "incomplete":
            return False
        return bool(last.text) and _may_go_on(request)
    response = chain[-1][1]
    if response.status == "completed":
        refuse("/input", f"The response {response.id} is complete: there is nothing to go on with; give an input.")
    last_message = response.output[-1] if response.output else None
    if isinstance(last_message, FunctionCall):
        refuse("/input", f"The response {response.id} ends with a call; give its function_call_output.")
    return isinstance(last_message, Message) and bool(last_message.text) and _may_go_on(request)


def _may_go_on(request: Request) -> bool:
    if request.schema is not None:
        refuse("/response_format", "An answer cannot go on inside a message under a schema; ask for a new one.")
    return True


def _turns(instructions: str | None, items: Sequence[Item]) -> list[Turn]:
    system = [instructions] if instructions else []
    system += [item.text for item in items if isinstance(item, Message) and item.role == "system"]
    turns = [Turn("system", "\n\n".join(system))] if system else []
    names = {item.call_id: item.name for item in items if isinstance(item, FunctionCall)}
    answering = False  # a message and the calls after it are one turn of the assistant's
    for item in items:
        if isinstance(item, FunctionCall):
            if not answering:
                turns.append(Turn("assistant", ""))
            turns[-1].calls = [*turns[-1].calls, Call(item.name, item.arguments)]
            answering = True
        elif isinstance(item, FunctionCallOutput):
            turns.append(Turn("tool", item.output, name=names[item.call_id]))
            answering = False
        elif isinstance(item, Message) and item.role != "system":
            turns.append(Turn(item.role, item.text))
            answering = item.role == "assistant"
    # An answer that was cut before its first word is none.
    return [turn for turn in turns if turn.role != "assistant" or turn.content or turn.calls]
