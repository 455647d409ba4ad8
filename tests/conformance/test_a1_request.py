"""A1: the request."""

import json
import uuid

import pytest

from .api import WEATHER, message, said, structured

pytestmark = pytest.mark.chapter6

FINAL = ("completed", "incomplete", "failed", "cancelled")
COLOR = {
    "type": "object",
    "properties": {"color": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["color"],
    "additionalProperties": False,
}


def test_a1_1_a_request_with_all_its_headers(lmsp):
    headers = {"Idempotency-Key": uuid.uuid4().hex, "LMSP-Version": "1.0"}

    answer = lmsp.post("/responses", lmsp.ask(), headers=headers)

    assert answer.status_code == 200
    assert answer.headers["Content-Type"].partition(";")[0] == "application/json"


@pytest.mark.parametrize("name", ["model", "input"])
def test_a1_2_and_a1_3_what_is_required(lmsp, name):
    answer = lmsp.post("/responses", lmsp.ask(**{name: None}))

    assert 400 <= answer.status_code < 500


def test_a1_3_messages_of_all_roles(lmsp):
    turns = [
        message("You answer briefly.", "system"),
        message("Which fruit is yellow?"),
        message("The banana.", "assistant"),
        message("And which is red?"),
    ]

    assert lmsp.respond(lmsp.ask(input=turns))["status"] in FINAL


def test_a1_3_a_message_of_several_parts(lmsp):
    parts = [{"type": "input_text", "text": "Name three "}, {"type": "input_text", "text": "fruits."}]

    assert lmsp.respond(lmsp.ask(input=[message("") | {"content": parts}]))["status"] in FINAL


def test_a1_4_text_in_every_script(lmsp):
    assert lmsp.respond(lmsp.ask('Grüße! 你好 مرحبا नमस्ते 👩‍👧 \\ " \t\n'))["status"] in FINAL


def test_a1_5_a_request_is_not_streamed_unless_it_says_so(lmsp):
    for request in (lmsp.ask(), lmsp.ask(stream=False)):
        assert lmsp.post("/responses", request).json()["object"] == "response"


@pytest.mark.parametrize("bound", [1, 5])
def test_a1_5_max_output_tokens_is_an_upper_bound(lmsp, bound):
    response = lmsp.respond(lmsp.ask("Tell me a long story.", max_output_tokens=bound))

    assert response["usage"]["output_tokens"] <= bound


@pytest.mark.parametrize("temperature", [0, 0.7, 1])
def test_a1_5_temperature(lmsp, temperature):
    assert lmsp.respond(lmsp.ask(temperature=temperature))["status"] in FINAL


def test_a1_6_text_is_a_format(lmsp):
    assert lmsp.respond(lmsp.ask(response_format={"type": "text"}))["status"] in FINAL


@pytest.mark.needs("structured_output")
def test_a1_6_structured_output(lmsp):
    response = lmsp.respond(lmsp.ask("Which color?", max_output_tokens=500, response_format=structured(COLOR)))

    assert response["status"] == "completed"
    assert json.loads(said(response))["color"] in ("red", "blue")


@pytest.mark.needs("tools")
def test_a1_7_tools(lmsp):
    request = lmsp.ask(tools=[WEATHER], tool_choice="auto")

    assert lmsp.respond(request)["status"] in FINAL


def test_a1_8_store_is_taken_from_everyone(lmsp):
    for store in (False, True):
        assert lmsp.respond(lmsp.ask(store=store))["status"] in FINAL


@pytest.mark.needs("conversations")
def test_a1_8_a_stored_response_can_be_fetched_and_continued(lmsp):
    first = lmsp.respond(lmsp.ask(store=True))
    second = lmsp.respond(lmsp.ask("Name one more.", previous_response_id=first["id"]))

    assert lmsp.get(f"/responses/{first['id']}").json()["id"] == first["id"]
    assert second["usage"]["input_tokens"] > lmsp.size([message("Name one more.")])


def test_a1_9_extensions(lmsp):
    assert lmsp.respond(lmsp.ask(extensions={}))["status"] in FINAL


@pytest.mark.parametrize(
    ("capability", "members"),
    [
        ("tools", {"tools": [WEATHER]}),
        ("structured_output", {"response_format": structured(COLOR)}),
        ("conversations", {"previous_response_id": "resp_01J8M6Q4W2T7N5R3V9X1Z8B0DF"}),
    ],
)
def test_a1_10_what_the_model_lacks_is_refused(lmsp, capability, members):
    if not lmsp.tells or capability in lmsp.capabilities:
        pytest.skip(f"nobody says that the model lacks {capability}")

    answer = lmsp.post("/responses", lmsp.ask(**members))

    assert answer.status_code == 400
    assert "unsupported_capability" in answer.text


@pytest.mark.parametrize("streamed", [False, True])
def test_a1_11_what_does_not_fit_is_refused(lmsp, streamed):
    words = 2 * lmsp.context_length if lmsp.context_length else 300_000

    answer = lmsp.post("/responses", lmsp.ask("word " * words, stream=streamed))

    assert answer.status_code == 400
    assert "context_length_exceeded" in answer.text


def test_a1_12_a_connection_keeps_no_conversation(lmsp):
    sizes = [lmsp.size([message("Name three fruits.")]) for _ in range(2)]

    assert sizes[0] == sizes[1]
