"""B2: the common rules: versions, problems, extensions and bodies. Idempotency: `test_b2_idempotency`."""

import pytest

from . import sse
from .api import WEATHER, message, refused, said

pytestmark = pytest.mark.ours

NONE = "01J8M6Q4W2T7N5R3V9X1Z8B0DF"
JSON = {"Content-Type": "application/json"}


# B2.1


def test_b2_1_every_answer_carries_the_version(lmsp):
    task = lmsp.finish(lmsp.ask(max_output_tokens=1))
    wrong = {"Authorization": "Bearer wrong"}
    answers = [
        lmsp.get(),
        lmsp.get("/models"),
        lmsp.get("/health"),
        lmsp.get("/nowhere"),
        lmsp.get("", headers=wrong),
        lmsp.get("", headers={"LMSP-Version": "2.0"}),
        lmsp.get(f"/tasks/{task['id']}/events"),
        lmsp.get(f"/tasks/{task['id']}/events", params={"after": task["last_event_id"]}),
        lmsp.request("HEAD", "/models"),
        lmsp.request("OPTIONS", "/responses"),
        lmsp.post("/responses", lmsp.ask(max_output_tokens=1)),
        lmsp.post("/responses", lmsp.ask(max_output_tokens=1, stream=True)),
        lmsp.post("/responses", lmsp.ask(temperature=9)),
        lmsp.delete(f"/tasks/{task['id']}"),
    ]

    assert [answer.headers.get("LMSP-Version") for answer in answers] == ["1.0"] * len(answers)


@pytest.mark.parametrize("version", ["2.0", "1.1", "one"])
def test_b2_1_another_version_is_refused(lmsp, version):
    for answer in (
        lmsp.get("", headers={"LMSP-Version": version}),
        lmsp.post("/responses", lmsp.ask(), headers={"LMSP-Version": version}),
    ):
        problem = refused(answer, 400, "unsupported_version")
        assert problem["supported_versions"] == ["1.0"]


@pytest.mark.parametrize("headers", [{}, {"LMSP-Version": "1.0"}])
def test_b2_1_no_header_is_1_0(lmsp, headers):
    assert lmsp.get("", headers=headers).status_code == 200


# B2.2


@pytest.fixture(params=["temperature", "model", "path", "token"])
def problem(lmsp, request):
    """Problem documents of several kinds."""
    answers = {
        "temperature": lambda: lmsp.post("/responses", lmsp.ask(temperature=9)),
        "model": lambda: lmsp.post("/responses", lmsp.ask(model="none-such")),
        "path": lambda: lmsp.get("/nowhere"),
        "token": lambda: lmsp.get("", headers={"Authorization": "Bearer wrong"}),
    }
    answer = answers[request.param]()
    return refused(answer, answer.status_code, answer.json()["code"])


def test_b2_2_the_members_of_a_problem(problem):
    assert all(isinstance(problem[name], str) for name in ("type", "title", "detail", "instance", "code", "message"))
    assert isinstance(problem["status"], int)
    assert problem["message"] == problem["detail"]
    assert "param" in problem


def test_b2_2_a_problem_tells_no_secrets(lmsp, problem):
    text = str(problem)

    assert "Traceback" not in text
    assert ".py" not in text
    assert lmsp.token not in text


def test_b2_2_validation_points_at_what_is_wrong(lmsp):
    request = lmsp.ask(input=[message("Hello"), {"type": "message", "role": "user", "content": 5}])

    problem = refused(lmsp.post("/responses", request), 400, "invalid_request", "/input/1/content")

    assert all(isinstance(error["detail"], str) for error in problem["errors"])


def test_b2_2_instance_is_the_path_that_was_asked(lmsp):
    problem = refused(lmsp.get("/nowhere"), 404, "not_found")

    assert problem["instance"].endswith("/lmsp/v1/nowhere")


# B2.3; the other codes stand with what they are about


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", f"/responses/resp_{NONE}", 404, "response_not_found"),
        ("GET", f"/responses/resp_{NONE}/input_items", 404, "response_not_found"),
        ("DELETE", f"/responses/resp_{NONE}", 404, "response_not_found"),
        ("POST", f"/responses/resp_{NONE}/cancel", 404, "response_not_found"),
        ("GET", f"/tasks/task_{NONE}", 404, "task_not_found"),
        ("GET", f"/tasks/task_{NONE}/events", 404, "task_not_found"),
        ("DELETE", f"/tasks/task_{NONE}", 404, "task_not_found"),
        ("POST", f"/tasks/task_{NONE}/cancel", 404, "task_not_found"),
        ("GET", "/models/none-such", 404, "model_not_found"),
        ("DELETE", "/models", 405, "method_not_allowed"),
        ("PUT", "/responses", 405, "method_not_allowed"),
    ],
)
def test_b2_3_what_is_not_there(lmsp, method, path, status, code):
    refused(lmsp.request(method, path), status, code)


def test_b2_3_only_json_is_read(lmsp):
    refused(lmsp.request("POST", "/responses", data={"model": lmsp.model}), 415, "unsupported_media_type")


def test_b2_3_another_host_is_forbidden(lmsp):
    refused(lmsp.get("", headers={"Host": "evil.example"}), 403, "forbidden")


