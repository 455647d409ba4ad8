"""N1.3: references in a prompt."""

import pandas
import pytest

from lmsp_jupyter.interpolate import MAX_CELL, MAX_COLUMNS, MAX_ROWS, interpolate


class Point:
    x = 3
    name = "p"

    @property
    def broken(self):
        raise RuntimeError("no")

    def __str__(self):
        return "Point!"


class Unprintable:
    def __str__(self):
        raise ValueError("no")


NAMES = {
    "n": 7,
    "text": "t\\n{n}",
    "point": Point(),
    "rows": [1, ["a", "b"]],
    "table": {"k": {"in}ner": 5}, "0": "zero", 0: "null"},
    "bad": Unprintable(),
    "größe": "12",
    "f": len,
    "a": {"x": 1},
}


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("{n}", "7"),
        ("{n}{n} {n}.", "77 7."),
        ("{point}", "Point!"),
        ("{point.x}", "3"),
        ("{rows[0]}", "1"),
        ("{rows[1][-1]}", "b"),
        ("{rows[-1]}", "['a', 'b']"),
        ("{table['k']}", "{'in}ner': 5}"),
        ("{table[\"k\"]['in}ner']}", "5"),
        ("{table['0']} {table[0]}", "zero null"),
        ("{größe}", "12"),
        ("{{n}}", "{7}"),
        (r"\frac{n}{2}", r"\frac7{2}"),
    ],
)
def test_n1_3_what_resolves_is_replaced(typed, sent):
    assert interpolate(typed, NAMES).text == sent


@pytest.mark.parametrize(
    "typed",
    [
        "explain {'foo': 'bar'}",
        "{'a': 1}",
        '{"a": {"b": [1, 2]}}',
        "f(){}",
        "{v:k for k, v in d.items()}",
        r"x^{2} \frac{-1}{2x} \mathbf{}",
        "{n!r} {n:>3} {n + 1} {f(1)} {point.x()} { n } {0} {} { } {n",
        "{n.} {.n} {n[} {n[]} {n[a]} {n['a\"]} {1n}",
        "$\\{n\\}$",
        "}{ }}{{ {{}}",
    ],
)
def test_n1_3_every_other_brace_stays_as_typed(typed):
    result = interpolate(typed, NAMES)

    assert result.text == typed
    assert result.resolved == []
    assert result.unresolved == []


@pytest.mark.parametrize(
    "reference",
    [
        "missing",
        "print",
        "point.missing",
        "point.broken",
        "rows[9]",
        "rows['k']",
        "table['none']",
        "n[0]",
        "bad",
        "rows[99999999999999999999999]",
        "rows[" + "9" * 5000 + "]",
    ],
)
def test_n1_3_what_does_not_resolve_stays_and_is_listed(reference):
    result = interpolate(f"a {{{reference}}} b {{n}}", NAMES)

    assert result.text == f"a {{{reference}}} b 7"
    assert result.unresolved == [reference]
    assert result.resolved == ["n"]


def test_n1_3_a_replaced_value_is_not_scanned_again():
    result = interpolate("{text}", NAMES)

    assert result.text == "t\\n{n}"
    assert result.resolved == ["text"]


def test_n1_3_a_reference_is_listed_once_and_in_order():
    result = interpolate("{x} {rows[0]} {n} {x} {n}", NAMES)

    assert result.resolved == ["rows[0]", "n"]
    assert result.unresolved == ["x"]


def test_n1_3_an_interrupt_is_no_unresolved_reference():
    class Slow:
        def __str__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interpolate("{slow}", {"slow": Slow()})


def fake_pandas(kind, **members):
    return type(kind, (), {"__module__": "pandas.core.fake", **members})()


class Grid:
    """As much of `iloc` as is used: cuts rows and columns off."""

    def __init__(self, make):
        self._make = make

    def __getitem__(self, key):
        return self._make(key)


def frame(rows, columns, value="x"):
    def cut(key):
        height, width = (min(key[0].stop, rows), min(key[1].stop, columns))
        return fake_pandas(
            "DataFrame",
            columns=[f"c{i}" for i in range(width)],
            dtypes=["object"] * width,
            itertuples=lambda self, index, name: [(i, *[value] * width) for i in range(height)],
        )

    return fake_pandas("DataFrame", shape=(rows, columns), iloc=Grid(cut))


def test_n1_3_a_frame_is_a_compact_table_with_shape_and_dtypes():
    assert interpolate("{df}", {"df": frame(2, 2)}).text == (
        "DataFrame, 2 rows, 2 columns (dtypes: c0: object, c1: object)\n,c0,c1\n0,x,x\n1,x,x"
    )


def test_n1_3_a_frame_is_bounded_and_says_what_is_missing():
    text = interpolate("{df}", {"df": frame(10_000, 500, "y" * 1000)}).text

    assert len(text) < (MAX_ROWS + 2) * (MAX_COLUMNS + 1) * (MAX_CELL + 30)
    assert text.startswith("DataFrame, 10000 rows, 500 columns")
    assert text.endswith("… 9980 more rows and 480 more columns not shown")
    assert "yyy… (1000 characters)" in text


def test_n1_3_a_series_is_bounded_too():
    def cut(key):
        items = [(i, 0.1234567890123) for i in range(min(key.stop, 30))]
        return fake_pandas("Series", items=lambda self: items)

    series = fake_pandas("Series", shape=(30,), name="s", dtype="float64", iloc=Grid(cut))
    text = interpolate("{s}", {"s": series}).text

    assert text.startswith("Series, 30 values (dtype: float64)\n,s\n0,0.123457\n")
    assert text.endswith("19,0.123457\n… 10 more values not shown")


def test_n1_3_real_frames():
    table = pandas.DataFrame({"a": [1, 2], "b": ["x,y", "z"]})
    text = interpolate("{df}\n{df.a}\n{df['b']}", {"df": table}).text

    assert text.startswith("DataFrame, 2 rows, 2 columns (dtypes: a: int64, b: ")
    assert '\n,a,b\n0,1,"x,y"\n1,2,z\nSeries, 2 values (dtype: int64)\n,a\n0,1\n1,2\n' in text
    twice = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    assert "0,1,2" in interpolate("{df}", {"df": twice}).text
