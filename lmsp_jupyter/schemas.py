"""JSON Schema, enforced to the letter or refused (B0.11): what is supported, as a grammar takes it, and validation.

The server checks schemas before anything is queued, so the engine of grammars is imported inside functions. What a
grammar makes of a schema beside text (tools, reasoning) is left to `engines.calls`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, NoReturn
from urllib.parse import unquote

from . import patterns
from .errors import InvalidSchema
from .strict_json import escape, refuse

MAX_CHARACTERS = 100_000
"""Of a schema as JSON."""

MAX_SUBSCHEMAS = 1_000
MAX_NESTING = 40
MAX_LENGTH = 100_000
"""The largest bound on the characters of a string."""

MAX_ITEMS = 10_000
"""The largest bound on the items of an array or the properties of an object."""

MAX_GRAMMAR = 20_000
"""Symbols of the grammar that a schema makes; combinations of alternatives multiply."""

MAX_NUMBER = 2**53 - 1
"""The largest number in a schema; up to it, doubles hold every integer."""

MAX_DIGITS = 15
"""Decimal digits of a fraction in a schema, all of which a double holds."""

LAYOUT = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # Without \u, which could write the name of a property a second time.
    "json_allowed_escapes": 'nrbtf\\"',
}
"""How the grammar writes JSON: one way, so that a model never runs on in white space."""

_DRAFTS = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/20(19-09|20-12))/schema#?")
# Of numbers with bounds. The llguidance inside llama.cpp finds no multiples below 0.
_STEP = 1e-9
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# Formats, as the patterns of their texts. Leap seconds, IP addresses in URIs and IPv4 in IPv6 are left out.
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR_AND_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_AND_MINUTE}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:[Zz]|[+-]{_HOUR_AND_MINUTE})"
_SPAN = "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"
_DAYS = "(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_H16 = "[0-9A-Fa-f]{1,4}"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?\^_`{|}~\-]+"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})"
FORMATS = {
    name: f"^{pattern}$"
    for name, pattern in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}[Tt]{_TIME}",
        "duration": f"P(?:{_DAYS}(?:{_SPAN})?|{_SPAN}|[0-9]{{1,9}}W)",
        "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
        "email": rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*",
        "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
        "ipv6": "(?:"
        + "|".join(
            [f"(?:{_H16}:){{7}}{_H16}", f"(?:{_H16}:){{1,7}}:", f":(?::{_H16}){{1,7}}", "::"]
            + [f"(?:{_H16}:){{1,{7 - after}}}(?::{_H16}){{1,{after}}}" for after in range(1, 7)]
        )
        + ")",
        "uri": r"[A-Za-z][A-Za-z0-9+.\-]*:(?://(?:(?:[A-Za-z0-9._~!$&'()*+,;=:\-]|%[0-9A-Fa-f]{2})*@)?"
        r"(?:[A-Za-z0-9._~!$&'()*+,;=\-]|%[0-9A-Fa-f]{2})*(?::[0-9]*)?"
        rf"(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_PCHAR}+(?:/{_PCHAR}*)*)?"
        rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?",
    }.items()
}
"""The formats that are enforced, each with the pattern of its texts."""


def check(schema: dict[str, Any], pointer: str) -> None:
    """Raise `InvalidSchema`, with the pointer to the keyword, unless the grammar can enforce the schema to the letter.

    `pointer` is where the schema stands in the request.
    """
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > MAX_CHARACTERS:
        refuse(pointer, f"The schema has {len(text)} characters; at most {MAX_CHARACTERS}.", InvalidSchema)
    if fault := _fault(text):
        at, detail = fault
        refuse(pointer + at, detail, InvalidSchema)


def enforced(schema: dict[str, Any], layout: dict[str, Any] = LAYOUT) -> dict[str, Any]:
    """A schema that `check` accepts, as llguidance takes it: what is valid under it is valid under `schema`.

    What the schema leaves open is bounded where weak models would run on or astray: integers to those that doubles
    hold, the digits of numbers that have some bound, and objects that declare properties to those.
    """
    document = _Document(schema)
    return {**_rewritten(schema, document, narrow=not document.combines()), "x-guidance": layout}


def mistake(value: Any, schema: dict[str, Any]) -> str | None:
    """What is wrong with a JSON value under a schema that `check` accepts, or None."""
    try:
        error = next(_validator()(schema).iter_errors(value), None)
    except RecursionError:
        return "The value is nested too deeply."
    except ArithmeticError:
        return "A number in the value is too large to be checked."
    if error is None:
        return None
    place = "".join(f"/{escape(str(name))}" for name in error.absolute_path)
    return f"{place}: {error.message[:300]}" if place else str(error.message[:300])


def mistake_in(text: str, schema: dict[str, Any]) -> str | None:
    """What is wrong with a text that is to be JSON under a schema that `check` accepts, or None."""
    try:
        value = json.loads(text, parse_float=_Written, parse_constant=_no_constant)
    except RecursionError:
        return "The value is nested too deeply."
    except ValueError as error:
        return f"This is not JSON: {error}."
    return mistake(value, schema)


# What is supported


@lru_cache(128)
def _fault(text: str) -> tuple[str, str] | None:
    """The pointer to what cannot be enforced in a schema, and why; None where all of it can be."""
    schema = json.loads(text)
    try:
        document = _Document(schema)
        _check(document)
    except InvalidSchema as problem:
        return problem.errors[0]
    reason = _engine_refuses(enforced(schema))
    if reason is None:
        return None
    if reason.startswith("oneOf"):
        pointer = next(
            at for at, each in document.schemas.items() if not _are_disjoint(each.get("oneOf", []), document)
        )
        return f"{pointer}/oneOf", "That only one of these is valid cannot be enforced; say how they differ, or anyOf."
    return "", f"The schema cannot be enforced: {reason}."


def _engine_refuses(schema: dict[str, Any]) -> str | None:
    from llguidance import LLMatcher, LLParserLimits

    grammar = LLMatcher.grammar_from_json_schema(schema)
    limits = LLParserLimits(max_grammar_size=MAX_GRAMMAR)
    matcher = LLMatcher(patterns.byte_tokenizer(), grammar, log_level=0, limits=limits)
    return str(matcher.get_error()).splitlines()[0].rpartition("JSON schema: ")[2][:300] if matcher.is_error() else None


_IN_PLACE = ("allOf", "anyOf", "oneOf")
_LISTED = (*_IN_PLACE, "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties")
_ONLY_NAMED = ("$defs", "definitions")


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas right inside a schema, with their pointers from it."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in _SINGLE:
            yield f"/{keyword}", value
        elif keyword in _LISTED and isinstance(value, list):
            yield from ((f"/{keyword}/{index}", each) for index, each in enumerate(value))
        elif keyword in _NAMED and isinstance(value, dict):
            yield from ((f"/{keyword}/{escape(name)}", each) for name, each in value.items())


class _Document:
    """A schema and all that stand in it: those that are objects, by their pointers, each before those inside it."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.schemas: dict[str, dict[str, Any]] = {}
        pending: list[tuple[str, int, Any]] = [("", 1, root)]
        while pending:
            pointer, depth, schema = pending.pop()
            if isinstance(schema, bool):
                continue
            if not isinstance(schema, dict):
                _refuse(pointer, "A schema is an object or a boolean.")
            if len(self.schemas) == MAX_SUBSCHEMAS:
                _refuse(pointer, f"There are more than {MAX_SUBSCHEMAS} schemas in the schema.")
            if depth > MAX_NESTING:
                _refuse(pointer, f"The schema is nested deeper than {MAX_NESTING} levels.")
            self.schemas[pointer] = schema
            pending += [(pointer + at, depth + 1, child) for at, child in _children(schema)]

    def target(self, reference: str) -> Any:
        """The schema that a `$ref` refers to. Raises `KeyError`; references to booleans are not supported."""
        if not reference.startswith("#"):
            raise KeyError(reference)
        return self.schemas[unquote(reference[1:])]

    def same_value(self, schema: Any) -> list[Any]:
        """The schemas that hold for the same value as this one, or may."""
        if not isinstance(schema, dict):
            return []
        applied = [each for keyword in _IN_PLACE for each in schema.get(keyword, ())]
        return [*applied, self.target(schema["$ref"])] if "$ref" in schema else applied

    def combines(self) -> bool:
        """Whether any of the schemas holds for a value together with another one."""
        return any(
            "allOf" in schema
            or (
                not schema.keys().isdisjoint((*_IN_PLACE, "$ref"))
                and len(schema.keys() - _ANNOTATIONS.keys() - {*_ONLY_NAMED}) > 1
            )
            for schema in self.schemas.values()
        )


