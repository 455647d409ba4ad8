"""Events of a response (A3, B0.6, B0.7, B4.1, B7.1, B7.2): deltas to events, and events to the response."""

import asyncio
import json

import msgspec
import pytest

from lmsp_jupyter import events, sse
from lmsp_jupyter.errors import EngineCrashed
from lmsp_jupyter.events import (
    ArgumentsDelta,
    Composer,
    Created,
    Error,
    Fold,
    InProgress,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Queued,
    ReasoningDelta,
    ReasoningDone,
    SummaryPartAdded,
    SummaryPartDone,
    TextDelta,
    TextDone,
)
from lmsp_jupyter.log import Log
from lmsp_jupyter.protocol import (
    FunctionCall,
    IncompleteDetails,
    Message,
    OutputText,
    Reasoning,
    Response,
    SummaryText,
    Usage,
    new_id,
)

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours

ID = new_id("resp")
USAGE = Usage(input_tokens=3, output_tokens=2, total_tokens=5)
TEXT = "👩‍👩‍👧‍👦🇵🇹 ďábelské 歪"
BREAKING = 'a\nb\r\nc\rd\u2028e\u2029f\x85g\0h\ufeffi\\n"\n\ndata: j\n\nid: 9'

ANSWERS = {
    "nothing": [],
    "text": [("text", "Be"), ("text", "cause.")],
    "reasoning": [("reasoning", "Hm"), ("reasoning", "m.")],
    "reasoning, then text": [("reasoning", "Hmm."), ("text", "Be"), ("text", "cause.")],
    "text, reasoning, text": [("text", "Wait."), ("reasoning", "Hmm."), ("text", "Because.")],
    "text that breaks lines": [("text", BREAKING), ("text", TEXT)],
    "a call": [("call", "f"), ("arguments", '{"a":'), ("arguments", "1}"), ("called",)],
    "a call without arguments": [("call", "f"), ("called",)],
    "reasoning, text, two calls": [
        ("reasoning", "Hmm."),
        ("text", "Let me see."),
        *[("call", "f"), ("arguments", "{}"), ("called",)],
        *[("call", "g"), ("arguments", json.dumps({"a": BREAKING})), ("called",)],
    ],
}

CUT_CALL = [("text", "Let me see."), ("call", "f"), ("arguments", '{"a":')]

ENDINGS = {
    "completed": lambda composer: composer.completed(USAGE),
    "incomplete": lambda composer: composer.incomplete("max_output_tokens", USAGE),
    "failed": lambda composer: composer.failed(EngineCrashed("It died."), USAGE),
    "cancelled": lambda composer: composer.cancelled(USAGE),
}

every_answer = pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
every_ending = pytest.mark.parametrize("ending", ENDINGS)


def compose(answer, ending):
    """The events of an answer, from its first item to its final event."""
    composer = Composer(ID)
    said = [event for kind, *delta in answer for event in getattr(composer, kind)(*delta)]
    return said + ENDINGS[ending](composer)


def logged(answer, ending):
    """The log of a whole run."""
    return log_of(
        Created(response_id=ID, response=Response(id=ID, created_at=1, model="qwen3:4b")),
        Queued(response_id=ID, position=1),
        InProgress(response_id=ID),
        Progress(response_id=ID, phase="prompt", done=3, total=3),
        *compose(answer, ending),
    )


def log_of(*stream):
    log = Log()
    asyncio.run(log.append(*stream))
    return log


def entries(log):
    """All that a log holds that has ended."""

    async def follow():
        return [entry async for batch in log.follow() for entry in batch]

    return asyncio.run(follow())


def data(log):
    return [json.loads(entry.data) for entry in entries(log)]


def decoded(log):
    return [events.decode(entry.event, str(entry.id), entry.data) for entry in entries(log)]


def fold(stream):
    folded = Fold()
    for event in stream:
        folded.apply(event)
    return folded.response


def names(stream):
    return [event.name.removeprefix("response.") for event in stream]


def only(kind, stream):
    return [event for event in stream if isinstance(event, kind)]


def words(item):
    """What an item says."""
    return item.arguments if isinstance(item, FunctionCall) else item.text


# From deltas to events.


@chapter6
def test_a3_2_a_text_is_added_told_in_deltas_and_done():
    stream = compose([("text", "Be"), ("text", "cause.")], "completed")

    added, one, two, done, final = (event for event in stream if event.name in MEMBERS)
    id = added.item.id
    assert added.item == Message(id=id, role="assistant", content=[], status="in_progress")
    assert [(each.item_id, each.delta) for each in (one, two)] == [(id, "Be"), (id, "cause.")]
    assert done.item == Message(id=id, role="assistant", content=[OutputText(text="Because.")], status="completed")
    assert final.usage == USAGE
    assert {each.response_id for each in stream} == {ID}


