"""B0: the additions to chapter 6, but for tools and schemas (`test_b0_tools`, `test_b0_schemas`)."""

import re

import httpx
import pytest

from . import sse
from .api import WEATHER, key, message, refused, said, structured, until

pytestmark = pytest.mark.ours

ULID = r"[0-7][0-9A-HJKMNP-TV-Z]{25}"
STORY = "Tell me a long story."
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def user(content):
    return {"type": "message", "role": "user", "content": content}


# B0.1


def test_b0_1_ids_are_a_prefix_and_a_ulid(lmsp):
    response = lmsp.respond(lmsp.ask(max_output_tokens=4))
    call = lmsp.respond(lmsp.ask(tools=[WEATHER], tool_choice="required", max_output_tokens=120))["output"][-1]
    task = lmsp.finish(lmsp.ask(max_output_tokens=1))

    assert re.fullmatch(f"resp_{ULID}", response["id"])
    assert re.fullmatch(f"msg_{ULID}", response["output"][0]["id"])
    assert re.fullmatch(f"fc_{ULID}", call["id"])
    assert re.fullmatch(f"call_{ULID}", call["call_id"])
    assert re.fullmatch(f"task_{ULID}", task["id"])
    assert re.fullmatch(f"resp_{ULID}", task["response_id"])


# B0.2


@pytest.mark.parametrize(
    "lenient",
    [
        "Name three fruits.",
        [user("Name three fruits.")],
        [{"role": "user", "content": "Name three fruits."}],
        [{"role": "user", "content": [{"type": "input_text", "text": "Name three fruits."}]}],
    ],
)
def test_b0_2_plain_strings_and_messages_without_a_type(lmsp, lenient):
    assert lmsp.size(lenient) == lmsp.size([message("Name three fruits.")])


def test_b0_2_developer_is_read_as_system(lmsp):
    system, developer = ([message("Be brief.", role), message("Hello")] for role in ("system", "developer"))

    assert lmsp.size(developer) == lmsp.size(system)


def test_b0_2_null_means_absent(lmsp):
    optional = ("stream", "response_format", "tools", "tool_choice", "store", "previous_response_id", "extensions")
    absent = lmsp.ask()
    nulls = dict.fromkeys(optional)

    assert said(lmsp.respond(absent | nulls)) == said(lmsp.respond(absent))


@pytest.mark.parametrize("strict", [True, False, None])
def test_b0_2_strict_is_accepted_on_a_tool_and_a_schema(lmsp, strict):
    schema = structured({"enum": ["red"]})
    schema["json_schema"]["strict"] = strict

    assert said(lmsp.respond(lmsp.ask(response_format=schema))) == '"red"'
    lmsp.respond(lmsp.ask(tools=[WEATHER | {"strict": strict}], tool_choice="none", max_output_tokens=1))


def test_b0_2_items_are_accepted_back_as_received(lmsp):
    first = lmsp.respond(lmsp.ask(max_output_tokens=4))
    thought = {"type": "reasoning", "id": "rs_01J8M6Q4W2T7N5R3V9X1Z8B0DF", "summary": [], "status": "completed"}
    empty = message("", "assistant") | {"id": "msg_01J8M6Q4W2T7N5R3V9X1Z8B0DF", "content": [], "status": "incomplete"}

    context = [message("Name three fruits."), thought, *first["output"], message("Go on."), empty, message("Go on.")]

    assert lmsp.size(context) > lmsp.size([message("Name three fruits.")])


def test_b0_2_unknown_members_of_echoed_items_and_parts_are_ignored(lmsp):
    plain = message("A banana.", "assistant")
    parts = [part | {"annotations": [], "logprobs": [], "confidence": 1} for part in plain["content"]]
    echoed = plain | {"mood": "glad", "content": parts}

    sizes = [lmsp.size([message("Name a fruit."), item, message("One more.")]) for item in (plain, echoed)]

    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("member", "closest"),
    [("max_tokens", "max_output_tokens"), ("temprature", "temperature"), ("response_fromat", "response_format")],
)
def test_b0_2_any_other_unknown_member_is_refused(lmsp, member, closest):
    problem = refused(lmsp.post("/responses", lmsp.ask(**{member: 1})), 400, "unknown_parameter", f"/{member}")

    assert closest in problem["detail"]


