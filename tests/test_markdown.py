"""Markdown that stays within its bounds."""

import html

import mistune
import pytest

from lmsp_jupyter.markdown import close_blocks, escape, plain_table, table


def test_cells_of_a_table_are_shown_as_they_are():
    assert table(["a_b", ""], [["1|2", "<b>"]]) == "| a\\_b |  |\n| --- | --- |\n| 1\\|2 | \\<b\\> |"


def test_a_plain_table_is_aligned():
    assert plain_table(("A", "B"), [("long", "x"), ("y", "")]) == "A     B\nlong  x\ny"


@pytest.mark.parametrize("text", ["*a* _b_ `c` ~~d~~", "[a](b)", "<script>", "a\\*b"])
def test_escaped_text_is_shown_as_it_is(text):
    assert mistune.html(escape(text)) == f"<p>{html.escape(text)}</p>\n"


@pytest.mark.parametrize(
    ("markdown", "closing"),
    [
        ("plain", ""),
        ("```py\nx\n```", ""),
        ("```py\nx", "```"),
        ("````\n```\nx", "````"),
        ("~~~\n```\n", "~~~"),
        ("```\nx\n``` no", "```"),
        ("``` a`b", ""),
        ("    ```", ""),
        ("   ```\nx", "   ```"),
        ("```\n> x\n- y", "```"),
        ("- ```py\n  x\n  ```\n\nDone.", ""),
        ("- ```py\n  x", "  ```"),
        ("1. a\n   ```\n   x", "   ```"),
        ("1. a\n   ```\n   x\n\nout of the list", ""),
        ("- a\n  - ```\n    x", "    ```"),
        ("> ```\n> x", "> ```"),
        ("> ```\n> x\n\nout of the quote", ""),
        ("<!-- x", "-->"),
        ("<!-- x -->", ""),
        ("<pre>\nx", "</pre>"),
        ("<pre>x</pre>", ""),
        ("<PRE>\nx\n</PRE>", ""),
        ("<prefix>", ""),
        ("```\n<!--\n```", ""),
        ("<!--\n```\n-->", ""),
    ],
)
def test_n1_6_an_open_block_does_not_swallow_the_usage_line(markdown, closing):
    assert close_blocks(markdown) == markdown + (f"\n{closing}" if closing else "")


@pytest.mark.parametrize("cut", range(0, 130, 3))
def test_n1_6_the_usage_line_is_its_own_paragraph_wherever_an_answer_is_cut(cut):
    text = (
        "# A\n\n1. do\n\n   ```py\n   x = 1\n   ```\n2. or\n   - ~~~\n     y\n     ~~~\n\n"
        "> ```\n> z\n> ```\n\n```js\nf({\n```\n\n<!-- c -->\nEnd."
    )
    shown = mistune.html(f"{close_blocks(text[:cut].rstrip())}\n\n<sub>usage</sub>")

    assert shown.rstrip().endswith("<p><sub>usage</sub></p>")