def _check(document: _Document) -> None:
    """Raise `InvalidSchema` for what is known not to be enforced."""
    for pointer, schema in document.schemas.items():
        for keyword, value in schema.items():
            _check_keyword(f"{pointer}/{escape(keyword)}", keyword, value)
        _check_counts(pointer, schema)
        _check_numbers(pointer, schema)
        names = [*schema.get("properties", ()), *schema.get("required", ())]
        for pattern in schema.get("patternProperties", ()):
            if any(patterns.matches(pattern, name) for name in names):
                at = f"{pointer}/patternProperties/{escape(pattern)}"
                _refuse(at, "A property that a pattern stands for as well cannot be enforced.")
        if "pattern" in schema and "format" in schema:
            _refuse(f"{pointer}/format", "A format together with a pattern is not supported; say it in the pattern.")
    for pointer, schema in document.schemas.items():
        try:
            document.same_value(schema)
        except KeyError:
            _refuse(f"{pointer}/$ref", f"There is no schema {schema['$ref']!r} in this one; others are not fetched.")
    for pointer, schema in document.schemas.items():
        _check_loops(document, pointer, schema)
    _check_multiples(document)
    _check_satisfiable(document)


def _refuse(pointer: str, detail: str) -> NoReturn:
    refuse(pointer, detail, InvalidSchema)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else _is_strings(value) and bool(value) and {*value} <= {*_TYPES}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_ANNOTATIONS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("$comment", "contentEncoding", "contentMediaType", "description", "title"), _is_text),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("default", "discriminator"), lambda value: True),
    "examples": lambda value: isinstance(value, list),
    "$schema": lambda value: isinstance(value, str) and _DRAFTS.fullmatch(value) is not None,
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_ASSERTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or an array of some of them"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "an array of values, not empty"),
    "const": (lambda value: True, "a value"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "required": (_is_strings, "an array of different strings"),
    **dict.fromkeys(_BOUNDS, (_is_number, "a number")),
    **dict.fromkeys(_COUNTS, (_is_count, "an integer from 0 on")),
    **dict.fromkeys(("pattern", "format", "$ref"), (_is_text, "a string")),
    **dict.fromkeys(_LISTED, (lambda value: isinstance(value, list) and bool(value), "an array of schemas, not empty")),
    **dict.fromkeys(_NAMED, (lambda value: isinstance(value, dict), "an object of schemas")),
    **dict.fromkeys(_SINGLE, (lambda value: isinstance(value, dict | bool), "a schema")),
}


