"""B0.11: regular expressions of JSON Schema mean what ECMA-262 says, or are refused."""

import random
import re

import pytest

from lmsp_jupyter.patterns import MAX_SIZE, is_sayable, matches, whole

ours = pytest.mark.ours


@ours
@pytest.mark.parametrize(
    "pattern",
    [
        *("", "[0-9]{3}", "^[A-Z]{2}-[0-9]{3}$", "^a|b$", "x|y|^z", "a{0}", "a+?b*?", "^(?:a|b){2,4}$", "^(a|b)+z?$"),
        *(
            r"^\w+([.-]\w+)*@\w+\.[a-z]{2,}$",
            r"^[\]\-^]$",
            r"^[\w.+-]+$",
            r"^\.\*$",
            r"^[^a-z]$",
            r"\d\D",
            "^[a-]$",
            "^[-a]$",
        ),
    ],
)
def test_b0_11_a_pattern_finds_what_python_finds(pattern):
    chance = random.Random(pattern)
    pythons = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    for _ in range(100):
        text = "".join(chance.choice("abzAZ019-._@*^]é😀xy") for _ in range(chance.randrange(8)))
        assert matches(pattern, text) == bool(pythons.search(text)), text


@ours
@pytest.mark.parametrize(
    ("pattern", "found", "not_found"),
    [
        ("^.$", ["a", "😀", "\u0085"], ["\n", "\r", "\u2028", "ab"]),
        ("^a$", ["a"], ["a\n", "\na"]),
        (r"^\d$", ["7"], ["٣"]),
        (r"^\w$", ["_"], ["é"]),
        (r"^\s$", [" ", "\xa0", "\ufeff", "\u2028", "\t"], ["\x85", "\x1c"]),
        (r"^\S$", ["\x85"], ["\ufeff"]),
        ("^[^a]$", ["\n", "é"], ["a"]),
        ("^[^]$", ["\n"], [""]),
        ("^[a&&b]$", ["&", "a", "b"], [""]),
        ("^[[a]$", ["[", "a"], ["[a"]),
        (r"^[\d]-$", ["1-"], ["--"]),
        (r"^\/\-$", ["/-"], []),
        (r"^\u{1F600}\x41\u0042$", ["😀AB"], []),
        ("^(?<year>[0-9]{4})$", ["2026"], ["26"]),
        ("^(?:(?:ab){2}c){2}$", ["ababcababc"], ["ababc"]),
    ],
)
def test_b0_11_what_engines_disagree_on_is_as_ecma_262_has_it(pattern, found, not_found):
    assert [text for text in found if not matches(pattern, text)] == []
    assert [text for text in not_found if matches(pattern, text)] == []


@ours
@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(^a)b",
            "a^b",
            "^^a",
            "$a",
            "a$b",
            "a$$",
            "^(a|b$)",
            "(?=a)",
            "(?!a)",
            "(?<=a)b",
            "(?i)a",
            "(?P<n>a)",
            r"\bfoo",
        ),
        *("a{2,1}", "a**", "a{", "a{,3}", "}", "]", "(", "a)", "\\", "[a", "[]", "[z-a]", "[a--b]", r"[\d-x]", "*"),
        *(r"\p{L}", r"(a)\1", r"\k<a>", r"\cA", r"\x01", r"^[\x00-\x07]$", r"\u{110000}", r"\ud83d", r"\q"),
        *("(a{1000}){1000}", f"a{{{MAX_SIZE + 1}}}", "(" * 5000),
    ],
)
def test_b0_11_what_cannot_be_said_to_the_letter_is_refused(pattern):
    with pytest.raises(ValueError, match="pattern"):
        whole(pattern)


@ours
def test_b0_11_matching_takes_no_time_that_grows_with_the_pattern():
    assert not matches("^(a+)+$", "a" * 5_000 + "b")
    assert not matches("^(a|a)*b", "a" * 5_000)


@ours
def test_the_grammar_writes_no_escapes_but_the_short_ones():
    assert is_sayable('\n\t"\\/😀\u2028')
    assert not any(is_sayable(text) for text in ("a\0", "\x1f", "\x7f", "\ud83d"))
    assert not matches("a", "a\0")
