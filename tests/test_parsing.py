"""Reading requests (A1, A5, B0.2 to B0.5, B0.10, B2.4, B3.1, B7.4)."""

import json

import msgspec
import pytest

from lmsp_jupyter.errors import (
    BadRequest,
    InvalidSchema,
    UnknownParameter,
    UnsupportedContent,
    UnsupportedVersion,
)
from lmsp_jupyter.parsing import check_version, parse, parse_request, parse_task
from lmsp_jupyter.protocol import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    JSONSchema,
    JSONSchemaFormat,
    Message,
    NamedTool,
    Options,
    OutputText,
    Reasoning,
    ReasoningOptions,
    Response,
    SummaryText,
    TextFormat,
    TokenRequest,
    Tool,
    Usage,
    new_id,
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


def tool(name="f", **members):
    return {"type": "function", "name": name} | members


def call(call_id="call_1", **members):
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"} | members


def output(call_id="call_1", output="1", **members):
    return {"type": "function_call_output", "call_id": call_id, "output": output} | members


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
    assert request.response_format == TextFormat()
    assert request.store is True


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
def test_a1_6_a_schema_is_read():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = read(response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})

    assert request.response_format == JSONSchemaFormat(json_schema=JSONSchema(name="answer", schema=schema))
    assert request.schema == schema


@chapter6
@pytest.mark.parametrize("text", [None, {"type": "text"}])
def test_a1_6_text_is_the_default_and_has_no_schema(text):
    assert read(response_format=text).schema is None


@chapter6
def test_a1_8_store_and_previous_response_id_are_read():
    request = read(store=True, previous_response_id="resp_1")

    assert (request.store, request.previous_response_id) == (True, "resp_1")


@chapter6
def test_a5_2_tools_are_read():
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}

    assert read(tools=[tool("f", description="Does it.", parameters=parameters), tool("g")]).tools == [
        Tool(name="f", description="Does it.", parameters=parameters),
        Tool(name="g"),
    ]


@chapter6
@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a5_3_a_tool_choice_is_a_word(choice):
    assert read(tools=[tool()], tool_choice=choice).tool_choice == choice


@chapter6
def test_a5_3_a_tool_choice_is_the_name_of_a_tool():
    assert read(tools=[tool()], tool_choice={"type": "function", "name": "f"}).tool_choice == NamedTool(name="f")


@chapter6
def test_a5_3_the_tool_choice_is_auto_unless_it_is_given():
    assert read(tools=[tool()]).tool_choice == "auto"
    assert read(tools=[tool()], tool_choice=None).tool_choice == "auto"


@chapter6
def test_a5_5_a_call_comes_back_as_received_with_its_output():
    received = call(id="fc_1", arguments='{"a":1}', status="completed")
    request = read(input=[{"role": "user", "content": "Hi."}, received, output(output='{"b":2}')])

    assert request.input[1:] == [
        FunctionCall(id="fc_1", call_id="call_1", name="f", arguments='{"a":1}', status="completed"),
        FunctionCallOutput(call_id="call_1", output='{"b":2}'),
    ]


@ours
def test_b6_1_a_request_that_is_kept_is_read_again_as_it_was():
    request = read(
        input=[{"role": "user", "content": "Hi."}, {"type": "reasoning", "summary": []}, call(), output()],
        tools=[tool("f", parameters={"properties": {"a": {"type": "integer"}}})],
        tool_choice={"type": "function", "name": "f"},
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        store=True,
        background=True,
        instructions="Be brief.",
        temperature=0,
        reasoning={"effort": "low"},
        text={"format": None},
        metadata={"a": "b"},
        extensions={"lmsp_jupyter": {"stop": ["a"], "top_k": 5}},
        truncation="disabled",
        include=[],
        user="ann",
    )

    assert msgspec.json.decode(msgspec.json.encode(request), type=type(request)) == request


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
        "instructions",
        "metadata",
        "background",
        "text",
        "reasoning",
        "top_p",
        "truncation",
        "include",
        "max_tool_calls",
        "user",
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
def test_b0_2_null_means_absent_at_every_depth_of_what_is_strict():
    assert read(tools=[tool(description=None, parameters=None, strict=None)]) == read(tools=[tool()])
    assert read(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {}, "description": None, "strict": None},
        }
    ) == read(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}}})
    assert read(text={"format": None, "verbosity": None}, reasoning={"effort": None, "summary": None}) == read(
        text={}, reasoning={}
    )


