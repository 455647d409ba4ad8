"""A2: the synchronous response. A2.4 needs a generation that fails, which nobody can order from outside."""

import pytest

pytestmark = pytest.mark.chapter6


@pytest.fixture(scope="module")
def response(lmsp):
    return lmsp.respond(lmsp.ask())


@pytest.fixture(scope="module")
def cut(lmsp):
    """A response that met its limit."""
    return lmsp.respond(lmsp.ask("Tell me a long story.", max_output_tokens=4))


def test_a2_1_the_answer_comes_in_a_final_status(response):
    assert response["status"] in ("completed", "incomplete")


def test_a2_2_the_fields_of_a_response(lmsp, response):
    assert isinstance(response["id"], str)
    assert response["object"] == "response"
    assert isinstance(response["created_at"], int)
    assert response["model"] == lmsp.model
    assert isinstance(response["output"], list)
    assert response["error"] is None


def test_a2_2_created_at_is_in_seconds(response):
    assert 1_500_000_000 < response["created_at"] < 100_000_000_000


def test_a2_2_usage_counts_tokens(response):
    usage = response["usage"]

    assert usage["input_tokens"] > 0
    assert usage["output_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a2_2_ids_differ(lmsp, response, cut):
    assert response["id"] != cut["id"]


def test_a2_2_a_response_that_met_its_limit_is_incomplete_and_says_why(response, cut):
    assert cut["status"] == "incomplete"
    assert cut["error"] is None
    assert isinstance(cut["incomplete_details"]["reason"], str)
    if response["status"] == "completed":
        assert response["incomplete_details"] is None


def test_a2_3_a_message_has_its_parts(response):
    messages = [item for item in response["output"] if item["type"] == "message"]

    assert len({item["id"] for item in response["output"]}) == len(response["output"])
    assert messages
    for item in messages:
        assert item["role"] == "assistant"
        for part in item["content"]:
            assert part["type"] == "output_text"
            assert isinstance(part["text"], str)


@pytest.mark.needs("reasoning")
def test_a2_3_reasoning_has_its_summary(lmsp):
    response = lmsp.respond(lmsp.ask(max_output_tokens=400))

    thoughts = [item for item in response["output"] if item["type"] == "reasoning"]
    assert thoughts
    for item in thoughts:
        assert isinstance(item["id"], str)
        assert all(part["type"] == "summary_text" and isinstance(part["text"], str) for part in item["summary"])


@pytest.mark.needs("conversations")
def test_a2_5_a_stored_response_is_fetched_as_it_was_answered(lmsp):
    response = lmsp.respond(lmsp.ask(store=True))

    fetched = lmsp.get(f"/responses/{response['id']}")

    assert fetched.status_code == 200
    for name in ("id", "object", "created_at", "status", "model", "output", "usage", "error", "incomplete_details"):
        assert fetched.json()[name] == response[name]


@pytest.mark.needs("conversations")
def test_a2_5_an_unknown_response(lmsp):
    answer = lmsp.get("/responses/resp_01J8M6Q4W2T7N5R3V9X1Z8B0DF")

    assert answer.status_code == 404
    assert "response_not_found" in answer.text
