"""From items to what an engine is asked (A1.3, B0.4, B0.10, B6.2, B6.3)."""

import json

import pytest

from lmsp_jupyter.engines import Call, Prompt, Turn
from lmsp_jupyter.errors import BadRequest
from lmsp_jupyter.parsing import parse_request
from lmsp_jupyter.prompts import MAX_TOKENS, prompt_of, size
from lmsp_jupyter.protocol import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Message,
    NamedTool,
    Options,
    OutputText,
    Reasoning,
    Response,
    SummaryText,
    Tool,
)

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def request(*items, **more):
    return parse_request(json.dumps({"model": "m", "input": list(items), **more}).encode())


def turns(*items, chain=(), **more):
    return prompt_of(request(*items, **more), chain).turns


def going_on(chain, *items, **more):
    return request(*items, previous_response_id=chain[-1][1].id, **more)


def message(role, text, **more):
    return {"role": role, "content": text, **more}


def call(call_id="call_1", name="f", arguments="{}"):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id="call_1", text="1"):
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def refusal(*items, chain=(), **more):
    with pytest.raises(BadRequest) as caught:
        prompt_of(request(*items, **more), chain)
    return caught.value


# Earlier responses, as they are kept.


def link(said, *items, status="completed"):
    """A response to a user's words, with these items."""
    response = Response(id="resp_1", status=status, output=list(items))
    return [Message(role="user", content=[InputText(text=said)])], response


def answer(text, status="completed"):
    return Message(id="msg_1", role="assistant", content=[OutputText(text=text)], status=status)


def made_call(call_id="call_1"):
    return FunctionCall(id="fc_1", call_id=call_id, name="f", arguments="{}", status="completed")


# Turns.


@chapter6
def test_a1_3_messages_become_turns():
    prompt = prompt_of(request(message("user", "hi"), message("assistant", "yes?"), message("user", "bye")))

    assert prompt == Prompt(turns=[Turn("user", "hi"), Turn("assistant", "yes?"), Turn("user", "bye")])


@chapter6
def test_a1_3_the_parts_of_a_message_are_one_text():
    parts = [{"type": "input_text", "text": "wh"}, {"type": "input_text", "text": "y?"}]

    assert turns(message("user", parts)) == [Turn("user", "why?")]


@ours
def test_b6_2_system_messages_are_joined_in_front():
    assert turns(message("user", "hi"), message("system", "a"), message("developer", "b")) == [
        Turn("system", "a\n\nb"),
        Turn("user", "hi"),
    ]


@ours
def test_b7_4_instructions_stand_before_every_system_message():
    assert turns(message("system", "a"), message("user", "hi"), instructions="Be brief.") == [
        Turn("system", "Be brief.\n\na"),
        Turn("user", "hi"),
    ]


@ours
def test_b7_4_empty_instructions_are_none():
    assert turns(message("user", "hi"), instructions="") == [Turn("user", "hi")]


@ours
def test_b0_2_earlier_reasoning_is_accepted_and_not_shown_again():
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}

    assert turns(reasoning, message("user", "hi")) == [Turn("user", "hi")]


@ours
def test_b0_2_an_answer_without_a_word_is_no_turn():
    assert turns(message("user", "hi"), message("assistant", []), message("user", "?")) == [
        Turn("user", "hi"),
        Turn("user", "?"),
    ]


@chapter6
def test_a5_5_calls_and_their_outputs_become_turns():
    assert turns(message("user", "hi"), call(arguments='{"a":1}'), output(text="2"), message("user", "so?")) == [
        Turn("user", "hi"),
        Turn("assistant", "", calls=[Call("f", '{"a":1}')]),
        Turn("tool", "2", name="f"),
        Turn("user", "so?"),
    ]


@chapter6
def test_a5_5_a_text_and_the_calls_after_it_are_one_turn():
    items = [message("assistant", "Let me see."), call("a", "f"), call("b", "g"), output("a", "1"), output("b", "2")]

    assert turns(message("user", "hi"), *items) == [
        Turn("user", "hi"),
        Turn("assistant", "Let me see.", calls=[Call("f", "{}"), Call("g", "{}")]),
        Turn("tool", "1", name="f"),
        Turn("tool", "2", name="g"),
    ]


@ours
def test_a_call_after_an_output_is_a_turn_of_its_own():
    assert turns(message("user", "hi"), call("a"), output("a"), call("b"), output("b"))[1:] == [
        Turn("assistant", "", calls=[Call("f", "{}")]),
        Turn("tool", "1", name="f"),
        Turn("assistant", "", calls=[Call("f", "{}")]),
        Turn("tool", "1", name="f"),
    ]


@ours
def test_reasoning_between_a_text_and_its_call_is_not_in_the_way():
    reasoning = {"type": "reasoning", "summary": []}

    assert turns(message("user", "hi"), message("assistant", "So."), reasoning, call())[1:] == [
        Turn("assistant", "So.", calls=[Call("f", "{}")])
    ]


