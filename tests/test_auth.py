"""LMSP tokens (B5.2, B5.4): shown once, kept as hashes, and nothing else is let in."""

import pytest

from lmsp_jupyter.auth import Tokens

pytestmark = pytest.mark.ours


def test_a_minted_token_is_known_for_good():
    tokens = Tokens()

    minted = [tokens.mint() for _ in range(3)]

    assert len(set(minted)) == 3
    assert all(tokens.knows(token) for token in minted)


def test_a_token_is_long_printable_and_says_whose_it_is():
    token = Tokens().mint()

    assert token.startswith("lmsp_")
    assert len(token) >= len("lmsp_") + 43  # 256 bits in base64
    assert token.isascii()
    assert token.isprintable()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda token: "",
        lambda token: "lmsp_",
        lambda token: token[:-1],
        lambda token: token + "x",
        lambda token: token.removeprefix("lmsp_"),
        lambda token: token.swapcase(),
        lambda token: f" {token}",
        lambda token: Tokens().mint(),
        lambda token: "ďábelské",
        lambda token: "\udcff",
        lambda token: chr(0xD83D),
    ],
    ids=[
        "empty",
        "prefix",
        "cut",
        "longer",
        "without prefix",
        "other case",
        "space",
        "another's",
        "not ASCII",
        "surrogate escape",
        "lone surrogate",
    ],
)
def test_b5_4_any_other_text_is_unknown(wrong):
    tokens = Tokens()

    assert not tokens.knows(wrong(tokens.mint()))


def test_nothing_is_known_before_the_first_token():
    assert not Tokens().knows("")


def test_b5_2_only_a_hash_is_kept():
    tokens = Tokens()

    token = tokens.mint()

    assert token not in repr(vars(tokens))
    assert token.removeprefix("lmsp_") not in repr(vars(tokens))
