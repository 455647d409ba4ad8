"""B0.11: a schema is enforced to the letter or refused; what the grammar lets through is valid."""

import datetime
import ipaddress
import json
import random
import re
import uuid
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from lmsp_jupyter import schemas
from lmsp_jupyter.errors import InvalidSchema
from lmsp_jupyter.patterns import byte_tokenizer

ours = pytest.mark.ours


def obj(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), **more}


CLOSED = {"additionalProperties": False}
TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer", "minimum": 0, "maximum": 9},
        "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/T"}},
    },
    "required": ["v"],
}
CAT = obj({"t": {"const": "cat"}, "lives": {"type": "integer"}})
DOG = obj({"t": {"const": "dog"}, "good": {"type": "boolean"}})

ENFORCED = {
    "anything": {},
    "any object": {"type": "object"},
    "an object": obj({"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}),
    "a closed object": obj({"a": {"type": "boolean"}, "b": {"type": "boolean"}}, **CLOSED),
    "optional properties": {"type": "object", "properties": {name: {"type": "boolean"} for name in "abcd"}, **CLOSED},
    "required out of order": {**obj({name: {"type": "boolean"} for name in "abc"}), "required": ["c", "a"]},
    "more properties": obj({"a": {"type": "integer"}}, additionalProperties={"type": "boolean"}, maxProperties=3),
    "any more properties": obj({"a": {"type": "integer"}}, additionalProperties=True),
    "a map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    "patterns of names": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "boolean"}},
        "minProperties": 1,
        **CLOSED,
    },
    "names and patterns": obj({"a": {"type": "null"}}, patternProperties={"^x": {"type": "integer", "minimum": 3}}),
    "names in every script": obj({"姓名": {"type": "string", "maxLength": 5}, 'é"\\\n/': {"type": "boolean"}}),
    "references": {
        "$defs": {"P": obj({"n": {"type": "string", "maxLength": 4}})},
        **obj({n: {"$ref": "#/$defs/P"} for n in "ab"}),
    },
    "old references": {"definitions": {"a b/c": {"type": "integer"}}, **obj({"a": {"$ref": "#/definitions/a%20b~1c"}})},
    "recursion": {"$defs": {"T": TREE}, "$ref": "#/$defs/T"},
    "recursion to the root": {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "v": {"type": "null"}},
        "required": ["v"],
    },
    "alternatives": obj({"x": {"anyOf": [{"type": "integer"}, {"type": "null"}, {"type": "string", "maxLength": 8}]}}),
    "types": obj({"x": {"type": ["string", "null", "integer"], "maxLength": 5}}),
    "values": obj({"c": {"enum": ["red", "grün", "蓝", "👩‍👧", 1, -0.5, None, True, [1, {"a": "b"}]]}}),
    "constants": obj({"k": {"const": "v1"}, "n": {"const": 3}, "x": {"const": 1.25}, "o": {"const": {"a": [1]}}}),
    "integers": obj(
        {"n": {"type": "integer", "minimum": -3, "maximum": 17}, "m": {"type": "integer", "exclusiveMinimum": 0}}
    ),
    "large integers": obj({"n": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}, "m": {"type": "integer"}}),
    "numbers": obj({"n": {"type": "number", "minimum": 0.5, "maximum": 1.5}, "m": {"type": "number"}}),
    "open intervals": obj(
        {"n": {"type": "number", "exclusiveMinimum": 0}, "m": {"type": "number", "exclusiveMaximum": -0.1}}
    ),
    "multiples": obj(
        {"n": {"type": "integer", "multipleOf": 5, "minimum": 1}, "m": {"type": "number", "multipleOf": 0.01}}
    ),
    "both multiples": {"allOf": [{"type": "integer", "multipleOf": 6}, {"multipleOf": 4, "minimum": 1, "maximum": 99}]},
    "lengths": obj(
        {"x": {"type": "string", "minLength": 4, "maxLength": 6}, "y": {"type": "string", "maxLength": 2000}}
    ),
    "a pattern": obj({"z": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}}),
    "a pattern within": obj({"z": {"type": "string", "pattern": r"\d{3}", "maxLength": 12}}),
    "a pattern of classes": obj({"z": {"type": "string", "pattern": r"^[^\s\w]\s.\S$"}}),
    "formats": obj({name: {"type": "string", "format": name} for name in schemas.FORMATS}),
    "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 3, "maxItems": 5},
    "a tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 5}, {"type": "integer"}],
        "items": False,
        "minItems": 2,
    },
    "an open tuple": {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "null"}, "maxItems": 3},
    "one of two objects": {"oneOf": [CAT, DOG]},
    "one of two references": {
        "$defs": {"Cat": CAT, "Dog": DOG},
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    },
    "one of two types": {
        "oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "string", "maxLength": 3}]
    },
    "all of two objects": {"allOf": [obj({"a": {"type": "integer"}}), obj({"b": {"type": "boolean"}})]},
    "all of two, closed": {
        "allOf": [obj({"a": {"type": "boolean"}}), {"properties": {"a": True}, **CLOSED}],
        "type": "object",
    },
    "either property": {
        **obj({"a": {"type": "null"}, "b": {"type": "null"}}),
        "required": [],
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "a reference and more": {
        "$defs": {"N": {"type": "integer"}},
        **obj({"n": {"$ref": "#/$defs/N", "minimum": 3, "maximum": 40}}),
    },
    "bounds of no type": obj({"n": {"minimum": 3, "maxLength": 2, "maxItems": 1}}),
    "annotations": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "T",
        "description": "d",
        "x-order": [1],
        **obj({"a": {"type": "boolean", "default": True, "examples": [True], "deprecated": False, "readOnly": True}}),
    },
    "nothing optional": obj({"a": {"type": "null"}}) | {"properties": {"a": {"type": "null"}, "b": False}},
}