def test_b0_2_unknown_members_inside_are_refused_too(lmsp):
    in_tool = lmsp.post("/responses", lmsp.ask(tools=[WEATHER | {"paramters": {}}]))
    in_format = lmsp.post("/responses", lmsp.ask(response_format={"type": "text", "texture": "rough"}))

    refused(in_tool, 400, "unknown_parameter", "/tools/0/paramters")
    refused(in_format, 400, "unknown_parameter", "/response_format/texture")


# B0.3


@pytest.mark.parametrize(
    "part",
    [
        IMAGE,
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_file", "filename": "a.pdf", "file_data": "AAAA"},
    ],
)
def test_b0_3_content_that_is_not_text_is_refused(lmsp, part):
    text = {"type": "input_text", "text": "What is this?"}

    refused(lmsp.post("/responses", lmsp.ask(input=[user([text, part])])), 400, "unsupported_content")


@pytest.mark.parametrize("input", [[], "", [message("Hello", "tool")], [message("Hello", "narrator")]])
def test_b0_3_an_empty_input_and_other_roles_are_refused(lmsp, input):
    refused(lmsp.post("/responses", lmsp.ask(input=input)), 400, "invalid_request")


@pytest.mark.parametrize("half", [r"\ud83d", r"\udc69 ", r"a\ud83d\ud83d"])
def test_b0_3_lone_surrogates_are_refused(lmsp, half):
    body = f'{{"model": "{lmsp.model}", "input": "{half}"}}'
    answer = lmsp.post("/responses", content=body, headers={"Content-Type": "application/json"})

    refused(answer, 400, "invalid_request")


# B0.4


def filled(lmsp, tokens):
    """A text that takes so many tokens of the window."""

    def size(words):
        counted = lmsp.post("/responses/input_tokens", lmsp.ask(" ".join(["word"] * words)))
        assert counted.status_code == 200, counted.text
        return counted.json()["input_tokens"]

    words = tokens - size(1) + 1
    assert size(words) == tokens
    return " ".join(["word"] * words)


@pytest.mark.parametrize("streamed", [False, True])
def test_b0_4_an_input_that_leaves_no_room_for_a_token_is_refused(lmsp, streamed):
    answer = lmsp.post("/responses", lmsp.ask(filled(lmsp, lmsp.context_length), stream=streamed))

    refused(answer, 400, "context_length_exceeded")


def test_b0_4_an_input_that_leaves_room_for_one_token_is_accepted(lmsp):
    request = lmsp.ask(filled(lmsp, lmsp.context_length - 1), stream=True)

    with lmsp.open("POST", "/responses", json=request) as events:
        assert next(events).name == "response.created"


def test_b0_4_only_the_input_must_fit(lmsp):
    response = lmsp.respond(lmsp.ask(max_output_tokens=10 * lmsp.context_length))

    assert response["status"] in ("completed", "incomplete")


def test_b0_4_a_full_window_is_incomplete(lmsp):
    if lmsp.context_length > 2048:
        pytest.skip("this window takes long to fill")
    long = structured({"enum": ["one two three four five six seven eight nine ten"]})
    request = lmsp.ask(filled(lmsp, lmsp.context_length - 60), response_format=long, max_output_tokens=None)
    taken = lmsp.post("/responses/input_tokens", request).json()["input_tokens"]
    request["input"] = [message(filled(lmsp, lmsp.context_length - 60 + lmsp.context_length - taken - 4))]

    response = lmsp.respond(request)

    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "context_length"})


def test_b6_4_the_tokens_of_an_input_are_counted_without_generating(lmsp):
    request = lmsp.ask()

    counted = lmsp.post("/responses/input_tokens", request).json()

    size = lmsp.respond(request)["usage"]["input_tokens"]
    assert counted == {"object": "response.input_tokens", "input_tokens": size}


# B0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_output_tokens", value) for value in (0, -1, 1.5, "5", True)),
        *(("temperature", value) for value in (-0.1, 2.1, "1", True)),
        *(("stream", value) for value in (1, "true")),
        *(("store", value) for value in (0, "false")),
        *(("model", value) for value in (5, True)),
        ("input", 5),
    ],
)
def test_b0_5_values(lmsp, name, value):
    refused(lmsp.post("/responses", lmsp.ask(**{name: value})), 400, "invalid_request", f"/{name}")


@pytest.mark.parametrize("temperature", [0, 0.0, 2])
def test_b0_5_the_bounds_of_temperature_belong_to_it(lmsp, temperature):
    lmsp.respond(lmsp.ask(temperature=temperature, max_output_tokens=1))


