"""Server-sent events, read leniently as any client does (WHATWG HTML, 9.2) or checked to the letter of B4.1."""

from __future__ import annotations

import codecs
import io
import json
from dataclasses import dataclass
from typing import Any

FINAL = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


@dataclass(frozen=True)
class Event:
    id: int
    name: str
    data: dict[str, Any]

    @property
    def final(self):
        return self.name in FINAL


def read(chunks):
    """The events in pieces of bytes, cut anywhere; each must have an id, a name and a JSON object (A3.1)."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    rest, fields = "", {}
    for chunk in chunks:
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data" and name in fields:
                fields[name] += f"\n{value}"
            elif name:
                fields[name] = value
            elif not line and "data" in fields:
                yield _event(fields)
            if not line:
                fields = {}


def _event(fields):
    assert {"id", "event", "data"} <= fields.keys(), f"an event without an id, a name or data: {fields}"
    data = json.loads(fields["data"])
    assert isinstance(data, dict), f"data is no object: {data!r}"
    return Event(int(fields["id"]), fields["event"], data)


def check(raw):
    """Assert that the bytes are as B4.1 has them: ASCII lines that end in LF alone, one line of data an event, and
    heartbeats without a blank line. Gives the events."""
    text = raw.decode("ascii")
    assert "\r" not in text
    *blocks, rest = text.replace(": ping\n", "").split("\n\n")
    assert rest == "", f"the stream ends inside an event: {rest!r}"
    for block in blocks:
        fields = [line.partition(": ")[0] for line in block.split("\n")]
        assert sorted(set(fields) - {"retry"}) == ["data", "event", "id"], block
        assert len(set(fields)) == len(fields), block
    return list(read([raw]))


def text(events):
    """What the deltas of a stream come to."""
    return "".join(event.data["delta"] for event in events if event.name == "response.output_text.delta")


def items(events):
    """The items that a stream finished, in the order of their places."""
    done = [event.data for event in events if event.name == "response.output_item.done"]
    return [data["item"] for data in sorted(done, key=lambda data: data["output_index"])]