def _check_keyword(pointer: str, keyword: str, value: Any) -> None:
    if keyword in _ANNOTATIONS:
        if not _ANNOTATIONS[keyword](value):
            _refuse(pointer, f"{keyword} cannot be {json.dumps(value)[:100]}.")
        return
    if keyword not in _ASSERTIONS:
        if keyword.startswith("x-") and keyword != "x-guidance":
            return
        _refuse(pointer, f"The keyword {keyword!r} is not supported.")
    is_valid, what = _ASSERTIONS[keyword]
    if not is_valid(value):
        _refuse(pointer, f"{keyword} must be {what}.")
    if keyword in ("const", "enum"):
        _check_value(pointer, value)
    elif keyword in ("properties", "required"):
        for name in value:
            _check_sayable(pointer, name)
    elif keyword == "format" and value not in FORMATS:
        _refuse(pointer, f"The format {value!r} is not supported; there are {', '.join(FORMATS)}.")
    elif keyword in ("pattern", "patternProperties"):
        for pattern in [value] if keyword == "pattern" else value:
            try:
                patterns.whole(pattern)
            except ValueError as error:
                _refuse(pointer, str(error))


def _check_counts(pointer: str, schema: dict[str, Any]) -> None:
    for low, high in zip(_COUNTS[::2], _COUNTS[1::2], strict=True):
        limit = MAX_LENGTH if low == "minLength" else MAX_ITEMS
        for keyword in (low, high):
            if schema.get(keyword, 0) > limit:
                _refuse(f"{pointer}/{keyword}", f"At most {limit} can be enforced.")
        if schema.get(low, 0) > schema.get(high, math.inf):
            _refuse(f"{pointer}/{low}", f"Nothing is valid: {low} is above {high}.")
    # The grammar may repeat a name, except those of properties.
    if schema.get("minProperties", 0) > len(schema.get("required", ())) + 1:
        _refuse(f"{pointer}/minProperties", "At most one more than there are required properties can be enforced.")


