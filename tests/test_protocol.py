"""Reading requests (A1, B0.2 to B0.5, B2.4)."""

import json
import re

import msgspec
import pytest

from lmsp_jupyter.errors import (
    BadRequest,
    UnknownParameter,
    UnsupportedCapability,
    UnsupportedContent,
    UnsupportedVersion,
)
from lmsp_jupyter.protocol import (
    InputText,
    Message,
    Options,
    OutputText,
    Reasoning,
    ReasoningOptions,
    Response,
    SummaryText,
    Usage,
    check_version,
    closest,
    new_id,
    parse_request,
)

chapter6 = pytest.mark.chapter6
ours = pytest.mark.ours

MODEL = "qwen3:14b-q4_k_m"


def read(without=(), **members):
    """The request with these members, beside a model and an input unless they are left out."""
    body = {"model": MODEL, "input": "Hi."} | members
    return parse_request(json.dumps({name: value for name, value in body.items() if name not in without}).encode())


def read_options(**options):
    return read(extensions={"lmsp_jupyter": options}).extensions.lmsp_jupyter


def refusal(kind=BadRequest, **members):
    """The problem with which a request is refused; it is exactly of this kind."""
    with pytest.raises(BadRequest) as caught:
        read(**members)
    assert type(caught.value) is kind
    return caught.value


def user(*texts):
    return Message(role="user", content=[InputText(text=text) for text in texts])


# What chapter 6 defines.


@chapter6
def test_a1_a_request_with_everything_that_chapter_6_has():
    request = read(
        input=[
            {
                "type": "message",
                "role": "system",
                "content": [{"type": "input_text", "text": "Be brief."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Why"},
                    {"type": "input_text", "text": "?"},
                ],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "So."}],
            },
        ],
        stream=True,
        max_output_tokens=16,
        temperature=0.5,
        response_format={"type": "text"},
        store=True,
        extensions={"another": {"depth": 3}},
    )

    assert request.model == MODEL
    assert [item.role for item in request.input] == ["system", "user", "assistant"]
    assert [item.text for item in request.input] == ["Be brief.", "Why?", "So."]
    assert request.stream is True
    assert request.max_output_tokens == 16
    assert request.temperature == 0.5
    assert request.response_format.type == "text"


@chapter6
def test_a1_5_what_is_left_out_has_its_default():
    request = read()

    assert request.stream is False
    assert request.store is False
    assert request.max_output_tokens is None
    assert request.temperature is None
    assert request.extensions.lmsp_jupyter == Options()


@chapter6
@pytest.mark.parametrize("member", ["model", "input"])
def test_a1_2_a1_3_model_and_input_are_required(member):
    assert refusal(without=[member]).param == f"/{member}"
    assert refusal(**{member: None}).param == f"/{member}"


@chapter6
@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "/tools"),
        ({"tool_choice": "required"}, "/tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "/tool_choice"),
        ({"previous_response_id": "resp_1"}, "/previous_response_id"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}},
                }
            },
            "/response_format",
        ),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "/input/0"),
        (
            {
                "input": [
                    {"role": "user", "content": "Hi."},
                    {"type": "function_call_output", "call_id": "c", "output": "1"},
                ]
            },
            "/input/1",
        ),
    ],
    ids=[
        "tools",
        "tool_choice",
        "named tool_choice",
        "previous_response_id",
        "json_schema",
        "function_call",
        "function_call_output",
    ],
)
def test_a1_10_what_needs_a_capability_that_is_lacking_is_refused(members, pointer):
    problem = refusal(UnsupportedCapability, **members)

    assert (problem.status, problem.code) == (400, "unsupported_capability")
    assert problem.param == pointer


@chapter6
def test_a1_8_store_is_ignored_without_the_capability_conversations():
    assert read(store=True).input == read(store=False).input


# Lenient input.


