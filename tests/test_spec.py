"""The specification that the package ships: every requirement has a test that cites its id."""

import re
from pathlib import Path

import lmsp_jupyter

SPECIFICATION = Path(lmsp_jupyter.__file__).parent / "spec" / "lmsp-1.0.md"

REQUIRED = set(re.findall(r"^- ([AB]\d+\.\d+) ", SPECIFICATION.read_text("utf-8"), re.MULTILINE))


def cited():
    """The ids in the names of all tests."""
    files = [path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py")]
    names = [name for text in files for name in re.findall(r"def (test_\w+)", text)]
    return {id.upper().replace("_", ".") for name in names for id in re.findall(r"_([ab]\d_\d+)(?=_|\b)", name)}


def test_every_requirement_has_a_test_that_cites_it():
    assert len(REQUIRED) > 80
    assert REQUIRED - cited() == set()


def test_no_test_cites_what_is_not_required():
    assert cited() - REQUIRED == set()