@ours
def test_b0_2_null_inside_a_schema_is_a_value():
    schema = {"enum": ["a", None]}

    assert read(tools=[tool(parameters={"properties": {"a": schema}})]).tools[0].parameters["properties"] == {
        "a": schema
    }


@ours
@pytest.mark.parametrize("strict", [True, False, None])
def test_b0_2_strict_is_accepted_on_tools_and_schemas(strict):
    request = read(
        tools=[tool(strict=strict)],
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": strict}},
    )

    assert len(request.tools) == 1
    assert request.schema == {}


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
            FunctionCall(id=new_id("fc"), call_id=new_id("call"), name="f", arguments="{}", status="completed"),
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
        ({"response_format": {"type": "text", "txt": 1}}, "/response_format/txt", "'txt'"),
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
        ({"tools": [{"type": "function", "nme": "f"}]}, "/tools/0/nme", "'name'"),
        ({"tool_choice": {"type": "function", "nam": "f"}}, "/tool_choice/nam", "'name'"),
        ({"text": {"fromat": {}}}, "/text/fromat", "'format'"),
        ({"text": {"format": {"type": "json_schema", "schemas": {}}}}, "/text/format/schemas", "'schema'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "scheme": {}}}},
            "/response_format/json_schema/scheme",
            "'schema'",
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
def test_b6_3_empty_input_goes_on_with_an_earlier_response():
    request = read(input=[], previous_response_id="resp_1")

    assert (request.input, request.previous_response_id) == ([], "resp_1")


@ours
def test_b0_3_a_string_that_is_empty_is_no_input_for_going_on():
    assert refusal(input="", previous_response_id="resp_1").param == "/input"


@ours
def test_the_output_of_a_call_alone_continues_an_earlier_response():
    assert read(input=[output()], previous_response_id="resp_1").input == [
        FunctionCallOutput(call_id="call_1", output="1")
    ]
    assert refusal(input=[output()]).param == "/input"


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
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "/input/1/call_id"),
        ({"type": "function_call", "call_id": "call_1", "arguments": "{}"}, "/input/1/name"),
        ({"type": "function_call", "call_id": "call_1", "name": "f"}, "/input/1/arguments"),
        (call(arguments={"a": 1}), "/input/1/arguments"),
        ({"type": "function_call_output", "output": "1"}, "/input/1/call_id"),
        ({"type": "function_call_output", "call_id": "call_1"}, "/input/1/output"),
        (output(output={"a": 1}), "/input/1/output"),
        (output(output=[5]), "/input/1/output/0"),
        (output(output=["a", {"type": "input_text"}]), "/input/1/output/1"),
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
        ({"response_format": {"type": None}}, "/response_format/type"),
        ({"response_format": {}}, "/response_format/type"),
        ({"response_format": {"type": "json_schema"}}, "/response_format/json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "/response_format/json_schema/name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "/response_format/json_schema/schema",
        ),
        ({"tools": {}}, "/tools"),
        ({"tools": ["f"]}, "/tools/0"),
        ({"tools": [{"type": "web_search"}]}, "/tools/0/type"),
        ({"tools": [{"type": "function"}]}, "/tools/0/name"),
        ({"tools": [tool(parameters=[])]}, "/tools/0/parameters"),
        ({"tools": [tool(strict="yes")]}, "/tools/0/strict"),
        ({"tool_choice": "any"}, "/tool_choice"),
        ({"tool_choice": []}, "/tool_choice"),
        ({"tool_choice": {"type": "function"}}, "/tool_choice/name"),
        ({"previous_response_id": []}, "/previous_response_id"),
        ({"instructions": ["Be brief."]}, "/instructions"),
        ({"text": "text"}, "/text"),
        ({"text": {"format": {"type": "xml"}}}, "/text/format/type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "/text/format/schema"),
        ({"text": {"verbosity": "high"}}, "/text/verbosity"),
        ({"background": "yes"}, "/background"),
        ({"metadata": []}, "/metadata"),
        ({"reasoning": True}, "/reasoning"),
        ({"reasoning": {"effort": "much"}}, "/reasoning/effort"),
        ({"user": 5}, "/user"),
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
@pytest.mark.parametrize("value", [True, False, 0, 5], ids=repr)
def test_a_falsy_or_ill_typed_member_is_not_dropped(member, value):
    assert refusal(**{member: value}).param == f"/{member}"


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


# Tools.


@ours
@pytest.mark.parametrize("arguments", ["", "not JSON", "{", "[1]", '{"a":1}'], ids=repr)
def test_b0_10_the_arguments_of_an_earlier_call_are_any_text(arguments):
    assert read(input=[call(arguments=arguments)]).input[0].arguments == arguments


@ours
@pytest.mark.parametrize(
    "parts",
    [
        ["Ei", "ns"],
        [{"type": "input_text", "text": "Ei"}, {"type": "output_text", "text": "ns"}],
        [{"type": "text", "text": "Eins"}, ""],
    ],
    ids=str,
)
def test_the_output_of_a_call_as_parts_is_their_text_joined(parts):
    assert read(input=[call(), output(output=parts)]).input[1].output == "Eins"


@ours
def test_the_output_of_a_call_may_be_empty():
    assert read(input=[call(), output(output="")]).input[1].output == ""
    assert read(input=[call(), output(output=[])]).input[1].output == ""


@ours
def test_b0_3_an_output_that_is_not_text_is_refused():
    image = {"type": "input_image", "image_url": "data:image/png;base64,"}

    assert refusal(UnsupportedContent, input=[call(), output(output=[image])]).param == "/input/1/output/0"


@ours
def test_b0_10_a_repeated_name_is_refused():
    problem = refusal(tools=[tool("f"), tool("g"), tool("f")])

    assert problem.code == "invalid_request"
    assert problem.param == "/tools/2/name"


@ours
@pytest.mark.parametrize("name", ["", "two words", "a\n", "é", "a" * 129, 5])
def test_a_name_that_is_none_is_refused(name):
    assert refusal(tools=[tool(name)]).param == "/tools/0/name"


@ours
@pytest.mark.parametrize("name", ["f", "get_weather", "a-b", "mcp.server.tool", "7", "a" * 128])
def test_a_name_that_is_one_is_accepted(name):
    assert read(tools=[tool(name)]).tools[0].name == name


@ours
@pytest.mark.parametrize("tools", [None, []], ids=repr)
def test_b0_10_a_call_cannot_be_required_without_tools(tools):
    assert refusal(tools=tools, tool_choice="required").param == "/tool_choice"
    assert refusal(tools=tools, tool_choice={"type": "function", "name": "f"}).param == "/tool_choice/name"


@ours
@pytest.mark.parametrize("choice", ["auto", "none"])
def test_b0_10_any_other_choice_needs_no_tools(choice):
    assert read(tool_choice=choice).tool_choice == choice


@ours
def test_b0_10_an_unknown_name_is_refused_and_the_closest_named():
    problem = refusal(tools=[tool("get_weather"), tool("f")], tool_choice={"type": "function", "name": "get_wether"})

    assert problem.param == "/tool_choice/name"
    assert "'get_weather'" in problem.detail


@ours
@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "name": "g"}], ids=str)
@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"type": "string"}, "/type"),
        ({"type": ["object", "null"]}, "/type"),
        ({"type": None}, "/type"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "/properties/a/type"),
        ({"properties": {"a": {"not": {}}}}, "/properties/a/not"),
    ],
    ids=str,
)
def test_b0_10_parameters_that_cannot_be_enforced_are_refused_whatever_the_choice(parameters, pointer, choice):
    problem = refusal(InvalidSchema, tools=[tool("g"), tool("f", parameters=parameters)], tool_choice=choice)

    assert (problem.status, problem.code) == (400, "invalid_schema")
    assert problem.param == f"/tools/1/parameters{pointer}"