@ours
def test_a2_3_reasoning_is_an_item_of_its_own_closed_before_the_text():
    stream = compose([("reasoning", "Hm"), ("reasoning", "m."), ("text", "So.")], "completed")

    thought, answer = only(ItemDone, stream)
    assert thought.item == Reasoning(id=thought.item.id, summary=[SummaryText(text="Hmm.")], status="completed")
    assert answer.item.text == "So."
    assert names(stream).index("output_item.done") < names(stream).index("output_text.delta")
    assert [event.output_index for event in stream[:-1]] == [0] * 7 + [1] * 6


@chapter6
def test_a5_4_a_call_is_an_item_that_is_done_whole():
    stream = compose([("call", "f"), ("arguments", '{"a":'), ("arguments", "1}"), ("called",)], "completed")

    (added,), (done,) = only(ItemAdded, stream), only(ItemDone, stream)
    id, call_id = done.item.id, done.item.call_id
    assert added.item == FunctionCall(id=id, call_id=call_id, name="f", arguments="", status="in_progress")
    assert done.item == FunctionCall(id=id, call_id=call_id, name="f", arguments='{"a":1}', status="completed")


@chapter6
def test_a2_3_a_response_whose_output_is_a_call_is_completed():
    stream = compose([("call", "f"), ("called",)], "completed")

    assert stream[-1].status == "completed"
    assert len(only(ItemDone, stream)) == 1


@ours
def test_calls_have_call_ids_of_their_own():
    first, second = only(ItemDone, compose([("call", "f"), ("called",)] * 2, "completed"))

    assert first.item.call_id != second.item.call_id
    assert (first.output_index, second.output_index) == (0, 1)


@ours
def test_a_call_that_begins_closes_what_is_open():
    text, call = only(ItemDone, compose([("text", "Let me see."), ("call", "f"), ("called",)], "completed"))

    assert (text.item.text, text.item.status) == ("Let me see.", "completed")
    assert call.item.name == "f"


@ours
def test_the_open_call_is_known_with_what_it_has():
    composer = Composer(ID)
    composer.call("f")
    composer.arguments('{"a":')
    composer.arguments("1")

    assert composer.open_call == ("f", '{"a":1')


@ours
@pytest.mark.parametrize(
    ("answer", "order"),
    [
        (
            [("text", "Be"), ("text", "cause.")],
            [
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
            ],
        ),
        (
            [("reasoning", "Hm"), ("reasoning", "m.")],
            [
                "output_item.added",
                "reasoning_summary_part.added",
                "reasoning_summary_text.delta",
                "reasoning_summary_text.delta",
                "reasoning_summary_text.done",
                "reasoning_summary_part.done",
                "output_item.done",
            ],
        ),
        (
            [("call", "f"), ("arguments", '{"a":'), ("arguments", "1}"), ("called",)],
            [
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
            ],
        ),
        (
            [],
            [
                "output_item.added",
                "content_part.added",
                "output_text.done",
                "content_part.done",
                "output_item.done",
            ],
        ),
    ],
    ids=["a text", "reasoning", "a call", "nothing"],
)
def test_b7_2_the_events_of_an_item_in_order(answer, order):
    assert names(compose(answer, "completed")) == [*order, "completed"]


@ours
def test_b7_2_a_part_is_added_empty_and_done_whole():
    stream = compose([("reasoning", "Hm."), ("text", "Be"), ("text", "cause.")], "completed")
    thought, answer = only(ItemDone, stream)

    assert [(each.item_id, each.part) for each in only(SummaryPartAdded | SummaryPartDone, stream)] == [
        (thought.item.id, SummaryText(text="")),
        (thought.item.id, SummaryText(text="Hm.")),
    ]
    assert [(each.item_id, each.part) for each in only(PartAdded | PartDone, stream)] == [
        (answer.item.id, OutputText(text="")),
        (answer.item.id, OutputText(text="Because.")),
    ]
    assert [(each.item_id, each.text) for each in only(ReasoningDone | TextDone, stream)] == [
        (thought.item.id, "Hm."),
        (answer.item.id, "Because."),
    ]


