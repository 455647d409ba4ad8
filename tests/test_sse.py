"""Server-sent events: cases of the WHATWG event-stream section, and our own frames (B4.1)."""

import pytest

from lmsp_jupyter import sse
from lmsp_jupyter.sse import Decoder, Message


def message(data, event="message", id=""):
    return Message(event=event, data=data, id=id)


STREAMS = {
    "nothing": (b"", []),
    "LF": (b"data: a\n\n", [message("a")]),
    "CR LF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [message("a"), message("b")]),
    "CR LF between fields": (
        b"id: 1\r\nevent: add\r\ndata: a\r\ndata: b\r\n\r\n",
        [message("a\nb", "add", "1")],
    ),
    "CR": (b"data: a\r\rdata: b\r\r", [message("a"), message("b")]),
    "CR LF then LF": (b"data: a\r\n\ndata: b\n\r\n", [message("a"), message("b")]),
    "LF then CR": (b"data: a\n\rdata: b\r\n\r", [message("a"), message("b")]),
    "CR then CR LF": (b"data: a\r\r\ndata: b\r\r\n", [message("a"), message("b")]),
    "blank lines only": (b"\n\r\n\r\n\n", []),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [message("a")]),
    "only one byte order mark": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\ndata: b\n\n", [message("b")]),
    "a byte order mark later": (
        b"data: a\n\n\xef\xbb\xbfdata: b\n\ndata: \xef\xbb\xbf\n\n",
        [message("a"), message("\ufeff")],
    ),
    "comment": (b": test stream\n\n:\n\n: a\ndata: b\n: c\n\n", [message("b")]),
    "stock ticker": (b"data: YHOO\ndata: +2\ndata: 10\n\n", [message("YHOO\n+2\n10")]),
    "first, second, third": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event",
        [message("first event", id="1"), message("second event")],
    ),
    "empty data": (b"data\n\ndata\ndata\n\ndata:", [message(""), message("\n")]),
    "data with and without a space": (b"data:test\n\ndata: test\n\n", [message("test")] * 2),
    "one space is taken": (b"data:  a \n\n", [message(" a ")]),
    "colons in a value": (b"data::a: b:\n\n", [message(":a: b:")]),
    "event": (b"event: add\ndata: 1\n\ndata: 2\n\n", [message("1", "add"), message("2")]),
    "empty event": (b"event: add\nevent:\ndata: 1\n\n", [message("1")]),
    "event without data": (b"event: add\n\ndata: 1\n\n", [message("1")]),
    "id stays": (b"id: 7\ndata: a\n\ndata: b\n\n", [message("a", id="7"), message("b", id="7")]),
    "id without data": (b"id: 7\n\ndata: a\n\n", [message("a", id="7")]),
    "id taken back": (b"id: 7\ndata: a\n\nid:\ndata: b\n\n", [message("a", id="7"), message("b")]),
    "id with NUL": (
        b"id: 7\ndata: a\n\nid: 8\0\ndata: b\n\n",
        [message("a", id="7"), message("b", id="7")],
    ),
    "NUL in data": (b"data: a\0b\n\n", [message("a\0b")]),
    "retry": (b"retry: 10\ndata: a\n\nretry: 10\n\n", [message("a")]),
    "unknown and ill-written fields": (
        b"DATA: a\n data: b\nda ta: c\nx\ndata: d\n\n",
        [message("d")],
    ),
    "no final blank line": (b"data: a\n\ndata: b\n", [message("a")]),
    "no final line ending": (b"data: a\n\ndata: b", [message("a")]),
    "characters of several bytes": (
        "data: ďábelské 歪👩‍👩‍👧‍👦🇵🇹\n\n".encode(),
        [message("ďábelské 歪👩‍👩‍👧‍👦🇵🇹")],
    ),
    "other line separators are text": (
        "data: a\u2028b\u2029c\x85d\x0be\x0cf\x1eg\n\n".encode(),
        [message("a\u2028b\u2029c\x85d\x0be\x0cf\x1eg")],
    ),
    "not UTF-8": (b"data: a\xffb\n\n", [message("a\ufffdb")]),
    "a ping between a frame's lines": (b"id: 1\n: ping\ndata: a\n\n", [message("a", id="1")]),
}

every_stream = pytest.mark.parametrize(("stream", "messages"), STREAMS.values(), ids=STREAMS)


def decode(*chunks):
    decoder = Decoder()
    return [each for chunk in chunks for each in decoder.feed(chunk)]


@every_stream
def test_whatwg_a_stream_in_one_piece(stream, messages):
    assert decode(stream) == messages


@every_stream
def test_whatwg_a_stream_cut_anywhere_in_two(stream, messages):
    for cut in range(len(stream) + 1):
        assert decode(stream[:cut], stream[cut:]) == messages, cut


@every_stream
def test_whatwg_a_stream_byte_by_byte_with_empty_reads(stream, messages):
    pieces = [piece for byte in stream for piece in (bytes([byte]), b"")]

    assert decode(*pieces) == messages


def test_whatwg_a_message_is_told_at_its_blank_line_and_not_later():
    decoder = Decoder()

    assert decoder.feed(b"data: a\r") == []
    assert decoder.feed(b"\n\r") == [message("a")]
    assert decoder.feed(b"\n") == []


@pytest.mark.ours
def test_b4_1_a_frame_is_id_event_and_one_line_of_data_then_a_blank_line():
    frame = sse.encode(3, "response.created", '{"a":1}')

    assert frame == b'id: 3\nevent: response.created\ndata: {"a":1}\n\n'


@pytest.mark.ours
def test_b4_1_data_is_escaped_before_it_is_framed():
    with pytest.raises(UnicodeEncodeError):
        sse.encode(1, "response.output_text.delta", '{"delta":"č"}')


@pytest.mark.ours
def test_b4_1_a_ping_is_a_comment_and_a_single_newline():
    assert sse.PING == b": ping\n"


@pytest.mark.ours
def test_b4_1_pings_between_frames_dispatch_nothing():
    frames = [sse.encode(id, "e", str(id)) for id in (1, 2)]

    stream = sse.PING.join([b"", frames[0], b"", frames[1], b""])

    assert decode(stream) == [message("1", "e", "1"), message("2", "e", "2")]