@ours
def test_b0_10_arguments_that_are_not_json_are_passed_as_they_are():
    assert turns(message("user", "hi"), call(arguments='{"a":'))[1].calls == [Call("f", '{"a":')]


@ours
def test_b0_10_a_call_without_output_is_accepted():
    assert turns(message("user", "hi"), call(), message("user", "never mind")) == [
        Turn("user", "hi"),
        Turn("assistant", "", calls=[Call("f", "{}")]),
        Turn("user", "never mind"),
    ]


@ours
@pytest.mark.parametrize(
    ("items", "pointer"),
    [
        ([output()], "/input/1/call_id"),
        ([output(), call()], "/input/1/call_id"),
        ([call("a"), output("b")], "/input/2/call_id"),
        ([call(), call()], "/input/2/call_id"),
        ([call(), output(), output()], "/input/3/call_id"),
        ([call(), output(), call()], "/input/3/call_id"),
    ],
    ids=["no call", "the call is later", "another call", "two calls", "two outputs", "a call_id again"],
)
def test_b0_10_calls_and_outputs_that_do_not_fit_are_refused(items, pointer):
    problem = refusal(message("user", "hi"), *items)

    assert problem.code == "invalid_request"
    assert problem.param == pointer


# What goes with the turns.


@ours
def test_b2_4_sampling_goes_to_the_engine():
    sampling = {"top_p": 0.5, "seed": 7, "stop": ["\n"]}
    prompt = prompt_of(
        request(message("user", "hi"), temperature=0, max_output_tokens=5, extensions={"lmsp_jupyter": sampling})
    )

    assert (prompt.temperature, prompt.max_output_tokens) == (0, 5)
    assert prompt.options == Options(**sampling)


@ours
def test_b0_5_more_tokens_than_an_engine_counts_are_as_many_as_it_counts():
    assert prompt_of(request(message("user", "hi"), max_output_tokens=10**20)).max_output_tokens == MAX_TOKENS


@chapter6
@pytest.mark.parametrize(
    ("choice", "meant"),
    [("none", "none"), ("required", "required"), ({"type": "function", "name": "f"}, NamedTool(name="f"))],
    ids=str,
)
def test_a5_3_tools_and_their_choice_go_to_the_engine(choice, meant):
    prompt = prompt_of(request(message("user", "hi"), tools=[{"type": "function", "name": "f"}], tool_choice=choice))

    assert prompt.tools == [Tool(name="f")]
    assert prompt.tool_choice == meant


@ours
@pytest.mark.parametrize(("said", "parallel"), [(None, True), (True, True), (False, False)])
def test_b2_4_several_calls_unless_it_is_said_otherwise(said, parallel):
    assert prompt_of(request(message("user", "hi"), parallel_tool_calls=said)).parallel is parallel


@chapter6
def test_a1_6_the_schema_goes_to_the_engine():
    chosen = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}

    assert prompt_of(request(message("user", "hi"), response_format=chosen)).schema == SCHEMA
    assert prompt_of(request(message("user", "hi"))).schema is None


# Chains of responses.


@ours
@pytest.mark.parametrize("status", ["completed", "incomplete", "cancelled"])
def test_b6_2_inputs_and_outputs_of_earlier_responses_are_carried(status):
    chain = [link("one", answer("uno")), link("two", answer("du", "incomplete"), status=status)]

    assert prompt_of(going_on(chain, message("user", "three")), chain) == Prompt(
        turns=[
            Turn("user", "one"),
            Turn("assistant", "uno"),
            Turn("user", "two"),
            Turn("assistant", "du"),
            Turn("user", "three"),
        ]
    )


@ours
def test_b6_2_instructions_tools_and_sampling_are_not_carried():
    items, response = link("one", answer("uno"))
    response.instructions, response.tools, response.temperature = "Be brief.", [Tool(name="f")], 0.1
    chain = [(items, response)]

    prompt = prompt_of(going_on(chain, message("user", "two")), chain)

    assert prompt.turns[0] == Turn("user", "one")
    assert (prompt.tools, prompt.temperature) == ([], None)


@ours
def test_b6_2_system_messages_of_the_whole_chain_are_joined_in_front():
    system = Message(role="system", content=[InputText(text="a")])
    items, response = link("one", answer("uno"))
    chain = [([system, *items], response)]

    prompt = prompt_of(going_on(chain, message("system", "b"), message("user", "two"), instructions="First."), chain)

    assert prompt.turns[0] == Turn("system", "First.\n\na\n\nb")
    assert [turn.role for turn in prompt.turns[1:]] == ["user", "assistant", "user"]


@ours
def test_b6_2_tool_pairs_reach_over_a_chain():
    chain = [link("one", made_call())]

    assert prompt_of(going_on(chain, output()), chain).turns == [
        Turn("user", "one"),
        Turn("assistant", "", calls=[Call("f", "{}")]),
        Turn("tool", "1", name="f"),
    ]


