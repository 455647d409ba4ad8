"""B2.4: stop strings."""

import pytest

from lmsp_jupyter.engines.stops import Stops


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["a\n", "b\n\nc"], ["\n\n"], "a\nb"),
        (["ab", "ab", "c", "d"], ["abc"], "ab"),
        (["aab"], ["ab", "aab"], ""),
        (["x", "👩‍", "👧", "!"], ["👩‍👧"], "x"),
        (["x👩‍", "👦"], ["👩‍👧"], "x👩‍👦"),
        (["🇵", "🇹🇵"], ["🇹"], "🇵"),
        (["STO", "P"], ["STOP."], "STOP"),
        (["abc"], [], "abc"),
    ],
)
def test_stop_strings(pieces, stops, shown):
    matcher = Stops(stops)
    text = ""
    for piece in pieces:
        text += matcher.take(piece)
        if matcher.met:
            break
        assert "".join(pieces).startswith(text)
    assert text + matcher.rest() == shown


@pytest.mark.parametrize(
    ("text", "shown", "met"),
    [
        ("a<call>b.", "a<call>b.", False),
        ("a.<call>", "a", True),
        ("a<cal.", "a<cal", True),
        ("<call>.<call>.", "<call>.<call>.", False),
        ("a<cal", "a<cal", False),
    ],
)
def test_b2_4_nothing_is_matched_from_a_marker_on(text, shown, met):
    for pieces in ([text], text):
        matcher = Stops(["."], until="<call>")
        taken = ""
        for piece in pieces:
            taken += matcher.take(piece)
            if matcher.met:
                break
        assert (taken + matcher.rest(), matcher.met) == (shown, met)