@ours
def test_b0_2_input_as_a_string_is_a_message_of_the_user():
    assert read(input="Hi.").input == [user("Hi.")]


@ours
@pytest.mark.parametrize(("role", "part"), [("system", InputText), ("user", InputText), ("assistant", OutputText)])
def test_b0_2_content_as_a_string_is_one_part(role, part):
    request = read(input=[{"type": "message", "role": role, "content": "Hi."}])

    assert request.input == [Message(role=role, content=[part(text="Hi.")])]


@ours
def test_b0_2_an_item_with_a_role_and_no_type_is_a_message():
    part = {"type": "input_text", "text": "Hi."}

    assert read(input=[{"role": "user", "content": [part]}]).input == [user("Hi.")]


@ours
def test_b0_2_developer_is_read_as_system():
    request = read(input=[{"role": "developer", "content": "Be brief."}])

    assert request.input[0].role == "system"


@ours
@pytest.mark.parametrize(
    "member",
    [
        "stream",
        "max_output_tokens",
        "temperature",
        "response_format",
        "tools",
        "tool_choice",
        "store",
        "previous_response_id",
        "extensions",
    ],
)
def test_b0_2_null_for_an_optional_member_means_absent(member):
    assert read(**{member: None}) == read()


@ours
@pytest.mark.parametrize("option", Options.__struct_fields__)
def test_b0_2_null_for_an_option_means_absent(option):
    assert read_options(**{option: None}) == Options()


@ours
def test_b0_2_null_for_the_options_means_absent():
    assert read(extensions={"lmsp_jupyter": None, "another": None}) == read()


@ours
def test_b0_2_null_inside_an_option_means_absent():
    assert read_options(reasoning={"enabled": None}) == read_options(reasoning={})


@ours
def test_b0_2_null_inside_response_format_means_absent():
    request = read(response_format={"type": None})

    assert request.response_format == read(response_format={}).response_format


@ours
@pytest.mark.parametrize("member", ["id", "status"])
def test_b0_2_null_for_an_optional_member_of_an_item_means_absent(member):
    assert read(input=[{"role": "user", "content": "Hi.", member: None}]) == read()


@ours
@pytest.mark.parametrize("content", [{"content": []}, {"content": None}, {}], ids=str)
def test_b0_2_an_answer_without_content_is_accepted_back(content):
    request = read(
        input=[
            {"role": "assistant", "status": "incomplete", **content},
            {"role": "user", "content": "?"},
        ]
    )

    assert request.input[0] == Message(role="assistant", content=[], status="incomplete")


@ours
def test_b0_2_unknown_members_of_echoed_items_and_parts_are_ignored():
    request = read(
        input=[
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Hm.", "index": 0}],
                "content": None,
                "encrypted_content": "…",
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "phase": "final",
                "content": [
                    {"type": "output_text", "text": "So.", "annotations": [], "parsed": {"a": 1}},
                    {"type": "output_text", "text": "", "annotations": None, "logprobs": None},
                ],
            },
        ]
    )

    assert request.input == [
        Reasoning(id="rs_1", summary=[SummaryText(text="Hm.")]),
        Message(id="msg_1", role="assistant", content=[OutputText(text="So."), OutputText(text="")]),
    ]


@ours
def test_b0_2_items_of_an_earlier_response_are_accepted_back_as_received():
    response = Response(
        id=new_id("resp"),
        model=MODEL,
        status="incomplete",
        output=[
            Reasoning(id=new_id("rs"), summary=[SummaryText(text="Hm. 🇵🇹")], status="completed"),
            Message(
                id=new_id("msg"),
                role="assistant",
                content=[OutputText(text="Line\r\n\u2028and \\line."), OutputText(text="")],
                status="completed",
            ),
            Reasoning(id=new_id("rs"), summary=[], status="incomplete"),
            Message(id=new_id("msg"), role="assistant", content=[], status="in_progress"),
        ],
        usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
    )
    received = json.loads(json.dumps(msgspec.to_builtins(response)))

    request = read(input=[*received["output"], {"role": "user", "content": "Go on."}])

    assert request.input == [*response.output, user("Go on.")]