DEEP = {"type": "integer"}
for _ in range(schemas.MAX_NESTING):
    DEEP = {"type": "array", "items": DEEP}

REFUSED = [
    # what is no JSON Schema
    ({"type": "objekt"}, "/type"),
    ({"type": []}, "/type"),
    ({"type": ["string", "string"]}, "/type"),
    ({"type": 3}, "/type"),
    (obj({"a": 3}), "/properties/a"),
    ({"properties": []}, "/properties"),
    ({"anyOf": []}, "/anyOf"),
    ({"anyOf": {}}, "/anyOf"),
    ({"enum": []}, "/enum"),
    ({"required": ["a", "a"]}, "/required"),
    ({"minLength": -1}, "/minLength"),
    ({"minLength": 1.5}, "/minLength"),
    ({"minimum": "1"}, "/minimum"),
    ({"minimum": True}, "/minimum"),
    ({"exclusiveMinimum": True, "minimum": 1}, "/exclusiveMinimum"),
    ({"multipleOf": 0}, "/multipleOf"),
    ({"pattern": 1}, "/pattern"),
    ({"items": [{"type": "null"}]}, "/items"),
    ({"title": 1}, "/title"),
    ({"$schema": "https://example.com/mine"}, "/$schema"),
    ({"$ref": 1}, "/$ref"),
    # what the grammar cannot do
    *(
        (obj({"a/b": {"type": "array", keyword: value}}), f"/properties/a~1b/{keyword}")
        for keyword, value in {
            "uniqueItems": True,
            "contains": {"const": 7},
            "not": {"type": "string"},
            "if": {"type": "string"},
            "dependentRequired": {"a": ["b"]},
            "propertyNames": {"maxLength": 3},
            "unevaluatedProperties": False,
            "additionalItems": False,
            "nullable": True,
            "$id": "https://example.com/a",
            "$anchor": "a",
            "$dynamicRef": "#a",
            "x-guidance": {"lenient": True},
            "requried": ["a"],
        }.items()
    ),
    ({"format": "snowflake"}, "/format"),
    ({"format": "date", "pattern": "^2"}, "/format"),
    ({"pattern": "(?=a)"}, "/pattern"),
    ({"patternProperties": {"(?=a)": True}}, "/patternProperties"),
    (obj({"x1": {}}, patternProperties={"^a": {}, "^x": {}}), "/patternProperties/^x"),
    ({"$ref": "https://example.com/x.json"}, "/$ref"),
    ({"$ref": "#/$defs/Nope"}, "/$ref"),
    ({"$ref": "#nope"}, "/$ref"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf"),
    (obj({"n": {"oneOf": [{"maximum": 10}, {"minimum": 5}]}}), "/properties/n/oneOf"),
    ({"type": "object", "minProperties": 2}, "/minProperties"),
    ({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2}, ""),
    ({"const": 2**53 + 1}, "/const"),
    ({"enum": [0, [1e300]]}, "/enum/1/0"),
    ({"minimum": 0.1234567890123456}, "/minimum"),
    ({"multipleOf": 0.07}, "/multipleOf"),
    ({"multipleOf": 2, "maximum": -1}, "/multipleOf"),
    ({"const": "a\0"}, "/const"),
    (obj({"a\0": {}}), "/properties"),
    # what nothing is valid under
    ({"minimum": 3, "maximum": 2}, "/minimum"),
    ({"exclusiveMinimum": 3, "maximum": 3}, "/exclusiveMinimum"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, ""),
    ({"minLength": 3, "maxLength": 2}, "/minLength"),
    ({"minItems": 3, "maxItems": 2}, "/minItems"),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, ""),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ""),
    ({"type": "string", "enum": [1]}, ""),
    (obj({"a": False}), ""),
    (obj({"a": {"$ref": "#"}}), ""),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, ""),
    ({"$ref": "#"}, ""),
    ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, ""),
    # what costs too much
    ({"type": "string", "maxLength": 10**9}, "/maxLength"),
    ({"type": "array", "maxItems": 10**9}, "/maxItems"),
    ({"pattern": "(a{1000}){1000}"}, "/pattern"),
    ({"description": "x" * schemas.MAX_CHARACTERS}, ""),
    (obj({f"p{index}": {} for index in range(schemas.MAX_SUBSCHEMAS)}), "/properties/p0"),
    (DEEP, "/items" * schemas.MAX_NESTING),
    ({"allOf": [{"anyOf": [obj({f"{i}.{j}": {}}) for j in range(4)]} for i in range(9)]}, ""),
]