@ours
@pytest.mark.parametrize("ending", ["incomplete", "failed", "cancelled"])
@pytest.mark.parametrize(
    ("kind", "done"),
    [
        ("text", ["output_text.done", "content_part.done"]),
        ("reasoning", ["reasoning_summary_text.done", "reasoning_summary_part.done"]),
    ],
)
def test_b7_2_an_item_that_broke_off_has_all_its_events_too(kind, done, ending):
    assert names(compose([(kind, "Half an ans")], ending))[-4:] == [*done, "output_item.done", ending]


@ours
@pytest.mark.parametrize("ending", ["incomplete", "failed", "cancelled"])
def test_b0_7_a_call_that_is_cut_is_never_done(ending):
    stream = compose(CUT_CALL, ending)

    assert names(stream)[-4:] == [
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        ending,
    ]
    assert [type(done.item) for done in only(ItemDone, stream)] == [Message]


@ours
def test_b0_1_items_have_ids_of_their_kind():
    stream = compose(ANSWERS["text, reasoning, text"], "completed")

    ids = [event.item.id for event in only(ItemAdded, stream)]
    assert [id.split("_")[0] for id in ids] == ["msg", "rs", "msg"]
    assert len(set(ids)) == 3


@ours
def test_an_answer_without_text_still_has_its_message():
    stream = compose([], "completed")

    (done,) = only(ItemDone, stream)
    assert (done.item.text, done.item.status) == ("", "completed")
    assert stream[-1].status == "completed"


@chapter6
@pytest.mark.parametrize("ending", ["incomplete", "failed", "cancelled"])
def test_a_response_that_ends_before_its_first_token_has_no_item(ending):
    assert names(compose([], ending)) == [ending]


@ours
@every_answer
@every_ending
def test_b0_6_there_is_one_final_event_and_it_is_the_last(answer, ending):
    stream = compose(answer, ending)

    assert [event.final for event in stream] == [False] * (len(stream) - 1) + [True]
    assert names(stream)[-1] == ending


@ours
@every_answer
@every_ending
def test_b0_6_every_item_that_is_opened_is_closed(answer, ending):
    stream = compose(answer, ending)

    added, done = only(ItemAdded, stream), only(ItemDone, stream)
    assert [event.item.id for event in added] == [event.item.id for event in done]
    assert [event.output_index for event in done] == list(range(len(done)))


@ours
@pytest.mark.parametrize("ending", ["incomplete", "failed", "cancelled"])
@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_b0_6_an_item_that_broke_off_is_done_with_what_it_has_as_incomplete(kind, ending):
    done = only(ItemDone, compose([(kind, "Half an ans")], ending))[0]

    assert done.item.text == "Half an ans"
    assert done.item.status == "incomplete"


@ours
@every_ending
def test_b0_6_only_the_open_item_breaks_off(ending):
    thought, answer = only(ItemDone, compose([("reasoning", "Hm."), ("text", "So.")], ending))

    assert thought.item.status == "completed"
    assert answer.item.status == ("completed" if ending == "completed" else "incomplete")


@ours
@every_answer
def test_b0_6_the_deltas_of_an_item_joined_are_its_text(answer):
    stream = compose(answer, "completed")

    deltas = only(TextDelta | ReasoningDelta | ArgumentsDelta, stream)
    for done in only(ItemDone, stream):
        own = [event.delta for event in deltas if event.item_id == done.item.id]
        assert "".join(own) == words(done.item)


@ours
@pytest.mark.parametrize("size", range(1, len(TEXT) + 1))
def test_b0_6_deltas_are_whole_to_the_byte_however_a_text_is_split(size):
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]

    stream = decoded(logged([("text", piece) for piece in pieces], "completed"))

    assert [event.delta for event in only(TextDelta, stream)] == pieces
    assert only(ItemDone, stream)[0].item.text.encode() == TEXT.encode()
    assert fold(stream).text.encode() == TEXT.encode()


@chapter6
@pytest.mark.parametrize("reason", ["max_output_tokens", "context_length"])
def test_a2_2_an_incomplete_response_says_why(reason):
    final = Composer(ID).incomplete(reason, USAGE)[-1]

    assert final.incomplete_details == IncompleteDetails(reason=reason)
    assert final.usage == USAGE


@chapter6
def test_a3_2_a_failed_response_carries_its_problem():
    problem = EngineCrashed("It died.")

    final = Composer(ID).failed(problem)[-1]

    assert final.error == problem.document()