@ours
@pytest.mark.parametrize("parameters", [{}, {"type": "object"}], ids=str)
def test_parameters_without_a_type_are_an_object(parameters):
    assert read(tools=[tool(parameters=parameters)]).tools[0].parameters == {"type": "object"}


@ours
def test_b0_11_a_schema_that_cannot_be_enforced_is_refused_where_it_is_wrong():
    schema = {"type": "object", "properties": {"a/b": {"not": {}}}}
    flat = {"type": "json_schema", "name": "n", "schema": schema}
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}

    assert (
        refusal(InvalidSchema, response_format=nested).param
        == "/response_format/json_schema/schema/properties/a~1b/not"
    )
    assert refusal(InvalidSchema, text={"format": flat}).param == "/text/format/schema/properties/a~1b/not"


# What Responses clients send at the top.


@ours
def test_b7_4_instructions_are_read():
    assert read(instructions="Be brief.").instructions == "Be brief."


@ours
@pytest.mark.parametrize(
    ("member", "value"),
    [("top_p", 0.5), ("presence_penalty", -2), ("frequency_penalty", 0), ("parallel_tool_calls", False)],
)
def test_b7_4_sampling_at_the_top_is_an_option(member, value):
    assert getattr(read(**{member: value}).options, member) == value


@ours
@pytest.mark.parametrize(
    ("reasoning", "enabled"),
    [
        ({"effort": "none"}, False),
        ({"effort": "minimal"}, True),
        ({"effort": "high", "summary": "auto"}, True),
        ({"enabled": False}, False),
        ({"effort": "low", "enabled": True}, True),
    ],
    ids=str,
)
def test_b7_4_reasoning_at_the_top_is_an_option(reasoning, enabled):
    assert read(reasoning=reasoning).options.reasoning == ReasoningOptions(enabled=enabled)