# Refusals.


@ours
@pytest.mark.parametrize(
    ("members", "pointer", "meant"),
    [
        ({"temprature": 1}, "/temprature", "'temperature'"),
        ({"temprature": None}, "/temprature", "'temperature'"),
        ({"Stream": True}, "/Stream", "'stream'"),
        ({"zzzzzz": 1}, "/zzzzzz", "'zzzzzz'"),
        ({"a/b~c": 1}, "/a~1b~0c", "'a/b~c'"),
        ({"": 1}, "/", "''"),
        ({"ďábelské": 1}, "/ďábelské", "'ďábelské'"),
        ({"two\nlines": 1}, "/two\nlines", "lines"),
        ({"x` - at `$.y": 1}, "/x` - at `$.y", "$.y"),
        ({"x` - at `$y": 1}, "/x` - at `$y", "$y"),
        ({"response_format": {"typ": "text"}}, "/response_format/typ", "'type'"),
        (
            {"extensions": {"lmsp_jupyter": {"top_pp": 1}}},
            "/extensions/lmsp_jupyter/top_pp",
            "'top_p'",
        ),
        (
            {"extensions": {"lmsp_jupyter": {"reasoning": {"enable": True}}}},
            "/extensions/lmsp_jupyter/reasoning/enable",
            "'enabled'",
        ),
    ],
    ids=str,
)
def test_b0_2_any_other_unknown_member_is_refused_and_the_closest_named(members, pointer, meant):
    problem = refusal(UnknownParameter, **members)

    assert (problem.status, problem.code) == (400, "unknown_parameter")
    assert problem.param == pointer
    assert meant in problem.detail


@ours
@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "input_file", "file_id": "f"},
        {"type": "image_url", "image_url": {"url": "x"}, "text": "looks like text"},
        {"type": "refusal", "refusal": "No."},
        {"type": "", "text": "Hi."},
    ],
    ids=lambda part: part["type"],
)
@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
def test_a1_4_b0_3_content_that_is_not_text_is_refused_and_never_dropped(part, role):
    content = [{"type": "input_text", "text": "See:"}, part]
    problem = refusal(
        UnsupportedContent,
        input=[{"role": "user", "content": "Hi."}, {"role": role, "content": content}],
    )

    assert (problem.status, problem.code) == (400, "unsupported_content")
    assert problem.param.startswith("/input/1/content/1")


@ours
@pytest.mark.parametrize("role", ["tool", "function", "User", "", 5, True, [], {}], ids=str)
def test_b0_3_other_roles_are_refused(role):
    problem = refusal(input=[{"role": role, "content": "Hi."}])

    assert problem.code == "invalid_request"
    assert problem.param == "/input/0/role"


@ours
def test_b0_3_a_message_without_a_role_is_refused():
    assert refusal(input=[{"type": "message", "content": "Hi."}]).param == "/input/0/role"


@ours
@pytest.mark.parametrize("empty", [[], ""], ids=repr)
def test_b0_3_empty_input_is_refused(empty):
    problem = refusal(input=empty)

    assert problem.code == "invalid_request"
    assert problem.param == "/input"


@ours
def test_input_without_a_message_is_refused():
    assert refusal(input=[{"type": "reasoning", "summary": []}]).param == "/input"


