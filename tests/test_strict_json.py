"""Reading the JSON of a body (B0.3, B2.6)."""

import json
import tracemalloc

import pytest

from lmsp_jupyter.errors import BadRequest, PayloadTooLarge
from lmsp_jupyter.strict_json import MAX_BODY_BYTES, read_json

ours = pytest.mark.ours


def refused_json(body):
    with pytest.raises(BadRequest) as caught:
        read_json(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    return caught.value


@ours
@pytest.mark.parametrize("body", [b"[]", b"null", b"5", b'"model"', b"true", b'[{"model": "m"}]'], ids=repr)
def test_b2_6_a_body_that_is_no_object_is_refused(body):
    refused_json(body)


@ours
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"a": 1,}',
        b'{"a": 01}',
        b'{"a": 0x1}',
        b"{'a': 1}",
        b"{a: 1}",
        b'{"a": 1} x',
        b'{"a": "\n"}',
        b'{"a": "\\x"}',
        b'{"a": 1} // one',
        b'\xef\xbb\xbf{"a": 1}',
    ],
    ids=repr,
)
def test_b2_6_a_body_that_is_not_json_is_refused(body):
    refused_json(body)


@ours
@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "\xff"}',
        b'{"a": "\xc3"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xc0\x80"}',
        '{"a": "é"}'.encode("latin-1"),
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-16-le"),
    ],
    ids=repr,
)
def test_b2_6_a_body_that_is_not_utf_8_is_refused(body):
    refused_json(body)


@ours
@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "b": 2, "a": 3}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a": {"b": [{"c": 1, "c": 2}]}}',
        b'{"": 1, "": 2}',
        b'{"\\ud800": 1, "\\ud800": 2}',
    ],
    ids=repr,
)
def test_b2_6_a_repeated_key_is_refused(body):
    json.dumps(refused_json(body).document()).encode("ascii")


@ours
def test_b2_6_a_repeated_key_is_named():
    assert "'temperature'" in refused_json(b'{"temperature": 1, "temperature": 2}').detail


NESTS = {
    "arrays": (b"[", b"]", b""),
    "objects": (b'{"a":', b"}", b"{}"),
}


def nested(kind, depth, leaf=None):
    """An object that holds others to this depth, itself included."""
    opening, closing, innermost = NESTS[kind]
    innermost = leaf or innermost
    inside = depth - 1 - (innermost == b"{}")
    return b'{"a":' + opening * inside + innermost + closing * inside + b"}"


@ours
@pytest.mark.parametrize("leaf", [None, b"1", b'"x"', b"null"], ids=repr)
@pytest.mark.parametrize("kind", NESTS)
def test_b2_6_depth_128_is_read(kind, leaf):
    read_json(nested(kind, 128, leaf))


@ours
@pytest.mark.parametrize("leaf", [None, b"1", b'"x"', b"null"], ids=repr)
@pytest.mark.parametrize("depth", [129, 1_000, 100_000])
@pytest.mark.parametrize("kind", NESTS)
def test_b2_6_depth_over_128_is_refused(kind, depth, leaf):
    assert "128" in refused_json(nested(kind, depth, leaf)).detail


@ours
@pytest.mark.parametrize(
    "number",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1" * 310 + ".0",
        "1" * 309 + "1",
        "1" * 400,
        "1" * 401,
        "1" * 5_000,
        "-" + "1" * 5_000,
        "2" * 1_000_000,
    ],
    ids=lambda number: f"{number[:9]} of {len(number)}",
)
def test_b2_6_a_number_that_is_no_finite_double_is_refused_where_it_stands(number):
    problem = refused_json(b'{"a": [0, {"b/c": %s}]}' % number.encode())

    assert problem.param == "/a/1/b~1c"


@ours
@pytest.mark.parametrize(
    ("number", "value"),
    [
        (b"1e308", 1e308),
        (b"-1.7976931348623157e308", -1.7976931348623157e308),
        (b"1e-999", 0.0),
        (b"-0", 0),
        (b"9007199254740993", 9007199254740993),
        (b"1" * 309, int("1" * 309)),
    ],
    ids=lambda number: str(number)[:24],
)
def test_b2_6_a_number_that_is_a_finite_double_is_read(number, value):
    assert read_json(b'{"a": %s}' % number) == {"a": value}


@ours
@pytest.mark.parametrize("text", ["\\ud83d", "\\ude00", "a\\ud83d\\ud83d\\ude00", "\\ude00\\ud83d"])
def test_b0_3_a_lone_surrogate_in_a_value_is_refused_where_it_stands(text):
    problem = refused_json(b'{"a": [{"b": "%s"}]}' % text.encode())

    assert problem.param == "/a/0/b"
    json.dumps(problem.document()).encode("ascii")
    problem.detail.encode("utf-8")


@ours
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"\\ud83d": 1}', ""),
        (b'{"a": {"\\ude00x": {}}}', "/a"),
        (b'{"a": [{"\\ud800": 1}]}', "/a/0"),
    ],
    ids=repr,
)
def test_b0_3_a_lone_surrogate_in_a_key_is_refused(body, pointer):
    problem = refused_json(body)

    assert problem.param == pointer
    problem.detail.encode("utf-8")


@ours
def test_b0_3_a_whole_surrogate_pair_is_a_character():
    assert read_json(b'{"\\ud83d\\ude00": "\\ud83d\\ude00\\u0000"}') == {"😀": "😀\0"}


@ours
def test_b2_6_a_body_of_the_limit_is_read_and_a_byte_more_refused():
    body = b'{"a": 1}'
    assert read_json(body, max_bytes=len(body)) == {"a": 1}

    with pytest.raises(PayloadTooLarge) as caught:
        read_json(body, max_bytes=len(body) - 1)

    assert (caught.value.status, caught.value.code) == (413, "payload_too_large")


@ours
def test_b2_6_the_limit_is_8_mib():
    assert MAX_BODY_BYTES == 8 * 1024 * 1024

    with pytest.raises(PayloadTooLarge):
        read_json(b" " * (MAX_BODY_BYTES + 1))


@ours
def test_b2_6_a_body_takes_memory_in_proportion_to_its_size():
    """One long key above many values: pointers are for problems, not for every value."""
    body = b'{"%s": [%s]}' % (b"k" * 100_000, b",".join([b"0"] * 1_000))
    tracemalloc.start()
    try:
        read_json(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 20 * len(body)