def refusal(schema):
    with pytest.raises(InvalidSchema) as caught:
        schemas.check(schema, "/schema")
    return caught.value


def written(schema, seed, steps=1_500):
    """A text that the grammar lets through, with bytes chosen at random; None where it has no end in time."""
    chance = random.Random(seed)
    grammar = LLMatcher.grammar_from_json_schema(schemas.enforced(schema))
    matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    text = bytearray()
    for step in range(steps):
        assert not matcher.is_error(), matcher.get_error()
        if matcher.is_accepting() and (matcher.is_stopped() or chance.random() < 0.5):
            return text.decode()
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        assert allowed, f"a dead end after {text}"
        closing = [byte for byte in allowed if byte in b'"]}']
        byte = chance.choice(closing if closing and chance.random() < 0.3 + step / steps else allowed)
        assert matcher.consume_token(byte)
        text.append(byte)
    return None


@ours
@pytest.mark.parametrize("name", ENFORCED)
def test_b0_11_whatever_the_grammar_lets_through_is_valid(name):
    schema = ENFORCED[name]
    schemas.check(schema, "/schema")
    texts = [written(schema, seed) for seed in range(40)]
    assert sum(text is not None for text in texts) > 20
    for text in texts:
        assert text is None or schemas.mistake_in(text, schema) is None, text


@ours
@pytest.mark.parametrize(("schema", "pointer"), REFUSED, ids=lambda value: json.dumps(value)[:60])
def test_b0_11_what_cannot_be_enforced_is_refused_with_its_pointer(schema, pointer):
    problem = refusal(schema)
    assert (problem.status, problem.code, problem.param) == (400, "invalid_schema", f"/schema{pointer}")


@ours
def test_b0_11_the_answer_to_the_same_schema_is_the_same():
    first, second = (refusal({"not": {}}).document() for _ in range(2))
    assert first == second
    schemas.check({}, "/a")
    schemas.check({}, "/b")


@ours
def test_b0_11_every_schema_that_is_accepted_is_a_json_schema():
    for schema in ENFORCED.values():
        Draft202012Validator.check_schema({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})


@ours
@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "integer", "multipleOf": 3}, ["3", "-6", "3.0"], ["4", "3.5", '"3"', "true"]),
        ({"type": "number", "multipleOf": 0.1}, ["0.3", "1.1", "0"], ["0.35"]),
        ({"exclusiveMaximum": 1}, ["0.99999999999999999999", '"a"'], ["1", "1.0", "2"]),
        ({"maximum": 9007199254740991}, ["9007199254740991"], ["9007199254740991.5"]),
        ({"minimum": 0.1}, ["0.1", "0.10"], ["0.0999999999999999999999"]),
        ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
        ({"maxLength": 1}, ['"😀"', '""'], ['"ab"']),
        ({"const": 1}, ["1", "1.0"], ["true", '"1"']),
        ({"enum": [False]}, ["false"], ["0"]),
        (
            {"type": "object", "patternProperties": {"^x": {"type": "null"}}, **CLOSED},
            ['{"x1": null}', "{}"],
            ['{"x": 1}', '{"y": null}'],
        ),
        (
            obj({"a": {"type": "null"}}, additionalProperties={"type": "null"}),
            ['{"a": null, "b": null}'],
            ['{"a": null, "b": 1}', "{}"],
        ),
        ({"oneOf": [CAT, DOG]}, ['{"t": "cat", "lives": 9}'], ['{"t": "cow"}']),
        ({"$defs": {"T": TREE}, "$ref": "#/$defs/T"}, ['{"v": 1, "kids": [{"v": 2}]}'], ['{"v": 1, "kids": [{}]}']),
        ({}, ["1e999", "[]"], ["", "NaN", "[Infinity]", "{", "1 2", "'a'", "[" * 100_000, "1" * 5_000]),
    ],
)
def test_b0_11_validation_finds_mistakes(schema, valid, invalid):
    schemas.check(schema, "")
    assert [text for text in valid if schemas.mistake_in(text, schema) is not None] == []
    assert [text for text in invalid if not schemas.mistake_in(text, schema)] == []


