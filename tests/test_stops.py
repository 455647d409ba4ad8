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
