"""B0.11: a schema is enforced to the letter, or refused with a pointer to the keyword."""

import json

import jsonschema
import pytest

from .api import refused, said, structured

pytestmark = pytest.mark.ours

PLACE = "/response_format/json_schema/schema"


def closed(**properties):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        closed(color={"enum": ["red", "blue"]}, count={"type": "integer", "minimum": 1, "maximum": 9}),
        closed(at={"$ref": "#/$defs/n"}) | {"$defs": {"n": {"type": "integer", "minimum": 3, "maximum": 6}}},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        {"enum": ["👩‍👧 wörld", "日本語"]},
        {"const": 'a "quoted" \\ thing'},
        {"anyOf": [{"type": "null"}, {"enum": [1, 2]}]},
        {"type": "string", "pattern": "^[a-c]{3}$"},
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": "string", "format": "date"},
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 3, "maxItems": 3, "uniqueItems": True},
        {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "minItems": 1, "maxItems": 2},
        {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]},
        {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
        {"type": "string", "not": {"const": "yes"}},
        closed(a={"type": "boolean"}) | {"if": {"properties": {"a": {"const": True}}}, "then": {"maxProperties": 0}},
        {"type": "object", "minProperties": 1, "maxProperties": 1},
        {"type": "object", "propertyNames": {"pattern": "^[ab]$"}, "additionalProperties": {"enum": [1]}},
        {"type": "object", "patternProperties": {"^x": {"enum": [1]}}, "minProperties": 1},
        closed(a={"enum": [1]}) | {"unevaluatedProperties": False},
        {"enum": []},
    ],
    ids=json.dumps,
)
def test_b0_11_a_schema_is_enforced_or_refused(lmsp, schema):
    answer = lmsp.post("/responses", lmsp.ask("Answer.", response_format=structured(schema), max_output_tokens=40))

    if answer.status_code == 400:
        problem = refused(answer, 400, "invalid_schema")
        assert problem["param"].startswith(PLACE)
    elif answer.status_code == 200 and answer.json()["status"] == "completed":
        checker = jsonschema.FormatChecker()
        jsonschema.validate(json.loads(said(answer.json())), schema, format_checker=checker)
    elif answer.status_code == 200:
        assert answer.json()["status"] == "incomplete"
    else:
        refused(answer, 500, "output_invalid")


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "nothing"}, "/type"),
        (closed(a={"type": "string", "pattern": "("}), "/properties/a/pattern"),
        ({"type": "array", "items": {"minimum": "3"}}, "/items/minimum"),
        ({"$ref": "#/$defs/missing"}, "/$ref"),
        ({"$ref": "https://example.com/schema.json"}, "/$ref"),
    ],
    ids=json.dumps,
)
def test_b0_11_a_schema_that_is_none_is_refused_with_its_keyword(lmsp, schema, pointer):
    answer = lmsp.post("/responses", lmsp.ask(response_format=structured(schema)))

    refused(answer, 400, "invalid_schema", PLACE + pointer)


def test_b0_11_what_met_the_limit_is_incomplete(lmsp):
    long = structured({"enum": ["one two three four five six seven eight nine ten"]})

    response = lmsp.respond(lmsp.ask(response_format=long, max_output_tokens=2))

    assert response["status"] == "incomplete"