@ours
def test_b0_11_a_mistake_says_where_and_what():
    schema = obj({"a": {"type": "array", "items": {"type": "integer"}}})
    assert schemas.mistake({"a": [1, "x"]}, schema) == "/a/1: 'x' is not of type 'integer'"
    assert schemas.mistake({}, schema) == "'a' is a required property"
    assert schemas.mistake({"a": [1]}, schema) is None


@ours
@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        (
            "date",
            ["2024-02-29", "2000-02-29", "0001-12-31"],
            ["2023-02-29", "1900-02-29", "2024-04-31", "0000-01-01", "2024-2-9"],
        ),
        ("time", ["23:59:59Z", "00:00:00.25+01:30"], ["24:00:00Z", "12:00:60Z", "12:00:00", "12:00Z"]),
        ("date-time", ["2024-02-29T01:02:03Z", "2024-02-29t01:02:03z"], ["2024-02-29 01:02:03Z", "2024-02-29"]),
        ("duration", ["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P2W"], ["P", "P1", "PT", "P1DT", "P1Y2D", "1D"]),
        (
            "uuid",
            ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
            ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"],
        ),
        ("email", ["joe@example.com", "a.b+c@d"], ["joe", ".a@b", "a..b@c", "a@-b", "a@b-", "a b@c"]),
        ("ipv4", ["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
        (
            "ipv6",
            ["::", "::1", "1::", "fe80::1:2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"],
            ["1:2:3:4:5:6:7:8:9", "1::2::3", ":1", "12345::", "1:2:3:4:5:6:7::8", "fe80::1%eth0"],
        ),
        (
            "uri",
            ["https://a.b/c?d=e#f", "mailto:a@b.c", "urn:a:b", "file:///x", "a:"],
            ["//a", "a", "http://a b", "http://a/%zz", "1a:b", "http://a/\\"],
        ),
    ],
)
def test_b0_11_formats(name, valid, invalid):
    schema = {"format": name}
    assert [text for text in valid if schemas.mistake(text, schema)] == []
    assert [text for text in invalid if not schemas.mistake(text, schema)] == []
    assert schemas.mistake(3, schema) is None


@ours
def test_b0_11_what_the_grammar_writes_for_formats_is_what_others_read():
    readers = {
        "date": datetime.date.fromisoformat,
        "date-time": lambda text: re.sub(r"\.\d+", "", text.upper()).replace("Z", "+00:00"),
        "time": lambda text: datetime.time.fromisoformat(re.sub(r"\.\d+", "", text.upper()).replace("Z", "+00:00")),
        "uuid": uuid.UUID,
        "ipv4": ipaddress.IPv4Address,
        "ipv6": ipaddress.IPv6Address,
        "uri": urlsplit,
    }
    for name, read in readers.items():
        schema = {"type": "string", "format": name}
        for seed in range(40):
            text = written(schema, seed)
            assert text is None or read(json.loads(text))


@ours
@pytest.mark.parametrize(
    ("schema", "allowed", "left_out"),
    [
        ({"type": "integer"}, "9007199254740991", "9007199254740992"),
        ({"type": "number", "minimum": 0}, "0.000000001", "0.0000000001"),
        ({"type": "number"}, "6.02e23", "NaN"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a": null}', '{"b": null}'),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": True}, '{"b": null}', "{ }"),
        # the name of a property, written a second time with an escape
        (obj({"a": {"type": "null"}}, additionalProperties=True), '{"a": null, "b": 1}', '{"a": null, "\\u0061": 1}'),
    ],
)
def test_b0_11_the_grammar_bounds_what_the_schema_leaves_open(schema, allowed, left_out):
    def is_let_through(text):
        grammar = LLMatcher.grammar_from_json_schema(schemas.enforced(schema))
        matcher = LLMatcher(byte_tokenizer(), grammar, log_level=0)
        return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()

    assert is_let_through(allowed)
    assert not is_let_through(left_out)


@ours
def test_b0_11_large_schemas_are_checked():
    schemas.check(obj({f"p{index}": {"type": "string", "maxLength": 2000} for index in range(500)}), "")
    schemas.check({"enum": [f"value {index}" for index in range(5_000)]}, "")