@ours
@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_b0_5_usage_is_null_until_known(ending):
    composer = Composer(ID)
    stop = {"failed": lambda: composer.failed(EngineCrashed()), "cancelled": composer.cancelled}

    log = log_of(Created(response_id=ID), *stop[ending]())

    assert data(log)[-1]["usage"] is None
    assert data(log)[-1]["response"]["usage"] is None


# On the wire.


MEMBERS = {
    "response.created": {"response_id", "status"},
    "response.output_item.added": {"response_id", "output_index", "item"},
    "response.output_text.delta": {"response_id", "item_id", "delta"},
    "response.output_item.done": {"response_id", "output_index", "item"},
    "response.completed": {"response_id", "status", "usage"},
    "response.incomplete": {"response_id", "status", "incomplete_details", "usage"},
    "response.failed": {"response_id", "status", "error"},
    "response.cancelled": {"response_id", "status"},
    "error": {"error"},
}


@chapter6
@every_ending
def test_a3_2_events_have_the_members_of_chapter_6(ending):
    log = logged(ANSWERS["reasoning, then text"], ending)

    told = {entry.event: json.loads(entry.data) for entry in entries(log)}
    assert told.keys() >= {"response.created", f"response.{ending}", "response.output_text.delta"}
    for name, members in told.items():
        assert members.keys() >= MEMBERS.get(name, set()), name


@chapter6
def test_a3_2_an_error_event_has_its_problem():
    problem = EngineCrashed("It died.").document()

    event = Error(error=problem)

    assert event.final
    assert json.loads(events.encode(event)).keys() >= MEMBERS["error"]
    assert json.loads(events.encode(event))["error"] == problem


@chapter6
def test_a3_2_a_message_starts_with_empty_content():
    added = next(each for each in data(logged(ANSWERS["text"], "completed")) if "item" in each)

    assert added["item"]["type"] == "message"
    assert added["item"]["role"] == "assistant"
    assert added["item"]["content"] == []


@chapter6
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("completed", "completed"),
        ("incomplete", "incomplete"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
    ],
)
def test_a2_2_a_final_event_and_its_response_have_its_status(ending, status):
    final = data(logged(ANSWERS["text"], ending))[-1]

    assert final["status"] == final["response"]["status"] == status
    response = final["response"]
    assert response["object"] == "response"
    assert response["id"] == ID
    assert response["model"] == "qwen3:4b"
    assert response["created_at"] == 1
    assert response["usage"] == final["usage"]
    assert response["error"] == final.get("error")
    assert response["incomplete_details"] == final.get("incomplete_details")


@ours
@every_answer
@every_ending
def test_b7_1_data_also_has_its_name_and_number(answer, ending):
    log = logged(answer, ending)

    assert [(each["type"], each["sequence_number"]) for each in data(log)] == [
        (entry.event, entry.id) for entry in entries(log)
    ]


@ours
@every_ending
def test_b7_1_the_first_events_and_the_final_one_also_have_the_response(ending):
    whole = {each["type"] for each in data(logged(ANSWERS["text"], ending)) if each.get("response")}

    assert whole - {"response.queued"} == {"response.created", "response.in_progress", f"response.{ending}"}


@ours
@every_ending
def test_b7_3_a_response_that_has_ended_says_when(ending):
    *before, last = [each["response"] for each in data(logged(ANSWERS["text"], ending)) if each.get("response")]

    assert {response["completed_at"] for response in before} == {None}
    assert isinstance(last["completed_at"], int)


@ours
def test_b7_1_deltas_items_and_parts_have_the_members_of_neighbouring_clients():
    told = data(logged(ANSWERS["reasoning, then text"], "completed"))

    for each in told:
        if each["type"] == "response.output_text.delta":
            assert (each["output_index"], each["content_index"]) == (1, 0)
        if "item" in each:
            assert each["item"]["status"] in ("in_progress", "completed")
    message = told[-1]["response"]["output"][1]
    assert message["content"] == [{"type": "output_text", "text": "Because.", "annotations": [], "logprobs": []}]
    assert told[-1]["usage"]["input_tokens_details"]["cached_tokens"] == 0


@ours
@every_answer
def test_b4_1_data_is_one_line_of_ascii_json(answer):
    for entry in entries(logged(answer, "completed")):
        assert entry.data.isascii()
        assert entry.data.isprintable()
        assert isinstance(json.loads(entry.data), dict)