@ours
@pytest.mark.parametrize(
    ("item", "pointer"),
    [
        ("Hi.", "/input/1"),
        (None, "/input/1"),
        ([], "/input/1"),
        ({}, "/input/1/type"),
        ({"type": "item_reference", "id": "msg_1"}, "/input/1/type"),
        ({"type": []}, "/input/1/type"),
        ({"role": "user"}, "/input/1/content"),
        ({"role": "user", "content": None}, "/input/1/content"),
        ({"role": "user", "content": 5}, "/input/1/content"),
        ({"role": "user", "content": {"type": "input_text", "text": "Hi."}}, "/input/1/content"),
        ({"role": "user", "content": [None]}, "/input/1/content/0"),
        ({"role": "user", "content": [[]]}, "/input/1/content/0"),
        ({"role": "user", "content": [{"text": "Hi."}]}, "/input/1/content/0/type"),
        ({"role": "user", "content": [{"type": 5}]}, "/input/1/content/0/type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "/input/1/content/0/text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "/input/1/content/0/text"),
        ({"role": "user", "content": "Hi.", "id": 5}, "/input/1/id"),
        ({"role": "assistant", "content": "Hi.", "status": "done"}, "/input/1/status"),
        ({"type": "reasoning", "summary": "Hm."}, "/input/1/summary"),
        (
            {"type": "reasoning", "summary": [{"type": "text", "text": ""}]},
            "/input/1/summary/0/type",
        ),
        ({"type": "reasoning", "summary": [{"type": "summary_text"}]}, "/input/1/summary/0/text"),
    ],
    ids=str,
)
def test_an_ill_formed_item_is_refused_where_it_is_wrong(item, pointer):
    problem = refusal(input=[{"role": "user", "content": "Hi."}, item])

    assert problem.code == "invalid_request"
    assert problem.param == pointer


@ours
@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"model": 5}, "/model"),
        ({"model": ""}, "/model"),
        ({"input": 5}, "/input"),
        ({"input": {"role": "user", "content": "Hi."}}, "/input"),
        ({"stream": 1}, "/stream"),
        ({"stream": "true"}, "/stream"),
        ({"store": 0}, "/store"),
        ({"response_format": "text"}, "/response_format"),
        ({"response_format": {"type": "xml"}}, "/response_format/type"),
        ({"response_format": {"type": 5}}, "/response_format/type"),
        ({"extensions": []}, "/extensions"),
    ],
    ids=str,
)
def test_an_ill_typed_member_is_refused(members, pointer):
    problem = refusal(**members)

    assert problem.code == "invalid_request"
    assert problem.param == pointer


@ours
@pytest.mark.parametrize("member", ["tools", "tool_choice", "previous_response_id"])
@pytest.mark.parametrize("value", [True, False, 0, 5, {}, ""], ids=repr)
def test_an_ill_typed_member_of_a_later_part_is_not_dropped(member, value):
    with pytest.raises(BadRequest) as caught:
        read(**{member: value})

    assert caught.value.param == f"/{member}"


@ours
@pytest.mark.parametrize("member", ["tool_choice", "previous_response_id"])
def test_an_array_where_none_belongs_is_not_dropped(member):
    with pytest.raises(BadRequest) as caught:
        read(**{member: []})

    assert caught.value.param == f"/{member}"


# Values.


@ours
@pytest.mark.parametrize("value", [True, False, "1", "", [1], {}], ids=repr)
@pytest.mark.parametrize("member", ["max_output_tokens", "temperature"])
def test_b0_5_booleans_and_strings_are_not_numbers(member, value):
    problem = refusal(**{member: value})

    assert problem.code == "invalid_request"
    assert problem.param == f"/{member}"


@ours
@pytest.mark.parametrize("value", [True, False, "1"], ids=repr)
@pytest.mark.parametrize("option", ["top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty"])
def test_b0_5_booleans_and_strings_are_not_numbers_in_options(option, value):
    problem = refusal(extensions={"lmsp_jupyter": {option: value}})

    assert problem.code == "invalid_request"
    assert problem.param == f"/extensions/lmsp_jupyter/{option}"


@ours
@pytest.mark.parametrize("value", [1, 2, 4096, 2**31 - 1])
def test_b0_5_max_output_tokens_is_1_or_more(value):
    assert read(max_output_tokens=value).max_output_tokens == value