@ours
@pytest.mark.parametrize("reasoning", [{}, {"summary": "auto"}], ids=str)
def test_b7_4_reasoning_that_says_nothing_leaves_the_model_its_own_way(reasoning):
    assert read(reasoning=reasoning).options.reasoning is None


@ours
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("truncation", "disabled"),
        ("service_tier", "auto"),
        ("service_tier", "default"),
        ("top_logprobs", 0),
        ("include", []),
        ("max_tool_calls", None),
        ("text", {"verbosity": "medium"}),
    ],
)
def test_b7_4_a_neutral_value_is_accepted(member, value):
    request = read(**{member: value})

    assert (request.options, request.response_format) == (Options(), None)


@ours
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("truncation", "auto"),
        ("service_tier", "flex"),
        ("top_logprobs", 1),
        ("include", ["reasoning.encrypted_content"]),
        ("max_tool_calls", 1),
    ],
)
def test_b7_4_any_other_value_is_refused(member, value):
    problem = refusal(**{member: value})

    assert problem.code == "invalid_request"
    assert problem.param == f"/{member}"


@ours
@pytest.mark.parametrize("member", ["user", "safety_identifier", "prompt_cache_key"])
def test_b7_4_what_names_a_user_or_a_cache_is_accepted_and_ignored(member):
    assert getattr(read(**{member: "x"}), member) == "x"


@ours
def test_b7_4_a_flat_schema_is_a_response_format():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    flat = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}

    assert read(text={"format": flat}).response_format == read(response_format=nested).response_format
    assert read(text={"format": flat}, response_format=nested).schema == schema
    assert read(text={"format": {"type": "text"}}).response_format == TextFormat()


@ours
@pytest.mark.parametrize(
    "response_format",
    [{"type": "text"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}}}],
    ids=str,
)
def test_b0_5_a_format_given_twice_with_different_values_is_refused(response_format):
    flat = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}

    assert refusal(text={"format": flat}, response_format=response_format).param == "/text/format"


@ours
@pytest.mark.parametrize(
    ("member", "value", "other"),
    [
        ("top_p", 0.5, 0.6),
        ("presence_penalty", 1, 0),
        ("frequency_penalty", 1, 2),
        ("parallel_tool_calls", True, False),
        ("reasoning", {"enabled": True}, {"enabled": False}),
    ],
)
def test_b0_5_one_setting_may_be_given_twice_but_with_one_value(member, value, other):
    twice = read(**{member: value}, extensions={"lmsp_jupyter": {member: value}})
    assert twice.options == read_options(**{member: value})

    problem = refusal(**{member: value}, extensions={"lmsp_jupyter": {member: other}})
    assert problem.code == "invalid_request"
    assert problem.param == f"/{member}"


@ours
def test_b0_5_reasoning_that_contradicts_itself_is_refused():
    assert refusal(reasoning={"effort": "none", "enabled": True}).param == "/reasoning"