@ours
@every_answer
@every_ending
def test_b4_1_text_survives_the_way_through_frames_cut_at_every_byte(answer, ending):
    log = logged(answer, ending)
    stream = b"".join(sse.encode(*entry) for entry in entries(log))

    decoder = sse.Decoder()
    received = [each for byte in stream for each in decoder.feed(bytes([byte]))]

    assert [(int(each.id), each.event, each.data) for each in received] == entries(log)
    response = fold(events.decode(each.event, each.id, each.data) for each in received)
    said = "".join(text for kind, *delta in answer for text in delta if kind == "text")
    assert response.text.encode() == said.encode()


@chapter6
@pytest.mark.parametrize("name", ["response.refusal.delta", "ping", "message", "", "Response.created"])
def test_a3_4_an_unknown_type_is_ignored_whatever_its_data(name):
    assert events.decode(name, "1", "not JSON") is None


@chapter6
def test_a3_4_unknown_members_are_ignored():
    event = events.decode(
        "response.output_text.delta",
        "7",
        '{"response_id":"r","item_id":"m","delta":"a","obfuscation":"x","logprobs":[]}',
    )

    assert event == TextDelta(sequence_number=7, response_id="r", item_id="m", delta="a")


@ours
@every_answer
@every_ending
def test_what_was_encoded_is_decoded_again(answer, ending):
    for event in compose(answer, ending):
        assert events.decode(event.name, "", events.encode(event)) == event


@chapter6
def test_a4_1_the_id_of_a_frame_is_the_number_of_its_event():
    assert events.decode("error", "12", '{"error":{}}').sequence_number == 12
    assert events.decode("error", "", '{"error":{}}').sequence_number == 0


@chapter6
@pytest.mark.parametrize(
    "wrong",
    ["", "x", "[]", "null", "{}", '{"response_id":1,"item_id":"m","delta":"a"}', '{"delta":"a"}'],
    ids=repr,
)
def test_data_that_is_not_what_its_type_says_is_refused(wrong):
    with pytest.raises(msgspec.DecodeError):
        events.decode("response.output_text.delta", "1", wrong)


# From events to the response.


@ours
@every_answer
@every_ending
def test_b0_6_the_fold_is_the_response_of_the_final_event(answer, ending):
    stream = decoded(logged(answer, ending))

    assert fold(stream) == stream[-1].response


@ours
@every_answer
@every_ending
def test_b0_6_output_is_the_items_that_were_done_in_order(answer, ending):
    stream = decoded(logged(answer, ending))

    assert stream[-1].response.output == [event.item for event in only(ItemDone, stream)]


@ours
@pytest.mark.parametrize("ending", ["incomplete", "failed", "cancelled"])
def test_b0_7_a_call_that_is_cut_is_dropped_at_the_end(ending):
    stream = decoded(logged(CUT_CALL, ending))

    assert [type(item) for item in fold(stream[:-1]).output] == [Message, FunctionCall]
    assert fold(stream[:-1]).output[1].arguments == '{"a":'
    assert [type(item) for item in fold(stream).output] == [Message]
    assert fold(stream) == stream[-1].response


@chapter6
def test_a5_4_a_call_that_arrives_whole_is_enough():
    call = FunctionCall(call_id="call_1", name="f", arguments="{}")
    whole = ItemDone(response_id=ID, output_index=0, item=call)

    assert fold([Created(response_id=ID), whole, *Composer(ID).completed(None)[-1:]]).output == [call]


@ours
@every_answer
def test_the_response_so_far_has_the_text_so_far(answer):
    folded, said = Fold(), ""
    for event in decoded(logged(answer, "completed"))[:-1]:
        folded.apply(event)
        said += event.delta if isinstance(event, TextDelta) else ""
        assert folded.response.text == said
        assert folded.response.status == "in_progress"


@ours
def test_a_response_so_far_is_not_changed_by_later_events():
    folded = Fold()
    stream = decoded(logged(ANSWERS["text"], "completed"))
    texts = []
    for event in stream:
        folded.apply(event)
        texts.append((folded.response, folded.response.text, folded.response.status))

    assert all((each.text, each.status) == (text, status) for each, text, status in texts)


def part_a(ending, **members):
    """A stream of a service that sends what chapter 6 has and no more."""
    item = {"type": "message", "id": "m1", "role": "assistant"}
    whole = {"type": "output_text", "text": "Because."}
    stream = [
        ("response.created", {"response_id": "r1", "status": "in_progress"}),
        (
            "response.output_item.added",
            {"response_id": "r1", "output_index": 0, "item": item | {"content": []}},
        ),
        ("response.output_text.delta", {"response_id": "r1", "item_id": "m1", "delta": "Be"}),
        ("response.json.delta", {"response_id": "r1", "patch": []}),
        ("response.output_text.delta", {"response_id": "r1", "item_id": "m1", "delta": "cause."}),
        (
            "response.output_item.done",
            {"response_id": "r1", "output_index": 0, "item": item | {"content": [whole]}},
        ),
        (f"response.{ending}", {"response_id": "r1", "status": ending, **members}),
    ]
    told = [events.decode(name, str(id), json.dumps(data)) for id, (name, data) in enumerate(stream, start=1)]
    return [event for event in told if event]