def test_b0_5_one_setting_given_twice(lmsp):
    def twice(other):
        return lmsp.ask(top_p=0.5, extensions={"lmsp_jupyter": {"top_p": other}}, max_output_tokens=1)

    refused(lmsp.post("/responses", twice(0.9)), 400, "invalid_request")
    lmsp.respond(twice(0.5))


def test_b0_5_usage_is_null_until_it_is_known(lmsp):
    created = lmsp.stream(lmsp.ask(max_output_tokens=1))[0]

    assert created.data["response"]["usage"] is None


def test_b0_5_a_cancelled_response_carries_what_was_counted(lmsp, long_task):
    lmsp.post(f"/tasks/{long_task['id']}/cancel")

    usage = lmsp.task(long_task)["response"]["usage"]

    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] > 0


# B0.6


def test_b0_6_streamed_or_not_the_text_is_the_same_at_temperature_0(lmsp):
    events = lmsp.stream(lmsp.ask())

    assert sse.text(events) == said(lmsp.respond(lmsp.ask()))


def test_b0_6_one_final_event_and_id_1_for_response_created(lmsp):
    events = lmsp.stream(lmsp.ask())

    assert (events[0].id, events[0].name) == (1, "response.created")
    assert [event.final for event in events].count(True) == 1


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_output_tokens": 4},
        {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 120},
        {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 4},
        {"response_format": structured({"enum": ["👩‍👧 wörld", "日本語"]}), "max_output_tokens": 60},
    ],
)
def test_b0_6_output_equals_the_items_that_were_done(lmsp, more):
    events = lmsp.stream(lmsp.ask(**more))

    assert events[-1].data["response"]["output"] == sse.items(events)
    for item in sse.items(events):
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        mine = [event for event in events if event.data.get("item_id") == item["id"] and "delta" in event.data]
        assert "".join(event.data["delta"] for event in mine) == whole


def test_b0_6_an_item_that_is_cut_is_done_as_incomplete(lmsp):
    events = lmsp.stream(lmsp.ask(STORY, max_output_tokens=4))

    assert [item["status"] for item in sse.items(events)] == ["incomplete"]
    assert events[-1].data["incomplete_details"] == {"reason": "max_output_tokens"}


def test_b0_6_an_item_that_is_cancelled_is_done_as_incomplete(lmsp, long_task):
    lmsp.post(f"/tasks/{long_task['id']}/cancel")

    events = lmsp.follow(long_task)

    assert [event.name for event in events[-2:]] == ["response.output_item.done", "response.cancelled"]
    assert [item["status"] for item in sse.items(events)] == ["incomplete"]
    assert said({"output": sse.items(events)}) == sse.text(events) != ""
    assert events[-1].data["response"]["output"] == sse.items(events)


# B0.8


def test_b0_8_a_stream_that_is_left_ends_as_cancelled_with_what_there_is(lmsp):
    request = lmsp.ask(STORY, max_output_tokens=None, store=True, stream=True)
    seen = []
    with lmsp.open("POST", "/responses", json=request) as events:
        for event in events:
            seen.append(event)
            if event.name == "response.output_text.delta":
                break

    path = f"/responses/{seen[0].data['response_id']}"
    left = until(lambda: lmsp.get(path).json(), lambda response: response["status"] != "in_progress")

    assert left["status"] == "cancelled"
    assert left["output"][0]["status"] == "incomplete"
    assert said(left).startswith(sse.text(seen))


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_b0_8_synchronous_clients_that_leave_do_not_fill_the_queue(lmsp, path):
    chat = {"model": lmsp.model, "messages": [{"role": "user", "content": STORY}], "temperature": 0}
    request = lmsp.ask(STORY, max_output_tokens=None) if path == "/responses" else chat

    for _ in range(11):  # more than the suite's own service lets run and wait
        with pytest.raises(httpx.TimeoutException):
            lmsp.post(path, request, timeout=0.3)

    lmsp.respond(lmsp.ask(max_output_tokens=1))


def test_b0_8_a_keyed_request_whose_client_left_releases_its_key(lmsp):
    name = key()
    with pytest.raises(httpx.TimeoutException):
        lmsp.post("/responses", lmsp.ask(STORY, max_output_tokens=None), headers=name, timeout=0.3)

    again = until(
        lambda: lmsp.post("/responses", lmsp.ask(max_output_tokens=1), headers=name),
        lambda answer: answer.status_code not in (409, 422),
    )

    assert again.status_code == 200
    assert "Idempotency-Replayed" not in again.headers