@ours
def test_b7_5_background_needs_store():
    assert read(background=True, store=True).background is True
    assert refusal(background=True).param == "/background"
    assert refusal(background=True, store=False).param == "/background"


@ours
@pytest.mark.parametrize(
    "metadata",
    [{}, {"a": ""}, {str(index): "x" for index in range(16)}, {"k" * 64: "v" * 512}],
    ids=["none", "empty", "16", "long"],
)
def test_b3_2_metadata_is_up_to_16_pairs_of_strings(metadata):
    assert read(metadata=metadata).metadata == metadata


@ours
@pytest.mark.parametrize(
    "metadata",
    [
        {str(index): "x" for index in range(17)},
        pytest.param(
            {"a": 1},
        ),
        pytest.param(
            {"a": {}},
        ),
        pytest.param(
            {"a": "v" * 513},
        ),
        pytest.param(
            {"k" * 65: "v"},
        ),
    ],
    ids=["17", "a number", "an object", "a long value", "a long key"],
)
def test_b3_2_any_other_metadata_is_refused(metadata):
    problem = refusal(metadata=metadata)

    assert problem.code == "invalid_request"
    assert problem.param == "/metadata"


# Tasks and other bodies.


def read_task(**members):
    return parse_task(json.dumps(members).encode())


def refused_task(**members):
    with pytest.raises(BadRequest) as caught:
        read_task(**members)
    return caught.value


@ours
def test_b3_1_a_task_holds_a_request_and_metadata():
    request, metadata = read_task(
        type="response", request={"model": MODEL, "input": "Hi.", "stream": True}, metadata={"notebook": "a.ipynb"}
    )

    assert request == read(stream=True)
    assert metadata == {"notebook": "a.ipynb"}
    assert read_task(type="response", request={"model": MODEL, "input": "Hi."})[1] == {}


@ours
@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({}, "/type"),
        ({"type": "batch"}, "/type"),
        ({"type": "response"}, "/request"),
        ({"type": "response", "request": []}, "/request"),
        ({"type": "response", "request": {}}, "/request/model"),
        ({"type": "response", "request": {"model": "m", "input": []}}, "/request/input"),
        ({"type": "response", "request": {"model": "m", "input": "Hi.", "temprature": 1}}, "/request/temprature"),
        (
            {"type": "response", "request": {"model": "m", "input": [{"role": "cook", "content": "Hi."}]}},
            "/request/input/0/role",
        ),
        ({"type": "response", "request": {"model": "m", "input": "Hi."}, "metadata": "a"}, "/metadata"),
        ({"type": "response", "request": {"model": "m", "input": "Hi."}, "meta": {}}, "/meta"),
    ],
    ids=str,
)
def test_b3_1_a_task_is_refused_with_pointers_from_its_own_top(members, pointer):
    assert refused_task(**members).param == pointer


@ours
def test_b3_1_the_request_of_a_task_is_refused_with_the_kind_that_it_has_alone():
    wrong = {"model": MODEL, "input": "Hi.", "tools": [tool(parameters={"type": "string"})]}

    problem = refused_task(type="response", request=wrong)

    assert isinstance(problem, InvalidSchema)
    assert problem.errors[0][0] == "/request/tools/0/parameters/type"


@ours
def test_b5_2_another_body_is_read_as_its_type():
    token = parse(b'{"name": "laptop", "scopes": ["models:read"], "expires_in": null}', TokenRequest)

    assert token == TokenRequest(name="laptop", scopes=["models:read"])


@ours
@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"scopes": ["models:read"]}, "/name"),
        ({"name": "", "scopes": ["models:read"]}, "/name"),
        ({"name": "a", "scopes": []}, "/scopes"),
        ({"name": "a", "scopes": ["tools:execute"]}, "/scopes/0"),
        ({"name": "a", "scopes": ["models:read"], "expires_in": 0}, "/expires_in"),
        ({"name": "a", "scopes": ["models:read"], "expires": 1}, "/expires"),
    ],
    ids=str,
)
def test_b5_2_another_body_is_refused_where_it_is_wrong(members, pointer):
    with pytest.raises(BadRequest) as caught:
        parse(json.dumps(members).encode(), TokenRequest)

    assert caught.value.param == pointer


# Versions.


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