@ours
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_b0_5_any_other_max_output_tokens_is_refused(value):
    assert refusal(max_output_tokens=value).param == "/max_output_tokens"


@ours
@pytest.mark.parametrize("value", [0, 0.0, 1e-300, 0.8, 1, 2, 2.0])
def test_b0_5_temperature_is_0_to_2(value):
    assert read(temperature=value).temperature == value


@ours
@pytest.mark.parametrize("value", [-1e-9, -1, 2.000001, 3, 10**300, -(10**300)])
def test_b0_5_any_other_temperature_is_refused(value):
    assert refusal(temperature=value).param == "/temperature"


@ours
def test_b2_4_every_option_is_read():
    options = read_options(
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=7,
        stop=["\n", "歪"],
        frequency_penalty=-2,
        presence_penalty=2,
        parallel_tool_calls=False,
        reasoning={"enabled": False},
    )

    assert options == Options(
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=7,
        stop=["\n", "歪"],
        frequency_penalty=-2,
        presence_penalty=2,
        parallel_tool_calls=False,
        reasoning=ReasoningOptions(enabled=False),
    )


@ours
@pytest.mark.parametrize("other", [None, 5, [], {"top_p": "high"}, {"x": {"y": 1}}], ids=repr)
def test_a1_9_b2_4_other_vendors_are_ignored(other):
    assert read(extensions={"another": other, "LMSP_Jupyter": other}) == read()


@ours
@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        (5, ""),
        ([], ""),
        ({"top_p": 1.1}, "/top_p"),
        ({"min_p": -0.1}, "/min_p"),
        ({"top_k": 1.5}, "/top_k"),
        ({"seed": 0.5}, "/seed"),
        ({"seed": 10**300}, "/seed"),
        ({"stop": "\n"}, "/stop"),
        ({"stop": [1]}, "/stop/0"),
        ({"stop": ["a", ""]}, "/stop/1"),
        ({"frequency_penalty": 2.1}, "/frequency_penalty"),
        ({"presence_penalty": -2.1}, "/presence_penalty"),
        ({"parallel_tool_calls": 1}, "/parallel_tool_calls"),
        ({"reasoning": True}, "/reasoning"),
        ({"reasoning": {"enabled": "yes"}}, "/reasoning/enabled"),
    ],
    ids=str,
)
def test_b2_4_an_ill_typed_option_is_refused(options, pointer):
    problem = refusal(extensions={"lmsp_jupyter": options})

    assert problem.code == "invalid_request"
    assert problem.param == f"/extensions/lmsp_jupyter{pointer}"


# Versions and ids.


@ours
@pytest.mark.parametrize("version", [None, "1.0", " 1.0 "])
def test_b2_1_no_version_is_1_0(version):
    check_version(version)


@ours
@pytest.mark.parametrize("version", ["", "1", "1.00", "1.1", "2.0", "latest"])
def test_b2_1_a_version_not_supported_is_refused_with_those_that_are(version):
    with pytest.raises(UnsupportedVersion) as caught:
        check_version(version)

    document = caught.value.document()
    assert (document["status"], document["code"]) == (400, "unsupported_version")
    assert document["supported_versions"] == ["1.0"]


@ours
@pytest.mark.parametrize("prefix", ["resp", "msg", "rs"])
def test_b0_1_an_id_is_a_prefix_and_a_ulid(prefix):
    ids = {new_id(prefix) for _ in range(100)}

    assert len(ids) == 100
    assert all(re.fullmatch(rf"{prefix}_[0-9A-HJKMNP-TV-Z]{{26}}", id) for id in ids)


@ours
def test_closest_names_what_may_have_been_meant_best_first():
    known = ["qwen3:14b", "qwen3:4b", "smollm2:135m"]

    assert closest("qwen3:14", known)[0] == "qwen3:14b"
    assert closest("zzz", known) == []