@ours
@pytest.mark.parametrize(
    ("items", "pointer"),
    [
        ([output("call_2")], "/input/0/call_id"),
        ([message("user", "hi"), call()], "/input/1/call_id"),
    ],
    ids=["no call", "a call_id again"],
)
def test_b0_10_the_whole_context_counts(items, pointer):
    chain = [link("one", made_call())]

    assert refusal(*items, chain=chain, previous_response_id="resp_1").param == pointer


@ours
def test_b0_10_an_output_that_an_earlier_request_gave_is_not_given_again():
    first = link("one", made_call())
    given = [FunctionCallOutput(call_id="call_1", output="1")]
    chain = [first, (given, Response(id="resp_2", status="completed", output=[answer("So.")]))]

    assert refusal(output(), chain=chain, previous_response_id="resp_2").param == "/input/0/call_id"


@ours
def test_b6_2_reasoning_of_earlier_responses_is_not_shown_again():
    reasoning = Reasoning(id="rs_1", summary=[SummaryText(text="Hm.")], status="completed")
    chain = [link("one", reasoning, answer("uno"))]

    assert prompt_of(going_on(chain, message("user", "two")), chain).turns == [
        Turn("user", "one"),
        Turn("assistant", "uno"),
        Turn("user", "two"),
    ]


# Going on.


@ours
@pytest.mark.parametrize("status", ["incomplete", "cancelled"])
def test_b6_3_without_an_input_the_last_message_is_gone_on_with(status):
    chain = [link("one", answer("un", "incomplete"), status=status)]

    prompt = prompt_of(going_on(chain), chain)

    assert prompt.continue_last
    assert prompt.turns[-1] == Turn("assistant", "un")


@ours
def test_b6_3_a_final_answer_that_is_incomplete_is_gone_on_with():
    prompt = prompt_of(request(message("user", "one"), message("assistant", "un", status="incomplete")))

    assert prompt.continue_last
    assert prompt.turns[-1] == Turn("assistant", "un")


@ours
@pytest.mark.parametrize(
    "items",
    [
        [message("user", "one", status="incomplete")],
        [message("user", "one"), message("assistant", "uno")],
        [message("user", "one"), message("assistant", "uno", status="completed")],
        [message("user", "one"), message("assistant", "un", status="incomplete"), message("user", "two")],
        [message("user", "one"), message("assistant", [], status="incomplete")],
        [message("user", "one"), message("assistant", "un", status="incomplete"), call()],
    ],
    ids=["a user's", "no status", "completed", "not the last", "without a word", "before a call"],
)
def test_b6_3_anything_else_is_answered_anew(items):
    assert not prompt_of(request(*items)).continue_last


@ours
def test_b6_3_an_input_after_a_response_that_was_cut_is_answered_anew():
    chain = [link("one", answer("un", "incomplete"), status="incomplete")]

    assert not prompt_of(going_on(chain, message("user", "two")), chain).continue_last


@ours
@pytest.mark.parametrize(
    "output",
    [[], [answer("", "incomplete")], [Reasoning(id="rs_1", summary=[SummaryText(text="Hm")], status="incomplete")]],
    ids=["nothing", "an empty message", "reasoning"],
)
def test_b6_3_a_response_that_was_cut_before_its_first_word_is_answered_anew(output):
    chain = [link("one", *output, status="incomplete")]

    prompt = prompt_of(going_on(chain), chain)

    assert not prompt.continue_last
    assert prompt.turns == [Turn("user", "one")]


@ours
def test_b6_3_a_completed_response_has_nothing_to_go_on_with():
    problem = refusal(chain=[link("one", answer("uno"))], previous_response_id="resp_1")

    assert problem.code == "invalid_request"
    assert problem.param == "/input"


@ours
def test_b6_3_a_response_that_ends_with_a_call_wants_its_output():
    problem = refusal(chain=[link("one", made_call(), status="incomplete")], previous_response_id="resp_1")

    assert problem.param == "/input"
    assert "function_call_output" in problem.detail


@ours
def test_b6_3_an_answer_under_a_schema_is_not_gone_on_with():
    chosen = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    chain = [link("one", answer('{"a":', "incomplete"), status="incomplete")]

    assert refusal(chain=chain, previous_response_id="resp_1", response_format=chosen).param == "/response_format"
    cut = message("assistant", '{"a":', status="incomplete")
    assert refusal(message("user", "one"), cut, response_format=chosen).param == "/response_format"


# Size.


@ours
@pytest.mark.parametrize("text", ["hi", "", "歪" * 100, "👩‍👧"])
def test_b0_4_a_token_is_at_least_a_byte(text):
    assert size(Prompt(turns=[Turn("user", text)])) >= len(text.encode())


@ours
def test_b0_4_the_size_is_that_of_all_turns_and_their_calls():
    alone = size(Prompt(turns=[Turn("user", "a" * 100)]))
    assistant = Turn("assistant", "", calls=[Call("f" * 10, "b" * 200)])

    both = size(Prompt(turns=[Turn("user", "a" * 100), assistant]))

    assert both >= alone + 210


@ours
def test_b0_4_the_size_of_tools_in_a_template_is_not_known():
    assert size(Prompt(turns=[Turn("user", "hi")], tools=[Tool(name="f")])) is None
