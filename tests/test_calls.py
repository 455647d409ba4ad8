"""Tool calls in text: the grammar (B0.9, B0.10), the reader (B0.7), and the turns for templates without tools."""

import json
import random

import pytest
from llguidance import LLMatcher

from lmsp_jupyter.engines import (
    Broken,
    Call,
    CallArguments,
    CallEnded,
    CallStarted,
    Finished,
    Prompt,
    PromptProgress,
    ReasoningText,
    Text,
    Turn,
    calls,
)
from lmsp_jupyter.engines.thoughts import Thoughts, thinking_after
from lmsp_jupyter.errors import EngineFailed
from lmsp_jupyter.patterns import byte_tokenizer
from lmsp_jupyter.protocol import NamedTool, Tool

ours = pytest.mark.ours

WEATHER = Tool(
    name="get_weather",
    description="The weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/Days"}},
        "required": ["city"],
        "$defs": {"Days": {"type": "integer", "minimum": 1, "maximum": 5}},
    },
)
TIME = Tool(name="get_time", parameters={"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}})
ANYTHING = Tool(name="get")


def prompt(**more):
    return Prompt(**{"turns": [Turn("user", "?")], "tools": [WEATHER, TIME, ANYTHING], **more})


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


ROME = call("get_weather", {"city": "Rome", "days": 3})
UTC = call("get_time", {"zone": "UTC"})
ANY = call("get", {"a": [{"b": "</tool_call>"}]})


# The grammar


def follows(text, asked, **more):
    """Whether the text is a whole answer under the grammar."""
    matcher = LLMatcher(byte_tokenizer(), calls.grammar(asked, **more), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@ours
@pytest.mark.parametrize(
    ("asked", "allowed", "refused"),
    [
        (
            prompt(),
            ["", "Hello <b> <tool", ROME, UTC, ANY, f"{ROME}\n{UTC}", f"Let me see.\n{ROME}", "\n".join([UTC] * 8)],
            ["a <tool_call> b", ROME + "x", ROME + ROME, ROME[:-1], "\n".join([UTC] * 9), call("nope", {})],
        ),
        (prompt(parallel=False), ["Hello", ROME, f"Well. {UTC}"], [f"{ROME}\n{UTC}"]),
        (prompt(tool_choice="required"), [ROME, f"{ROME}\n{UTC}"], ["", "Hello", f"Let me see. {ROME}"]),
        (prompt(tool_choice="required", parallel=False), [ROME], ["", f"{ROME}\n{UTC}"]),
        (prompt(tool_choice=NamedTool(name="get")), [ANY, f"{ANY}\n{ANY}"], ["", ROME, UTC, f"{ANY}\n{UTC}"]),
        (prompt(schema={"type": "integer"}), ["12", ROME, f"{ROME}\n{UTC}"], ["", "a", f"12 {ROME}", '{"a": 1}']),
        (prompt(tools=[], schema={"type": "integer"}), ["12"], [ROME, "", "{}"]),
        (prompt(tool_choice="none", schema={"type": "null"}), ["null"], [ROME]),
        (prompt(tool_choice="required", schema={"type": "integer"}), [ROME], ["12"]),
    ],
    ids=[
        "auto",
        "one",
        "required",
        "required one",
        "named",
        "schema or calls",
        "schema",
        "none",
        "required and schema",
    ],
)
def test_b0_9_the_grammar_is_what_choice_and_schema_say(asked, allowed, refused):
    assert [text for text in allowed if not follows(text, asked)] == []
    assert [text for text in refused if follows(text, asked)] == []


@ours
@pytest.mark.parametrize(
    "arguments",
    [{"city": "Rome", "days": 9}, {"city": 1}, {}, {"city": "Rome", "other": 1}, [1], "Rome"],
)
def test_b0_9_arguments_are_valid_under_the_parameters(arguments):
    assert not follows(call("get_weather", arguments), prompt())


@ours
def test_where_nothing_is_constrained_there_is_no_grammar():
    assert calls.grammar(prompt(tools=[])) is None
    assert calls.grammar(prompt(tool_choice="none")) is None
    with pytest.raises(EngineFailed):
        calls.Guard(prompt(tools=[]))


@ours
@pytest.mark.parametrize("asked", [prompt(tool_choice="required"), prompt(tools=[], schema={"const": ROME})])
def test_b0_9_reasoning_is_free_and_comes_before_the_grammar(asked):
    answer = ROME if asked.tools else json.dumps(ROME)
    for thinking, before in (
        ("no", [""]),
        ("may", ["", "<think>\nA <tool_call>?\n</think>\n\n", "<think></think>"]),
        ("open", ["Hm\n</think>\n\n", "</think>"]),
    ):
        for text in ("", "<think>\nA <tool_call>?\n</think>\n\n", "<think></think>", "Hm\n</think>\n\n", "</think>"):
            may_begin = (thinking == "open" and "</think>" in text) or text in before
            assert follows(text + answer, asked, thinking=thinking) == may_begin


@ours
def test_b0_9_markers_and_ends_that_are_tokens_are_named_by_their_ids():
    rules = calls.grammar(
        prompt(tool_choice="required"),
        markers={"<tool_call>": 7, "</tool_call>": 8, "<think>": 9, "</think>": 10},
        end_tokens=[2, 3],
        thinking="may",
    )
    assert "(<[2]> | <[3]>)?" in rules
    assert not any(f'"{marker}"' in rules for marker in calls.MARKERS)
    assert all(f"<[{token}]>" in rules for token in (7, 8, 9, 10))
    for each in (rules, calls.grammar(prompt(), markers={"<tool_call>": 7})):
        assert not LLMatcher.validate_grammar_with_warnings(each)[0]


@ours
def test_b0_11_a_guard_notices_an_engine_that_does_not_follow():
    guard = calls.Guard(prompt(tool_choice="required"))
    assert guard.allows(ROME[:20])
    assert not guard.may_end
    assert guard.allows(ROME[20:])
    assert guard.may_end
    assert not guard.allows("and so on")


# The reader


def read(pieces, *, end, **more):
    """What the reader makes of the pieces, joined: texts, and calls with their arguments and whether they ended."""
    said = []
    reader = calls.Calls(prompt(**more), said.append)
    for piece in pieces:
        reader(Text(piece, 5))
    reader(end)
    assert said.pop() == end
    joined = []
    for output in said:
        assert isinstance(output, CallEnded) or output.tokens == 5
        if isinstance(output, Text):
            assert output.text
            if joined and isinstance(joined[-1], str):
                joined[-1] += output.text
            else:
                joined.append(output.text)
        elif isinstance(output, CallStarted):
            joined.append([output.name, "", False])
        elif isinstance(output, CallArguments):
            assert output.text
            joined[-1][1] += output.text
        else:
            joined[-1][2] = True
    return joined


TRICKY = '{"a": "}\\"</tool_call><tool_call>\\\\", "b": [1, {}], "é👩‍👧": "\\u00e9"}'
LONG = f'<tool_call>\n{{"name": "get", "arguments": {TRICKY}}}\n</tool_call>'
STOPPED, CUT = Finished("stop"), Finished("length")
CASES = [
    ("", STOPPED, []),
    ("Hello", STOPPED, ["Hello"]),
    ("  Hello \n", STOPPED, ["  Hello \n"]),
    (LONG, STOPPED, [["get", TRICKY, True]]),
    (f"{LONG}\n{LONG}", STOPPED, [["get", TRICKY, True]] * 2),
    (f" {LONG}{LONG}\n\n", STOPPED, [["get", TRICKY, True]] * 2),
    (f"Let me see.\n\n{LONG}", STOPPED, ["Let me see.", ["get", TRICKY, True]]),
    (f"{LONG}\nDone.", STOPPED, [["get", TRICKY, True], "\nDone."]),
    ('<tool_call>{"name":"get","arguments":{}}</tool_call>', STOPPED, [["get", "{}", True]]),
    # what only looks like a call
    ("a < b, <tool_c", STOPPED, ["a < b, <tool_c"]),
    ("a < b, <tool_c", CUT, ["a < b, <tool_c"]),
    ("Write <tool_call> and", STOPPED, ["Write <tool_call> and"]),
    ("Write <tool_call>", STOPPED, ["Write <tool_call>"]),
    (call("nope", {}), STOPPED, [call("nope", {})]),
    (call("get", [1]), STOPPED, [call("get", [1])]),
    (f"<tool_call>{UTC}", STOPPED, ["<tool_call>", ["get_time", '{"zone": "UTC"}', True]]),
    # what is cut
    (LONG[:-1], CUT, [["get", TRICKY, True]]),
    (LONG[:-13], CUT, [["get", TRICKY, True]]),
    (LONG[:-14], CUT, [["get", TRICKY, False]]),
    (LONG[:-15], CUT, [["get", TRICKY[:-1], False]]),
    (LONG[:50], CUT, [["get", TRICKY[:9], False]]),
    (LONG[:30], CUT, []),
    (LONG[:30], Broken({}), []),
    (f"{LONG}\n<tool", CUT, [["get", TRICKY, True]]),
    (f"{LONG}\n<tool_call>\n", CUT, [["get", TRICKY, True]]),
]


@ours
@pytest.mark.parametrize(("text", "end", "told"), CASES, ids=lambda value: repr(value)[:40])
def test_b0_7_calls_are_told_from_text_wherever_it_is_divided(text, end, told):
    assert read([text], end=end) == told
    assert read(text, end=end) == told
    chance = random.Random(text)
    for _ in range(100):
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(12)))
        pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(pieces, end=end) == told, pieces


@ours
def test_b0_10_of_a_required_call_that_is_cut_nothing_is_told():
    assert read(["<tool_"], end=CUT, tool_choice="required") == []
    assert read([ROME[:16]], end=CUT, tool_choice=NamedTool(name="get_weather")) == []


@ours
def test_b7_2_arguments_are_told_as_they_come():
    said = []
    reader = calls.Calls(prompt(), said.append)
    for piece in ('<tool_call>\n{"name": "get", "arguments": {"a', '": 1', "}}\n</tool_call>"):
        reader(Text(piece))
    assert said == [CallStarted("get"), CallArguments('{"a'), CallArguments('": 1'), CallArguments("}"), CallEnded()]


@ours
@pytest.mark.parametrize("more", [{"tools": []}, {"tool_choice": "none"}])
def test_without_tools_everything_is_passed_on(more):
    outputs = [PromptProgress(1, 2), ReasoningText("a"), Text(ROME), Text("<tool"), Finished("stop")]
    said = []
    reader = calls.Calls(prompt(**more), said.append)
    for output in outputs:
        reader(output)
    assert said == outputs


@ours
def test_what_is_no_text_is_passed_on():
    outputs = [PromptProgress(1, 2), ReasoningText("<tool_call>"), Broken({}, None)]
    said = []
    reader = calls.Calls(prompt(), said.append)
    for output in outputs:
        reader(output)
    assert said == outputs


# Turns for templates that know no tools

CONVERSATION = [
    Turn("system", "Be brief."),
    Turn("user", "Weather?"),
    Turn("assistant", "I look.", [Call("get_weather", '{"city": "Rome"}'), Call("get", "not JSON")]),
    Turn("tool", "sunny", name="get_weather"),
    Turn("tool", "{}", name="get"),
    Turn("assistant", "", [Call("get_time", "{}")]),
    Turn("tool", "12", name="get_time"),
    Turn("assistant", "Sunny."),
]


@ours
def test_b0_9_a_template_without_tools_has_them_in_hermes_form():
    system, *turns = calls.hermes_turns(prompt(turns=CONVERSATION))

    assert system.role == "system"
    assert system.content.startswith("Be brief.\n\n")
    for definition in calls.definitions(prompt()):
        assert json.dumps(definition) in system.content.splitlines()
    assert turns == [
        Turn("user", "Weather?"),
        Turn(
            "assistant",
            'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "get", "arguments": not JSON}\n</tool_call>',
        ),
        Turn("user", "<tool_response>\nsunny\n</tool_response>\n<tool_response>\n{}\n</tool_response>"),
        Turn("assistant", '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'),
        Turn("user", "<tool_response>\n12\n</tool_response>"),
        Turn("assistant", "Sunny."),
    ]
    assert CONVERSATION[0] == Turn("system", "Be brief.")


@ours
def test_b0_9_without_tools_or_with_none_the_system_is_told_nothing():
    plain = [Turn("user", "?")]
    assert calls.hermes_turns(prompt(tools=[])) == plain
    assert calls.hermes_turns(prompt(tool_choice="none")) == plain
    assert [turn.role for turn in calls.hermes_turns(prompt())] == ["system", "user"]


@ours
def test_a_tool_without_parameters_takes_any_object():
    assert calls.definitions(prompt(tools=[ANYTHING])) == [
        {"type": "function", "function": {"name": "get", "description": "", "parameters": {"type": "object"}}}
    ]


# Reasoning


@ours
@pytest.mark.parametrize(
    ("thinking", "text", "reasoning", "answer"),
    [
        ("no", "\nHello <think>", "", "\nHello <think>"),
        ("may", "\nHello", "", "\nHello"),
        ("may", "<thin", "", "<thin"),
        ("may", " <think>\nHm < 3.\n</think>\n\nHello </think>", "Hm < 3.\n", "Hello </think>"),
        ("may", "<think></think>Hello", "", "Hello"),
        ("open", "\nHm.</thin</think>\n\n\nHello", "Hm.</thin", "Hello"),
        ("open", "Hm.</thin", "Hm.</thin", ""),
        ("open", "", "", ""),
    ],
)
def test_b2_4_reasoning_is_told_from_the_answer_wherever_it_is_divided(thinking, text, reasoning, answer):
    chance = random.Random(text)
    for _ in range(100):
        thoughts = Thoughts(thinking)
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(10)))
        pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        told = [*map(thoughts.take, pieces), thoughts.rest()]
        assert tuple(map("".join, zip(*told, strict=True))) == (reasoning, answer)


@ours
def test_b0_9_a_rendered_prompt_says_whether_reasoning_is_open():
    assert thinking_after("…<|im_start|>assistant\n<think>\n") == "open"
    assert thinking_after("…<|im_start|>assistant\n<think>\n\n</think>\n\n") == "no"
    assert thinking_after("…<|im_start|>assistant\n") == "may"
