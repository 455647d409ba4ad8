"""The wire types (A2.2, B0.1, B7.3): ids, names, and the shape of what is sent."""

import re

import msgspec
import pytest

from lmsp_jupyter.protocol import (
    MAX_NAME,
    FunctionCall,
    InputText,
    JSONSchema,
    JSONSchemaFormat,
    Message,
    OutputText,
    Reasoning,
    Request,
    Response,
    SummaryText,
    Task,
    Usage,
    closest,
    new_id,
)

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours


@ours
@pytest.mark.parametrize("prefix", ["resp", "msg", "fc", "call", "rs", "task"])
def test_b0_1_an_id_is_a_prefix_and_a_ulid(prefix):
    ids = {new_id(prefix) for _ in range(100)}

    assert len(ids) == 100
    assert all(re.fullmatch(rf"{prefix}_[0-9A-HJKMNP-TV-Z]{{26}}", id) for id in ids)


@ours
def test_closest_names_what_may_have_been_meant_best_first():
    known = ["qwen3:14b", "qwen3:4b", "smollm2:135m"]

    assert closest("qwen3:14", known)[0] == "qwen3:14b"
    assert closest("zzz", known) == []


@ours
def test_closest_never_compares_what_is_no_name():
    name = "a" * (MAX_NAME + 1)

    assert closest(name, [name]) == []


@chapter6
def test_a2_2_a_response_has_the_members_of_chapter_6():
    told = msgspec.to_builtins(Response(id="resp_1", created_at=1, model="m"))

    assert told.keys() >= {
        *("id", "object", "created_at", "status", "model"),
        *("output", "usage", "error", "incomplete_details"),
    }
    assert (told["object"], told["status"], told["output"]) == ("response", "in_progress", [])
    assert told["usage"] is told["error"] is told["incomplete_details"] is None


@ours
def test_b7_3_a_response_also_has_the_members_of_neighbouring_clients():
    told = msgspec.to_builtins(Response(id="resp_1"))

    assert (
        told
        | {
            "completed_at": None,
            "previous_response_id": None,
            "instructions": None,
            "tools": [],
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": True,
            "text": {"format": {"type": "text"}, "verbosity": None},
            "top_p": None,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "top_logprobs": 0,
            "temperature": None,
            "reasoning": None,
            "max_output_tokens": None,
            "max_tool_calls": None,
            "store": False,
            "background": False,
            "service_tier": "default",
            "metadata": {},
            "safety_identifier": None,
            "prompt_cache_key": None,
        }
        == told
    )


@ours
def test_b7_3_usage_also_has_its_details():
    told = msgspec.to_builtins(Usage(input_tokens=1, output_tokens=2, total_tokens=3))

    assert told["input_tokens_details"]["cached_tokens"] == 0
    assert told["output_tokens_details"]["reasoning_tokens"] == 0


@ours
def test_b7_5_only_a_response_in_the_background_has_a_task_id():
    assert "task_id" not in msgspec.to_builtins(Response(id="resp_1"))
    assert msgspec.to_builtins(Response(id="resp_1", task_id="task_1"))["task_id"] == "task_1"


@ours
def test_b3_3_a_task_in_a_listing_has_no_response():
    task = Task(id="task_1", status="queued", created_at=1, model="m", response_id="resp_1")

    assert "response" not in msgspec.to_builtins(task)
    task.response = None
    assert msgspec.to_builtins(task)["response"] is None


@chapter6
@pytest.mark.parametrize(
    "item",
    [
        Message(id="msg_1", role="assistant", content=[OutputText(text="So.")], status="completed"),
        Message(role="user", content=[InputText(text="Hi.")]),
        Reasoning(id="rs_1", summary=[SummaryText(text="Hm.")], status="completed"),
        FunctionCall(id="fc_1", call_id="call_1", name="f", arguments="{}", status="completed"),
    ],
    ids=lambda item: item.__struct_config__.tag,
)
def test_a2_3_an_item_says_its_type_and_is_read_again(item):
    told = msgspec.json.encode(item)

    assert msgspec.json.decode(told)["type"] == item.__struct_config__.tag
    assert msgspec.json.decode(told, type=type(item)) == item


@ours
def test_a_text_is_its_parts_joined():
    said = Message(role="assistant", content=[OutputText(text="Be"), OutputText(text="cause.")])
    thought = Reasoning(summary=[SummaryText(text="Hm"), SummaryText(text="m.")])

    assert said.text == "Because."
    assert thought.text == "Hmm."
    assert Response(id="resp_1", output=[thought, said, said]).text == "Because.Because."


@ours
def test_a_request_knows_its_schema():
    chosen = JSONSchemaFormat(json_schema=JSONSchema(name="n", schema={"type": "object"}))

    assert Request(model="m", input=[], response_format=chosen).schema == {"type": "object"}
    assert Request(model="m", input=[]).schema is None