@chapter6
@pytest.mark.parametrize(
    ("ending", "members"),
    [
        ("completed", {"usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}),
        (
            "incomplete",
            {
                "incomplete_details": {"reason": "max_output_tokens"},
                "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
            },
        ),
        ("failed", {"error": {"code": "engine_failed", "status": 500}}),
        ("cancelled", {}),
    ],
)
def test_a3_2_events_of_chapter_6_alone_are_enough_for_the_response(ending, members):
    response = fold(part_a(ending, **members))

    assert response.id == "r1"
    assert response.status == ending
    assert response.text == "Because."
    assert [item.id for item in response.output] == ["m1"]
    assert response.usage == (USAGE if "usage" in members else None)
    assert response.error == members.get("error")
    details = response.incomplete_details
    assert (details and details.reason) == ("max_output_tokens" if ending == "incomplete" else None)


@chapter6
def test_a3_2_before_an_item_is_done_its_deltas_are_its_text():
    stream = part_a("cancelled")
    open_item = [event for event in stream if not isinstance(event, ItemDone)]

    assert fold(open_item[:-1]).text == "Because."


@chapter6
def test_a3_2_deltas_belong_to_the_item_that_they_name():
    """Nothing in chapter 6 says that one item is done before the next is added."""
    items = [Message(id=id, role="assistant", content=[]) for id in ("m1", "m2")]
    deltas = [("m1", "a"), ("m2", "x"), ("m1", "b"), ("m2", "y")]
    stream = [
        Created(response_id=ID),
        *(ItemAdded(response_id=ID, output_index=index, item=item) for index, item in enumerate(items)),
        *(TextDelta(response_id=ID, item_id=id, delta=delta) for id, delta in deltas),
    ]
    assert [item.text for item in fold(stream).output] == ["ab", "xy"]

    first = Message(id="m1", role="assistant", content=[OutputText(text="ab")])
    stream.append(ItemDone(response_id=ID, output_index=0, item=first))
    assert [item.text for item in fold(stream).output] == ["ab", "xy"]


# Going on where a log ended.


@ours
@pytest.mark.parametrize("answer", [*ANSWERS.values(), CUT_CALL], ids=[*ANSWERS, "a cut call"])
def test_b3_6_a_log_that_broke_off_anywhere_is_ended_as_any_other(answer):
    whole = decoded(logged(answer, "incomplete"))[:-1]
    for count in range(1, len(whole)):
        before = whole[:count]
        composer = Composer(ID)
        composer.resume(fold(before))
        stream = [*before, *composer.failed(EngineCrashed())]

        calls = [event.item.id for event in only(ItemAdded, stream) if isinstance(event.item, FunctionCall)]
        added = [event.item.id for event in only(ItemAdded, stream)]
        done = [event.item.id for event in only(ItemDone, stream)]
        assert [id for id in added if id in done or id not in calls] == done
        assert [event.output_index for event in only(ItemDone, stream)] == list(range(len(done)))
        assert fold(stream).output == [event.item for event in only(ItemDone, stream)]
        assert [event.final for event in stream] == [False] * (len(stream) - 1) + [True]


@ours
@pytest.mark.parametrize(("kind", "delta"), [("text", TextDelta), ("reasoning", ReasoningDelta)])
def test_a_composer_goes_on_inside_the_open_item(kind, delta):
    before = [Created(response_id=ID), *getattr(Composer(ID), kind)("Be")]
    composer = Composer(ID)
    composer.resume(fold(before))

    (more,) = getattr(composer, kind)("cause.")
    ending = composer.completed(None)

    assert isinstance(more, delta)
    assert more.item_id == only(ItemAdded, before)[0].item.id
    assert words(only(ItemDone, ending)[0].item) == "Because."


@ours
def test_a_composer_goes_on_after_items_that_are_done():
    composer = Composer(ID)
    composer.resume(fold(decoded(logged([("text", "One."), ("call", "f"), ("called",)], "completed"))))

    assert only(ItemAdded, composer.text("Two."))[0].output_index == 2