def test_b2_3_a_full_queue_says_when_to_come_back(lmsp, queued_task):
    limit = lmsp.get().json()["limits"]["queue"]
    if limit > 100:
        pytest.skip("this queue takes long to fill")
    tasks = []
    try:
        while (answer := lmsp.post("/tasks", {"type": "response", "request": lmsp.ask()})).status_code == 202:
            tasks.append(answer.json())
            assert len(tasks) <= limit
        refused(answer, 429, "queue_full")
        assert int(answer.headers["Retry-After"]) > 0
        refused(lmsp.post("/responses", lmsp.ask()), 429, "queue_full")
    finally:
        for task in tasks:
            lmsp.remove_task(task)


# B2.4


def extended(lmsp, text="Tell me a long story.", **options):
    return lmsp.ask(text, extensions={"lmsp_jupyter": options}, max_output_tokens=12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_p": 0.9, "top_k": 40, "min_p": 0.05},
        {"frequency_penalty": 0.5, "presence_penalty": -0.5},
        {"parallel_tool_calls": False},
        {"reasoning": {"enabled": False}},
        {"stop": ["zebra"], "seed": 1},
    ],
)
def test_b2_4_what_is_read(lmsp, options):
    lmsp.respond(extended(lmsp, **options))


def test_b2_4_a_seed_repeats_what_chance_made(lmsp):
    texts = [said(lmsp.respond(extended(lmsp, seed=7) | {"temperature": 1.5})) for _ in range(2)]

    assert texts[0] == texts[1]


def test_b2_4_a_stop_string_ends_the_text_before_it(lmsp):
    whole = said(lmsp.respond(lmsp.ask("Tell me a long story.", max_output_tokens=12)))
    stop = whole.split()[-2]

    stopped = said(lmsp.respond(extended(lmsp, stop=[stop])))

    assert stopped == whole[: whole.index(stop)]


def test_b2_4_parallel_tool_calls_false_gives_one_call(lmsp):
    request = lmsp.ask("What is the weather in Oslo and in Rome?", tools=[WEATHER], tool_choice="required")
    request |= {"max_output_tokens": 120, "extensions": {"lmsp_jupyter": {"parallel_tool_calls": False}}}

    (item,) = [item for item in lmsp.respond(request)["output"] if item["type"] == "function_call"]
    assert item["name"] == "get_weather"


def test_b2_4_other_vendors_are_ignored(lmsp):
    lmsp.respond(lmsp.ask(extensions={"com.example": {"top_k": "many"}, "other": 5}, max_output_tokens=1))


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"topk": 5}, "/topk"),
        ({"top_k": "5"}, "/top_k"),
        ({"top_p": 2}, "/top_p"),
        ({"stop": "a"}, "/stop"),
        ({"seed": 0.5}, "/seed"),
        ({"reasoning": True}, "/reasoning"),
        ({"reasoning": {"enabled": 1}}, "/reasoning/enabled"),
    ],
)
def test_b2_4_an_unknown_or_ill_typed_member_of_its_own(lmsp, options, pointer):
    answer = lmsp.post("/responses", extended(lmsp, **options))

    assert refused(answer, 400, answer.json()["code"])["param"] == f"/extensions/lmsp_jupyter{pointer}"


# B2.6


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"model": "a", "input": "\xff"}',
        b'{"model": "a", "model": "a", "input": "hi"}',
        b'{"model": "a", "input": [{"role": "user", "role": "user", "content": "hi"}]}',
        b'{"model": "a", "input": "hi", "temperature": NaN}',
        b'{"model": "a", "input": "hi", "temperature": 1e999}',
        b'{"model": "a", "input": "hi", "temperature": -Infinity}',
        b'{"model": "a", "input": "hi", "extensions": {"other": 1' + b"0" * 400 + b"}}",
        b'{"model": "a", "input": "hi", "extensions": {"other": ' + nested(127).encode() + b"}}",
        b'{"model": "a", "input": "hi", "extensions": {"other": ' + nested(100_000).encode() + b"}}",
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
@pytest.mark.parametrize("path", ["/responses", "/tasks"])
def test_b2_6_bodies_that_are_refused(lmsp, path, body):
    refused(lmsp.post(path, content=body, headers=JSON), 400, "invalid_request")


def test_b2_6_a_depth_of_128_is_read(lmsp):
    body = f'{{"model": "{lmsp.model}", "input": "hi", "max_output_tokens": 1, "extensions": {{"a": {nested(126)}}}}}'

    assert lmsp.post("/responses", content=body, headers=JSON).status_code == 200


def test_b2_6_a_body_that_is_too_large(lmsp):
    limit = lmsp.get().json()["limits"]["body"]
    if limit > 2**26:
        pytest.skip("the limit is very large")

    answer = lmsp.post("/responses", content=b'{"input": "' + b"a" * limit, headers=JSON)

    refused(answer, 413, "payload_too_large")


def test_b2_2_the_error_of_a_stream_is_what_a_synchronous_request_would_get(lmsp):
    answer = lmsp.post("/responses", lmsp.ask(model="none-such", stream=True))

    refused(answer, 404, "model_not_found")
    assert list(sse.read([answer.content])) == []