def _check_numbers(pointer: str, schema: dict[str, Any]) -> None:
    for keyword in (*_BOUNDS, "multipleOf"):
        if keyword in schema:
            _check_value(f"{pointer}/{keyword}", schema[keyword])
    low, high = _range(schema)
    if low > high or (low == high and low in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))):
        keyword = next(keyword for keyword in ("minimum", "exclusiveMinimum") if keyword in schema)
        _refuse(f"{pointer}/{keyword}", "Nothing is valid: the minimum is above the maximum.")
    if "multipleOf" in schema and (high <= 0 or not _is_read_exactly(schema["multipleOf"])):
        below = " below 0" if high <= 0 else ""
        _refuse(f"{pointer}/multipleOf", f"Multiples of {schema['multipleOf']}{below} cannot be enforced.")


def _range(schema: dict[str, Any]) -> tuple[float, float]:
    lows = [schema[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in schema]
    highs = [schema[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in schema]
    return max(lows, default=-math.inf), min(highs, default=math.inf)


def _is_read_exactly(multiple: float) -> bool:
    """Whether llguidance reads the number as it is: it multiplies by ten until nothing is left behind the point."""
    shifted, places = float(multiple), 0
    while shifted % 1 and places < MAX_DIGITS:
        shifted, places = shifted * 10, places + 1
    return places < 10 and shifted < 2**32 and Decimal(int(shifted)).scaleb(-places) == Decimal(repr(multiple))


def _check_value(pointer: str, value: Any) -> None:
    """A value in the schema that the grammar is to write as it is."""
    if isinstance(value, str):
        _check_sayable(pointer, value)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_value(f"{pointer}/{index}", each)
    elif isinstance(value, dict):
        for name, each in value.items():
            _check_sayable(pointer, name)
            _check_value(f"{pointer}/{escape(name)}", each)
    elif _is_number(value):
        _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        is_short = len(digits) <= MAX_DIGITS and int(exponent) >= -MAX_DIGITS
        if abs(value) > MAX_NUMBER or not (is_short or isinstance(value, int)):
            _refuse(pointer, f"{value} cannot be enforced: it has too many digits for a double.")


def _check_sayable(pointer: str, text: str) -> None:
    if not patterns.is_sayable(text):
        _refuse(pointer, "Control characters cannot be enforced.")


def _check_loops(document: _Document, pointer: str, schema: dict[str, Any]) -> None:
    """A schema that refers to itself for the same value says nothing, and would never be read to its end."""
    pending: list[Any] = [schema]
    for _ in range(MAX_SUBSCHEMAS):
        if not pending:
            return
        pending += document.same_value(pending.pop())
    _refuse(pointer, "The schema refers to itself for the same value, or to too many others.")


def _check_multiples(document: _Document) -> None:
    """llguidance computes the least common multiple of combined ones in 32 bits."""
    found = {at: Decimal(repr(each["multipleOf"])) for at, each in document.schemas.items() if "multipleOf" in each}
    if len({*found.values()}) > 1 and document.combines():
        smallest = min(int(value.as_tuple().exponent) for value in (*found.values(), Decimal(1)))
        if math.prod(value.scaleb(-smallest) for value in {*found.values()}) >= 2**32:
            _refuse(f"{next(iter(found))}/multipleOf", "Together with the others it is too large to be enforced.")


def _check_satisfiable(document: _Document) -> None:
    """Some finite value must be valid: in the end, every recursion has to be one that a value can do without."""
    ending: set[int] = set()

    def ends(schema: Any) -> bool:
        return bool(schema) if isinstance(schema, bool) else id(schema) in ending

    def all_end(schema: dict[str, Any]) -> bool:
        needed = [document.target(schema["$ref"])] if "$ref" in schema else []
        needed += schema.get("allOf", [])
        if schema.get("type") == "object":
            properties = schema.get("properties", {})
            needed += [properties[name] for name in schema.get("required", ()) if name in properties]
        elif schema.get("type") == "array":
            prefix, least = schema.get("prefixItems", []), schema.get("minItems", 0)
            needed += prefix[:least]
            needed += [schema.get("items", True)] if least > len(prefix) else []
        choices = [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
        return all(map(ends, needed)) and all(any(map(ends, options)) for options in choices)

    grown = True
    while grown:
        more = {id(schema) for schema in document.schemas.values() if id(schema) not in ending and all_end(schema)}
        ending |= more
        grown = bool(more)
    if id(document.root) not in ending:
        _refuse("", "Nothing is valid under the schema.")


# As the grammar takes it


def _rewritten(schema: Any, document: _Document, *, narrow: bool) -> Any:
    """A schema in the document with all that stand in it, for llguidance. `narrow` where it is the only one that
    holds for its value."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS or keyword.startswith("x-"):
            continue
        if keyword in _SINGLE:
            result[keyword] = _rewritten(value, document, narrow=narrow)
        elif keyword in _LISTED:
            name = "anyOf" if keyword == "oneOf" and _are_disjoint(value, document) else keyword
            result[name] = [_rewritten(each, document, narrow=narrow) for each in value]
        elif keyword == "patternProperties":
            result[keyword] = {_search(each): _rewritten(value[each], document, narrow=narrow) for each in value}
        elif keyword in _NAMED:
            result[keyword] = {name: _rewritten(each, document, narrow=narrow) for name, each in value.items()}
        elif keyword in ("pattern", "format"):
            result["pattern"] = _search(value if keyword == "pattern" else FORMATS[value])
        else:
            result[keyword] = value
    return result | _narrower(schema, narrow=narrow)


def _search(pattern: str) -> str:
    return f"^{patterns.whole(pattern)}$"


def _narrower(schema: dict[str, Any], *, narrow: bool) -> dict[str, Any]:
    """Bounds for what the schema leaves open."""
    kinds = schema.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else {*kinds}
    if kinds.isdisjoint({"integer", "number", "object"}) or "enum" in schema or "const" in schema:
        return {}
    result: dict[str, Any] = {}
    low, high = _range(schema)
    if "integer" in kinds or ("number" in kinds and narrow and not schema.keys().isdisjoint((*_BOUNDS, "multipleOf"))):
        result |= {"minimum": -MAX_NUMBER} if low == -math.inf else {}
        result |= {"maximum": MAX_NUMBER} if high == math.inf else {}
        if "number" in kinds and "multipleOf" not in schema and low >= 0 and high - low > _STEP * 1000:
            result["multipleOf"] = _STEP
    declared = schema.get("properties", {}).keys()
    is_open = schema.keys().isdisjoint(("additionalProperties", "patternProperties", "minProperties"))
    if narrow and declared and is_open and declared >= {*schema.get("required", ())}:
        result["additionalProperties"] = False
    return result


def _are_disjoint(options: list[Any], document: _Document) -> bool:
    """Whether no value is valid under two of the schemas, as far as their types and constant properties tell."""
    resolved = [_resolved(option, document) for option in options]
    return all(_differ(a, b, document) for index, a in enumerate(resolved) for b in resolved[:index])


def _differ(a: Any, b: Any, document: _Document) -> bool:
    if not isinstance(a, dict) or not isinstance(b, dict) or "type" not in a or "type" not in b:
        return False
    kinds = [{each["type"]} if isinstance(each["type"], str) else {*each["type"]} for each in (a, b)]
    kinds = [{"number" if kind == "integer" else kind for kind in each} for each in kinds]
    if kinds[0].isdisjoint(kinds[1]):
        return True
    if kinds != [{"object"}, {"object"}]:
        return False
    for name in {*a.get("required", ()), *b.get("required", ())}:
        first, second = (_constants(each.get("properties", {}).get(name), document) for each in (a, b))
        if first and second and first.isdisjoint(second):
            return True
    return False


def _resolved(schema: Any, document: _Document) -> Any:
    """What a schema that refers to another one refers to."""
    while isinstance(schema, dict) and "$ref" in schema:
        schema = document.target(schema["$ref"])
    return schema


def _constants(schema: Any, document: _Document) -> set[str]:
    """The texts that a schema allows; none where it allows anything else."""
    schema = _resolved(schema, document)
    if not isinstance(schema, dict):
        return set()
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return {*values} if all(isinstance(value, str) for value in values) else set()


# Validation


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator, ValidationError, validators

    def rule(kind: str, fails: Callable[[Any, Any], bool], message: str) -> Any:
        def keyword(validator: Any, bound: Any, value: Any, schema: Any) -> Iterator[Any]:
            if validator.is_type(value, kind) and fails(value, bound):
                yield ValidationError(message.format(value=value, bound=bound))

        return keyword

    def pattern_properties(validator: Any, by_pattern: Any, value: Any, schema: Any) -> Iterator[Any]:
        for pattern, each in by_pattern.items() if validator.is_type(value, "object") else ():
            for name in value:
                if patterns.matches(pattern, name):
                    yield from validator.descend(value[name], each, path=name, schema_path=pattern)

    def additional_properties(validator: Any, others: Any, value: Any, schema: Any) -> Iterator[Any]:
        for name in value if validator.is_type(value, "object") else ():
            by_pattern = schema.get("patternProperties", ())
            if name not in schema.get("properties", ()) and not any(
                patterns.matches(each, name) for each in by_pattern
            ):
                yield from validator.descend(value[name], others, path=name)

    extend: Any = validators.extend
    return extend(
        Draft202012Validator,
        {
            "minimum": rule("number", lambda v, b: _exact(v) < _exact(b), "{value} is below {bound}"),
            "maximum": rule("number", lambda v, b: _exact(v) > _exact(b), "{value} is above {bound}"),
            "exclusiveMinimum": rule("number", lambda v, b: _exact(v) <= _exact(b), "{value} is not above {bound}"),
            "exclusiveMaximum": rule("number", lambda v, b: _exact(v) >= _exact(b), "{value} is not below {bound}"),
            "multipleOf": rule("number", lambda v, b: bool(_exact(v) % _exact(b)), "{value} is no multiple of {bound}"),
            "pattern": rule("string", lambda v, b: not patterns.matches(b, v), "{value!r} does not match {bound!r}"),
            "format": rule("string", lambda v, b: not patterns.matches(FORMATS[b], v), "{value!r} is no {bound}"),
            "patternProperties": pattern_properties,
            "additionalProperties": additional_properties,
        },
    )


class _Written(float):
    """A number of a JSON text, which remembers its digits."""

    def __init__(self, text: str) -> None:
        self.text = text


def _exact(number: float) -> Decimal:
    """The number as it was written: 0.3 is a multiple of 0.1, which doubles deny."""
    return Decimal(number.text if isinstance(number, _Written) else repr(number))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
