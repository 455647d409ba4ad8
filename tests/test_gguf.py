"""The reader of GGUF headers (B1.4): what a file says of itself, and no harm from one that lies."""

import struct

import pytest

from lmsp_jupyter.engines import gguf

UINT32, FLOAT, BOOL, STRING, ARRAY, UINT64 = 4, 6, 7, 8, 9, 10


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def uint32(number):
    return struct.pack("<II", UINT32, number)


def text(value):
    return struct.pack("<I", STRING) + string(value)


def strings(*values):
    return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(string, values))


LLAMA = {
    "general.architecture": text("llama"),
    "llama.context_length": uint32(8192),
    "tokenizer.ggml.tokens": strings("a", "ž", "歪"),
    "tokenizer.ggml.scores": struct.pack("<IIQ3f", ARRAY, FLOAT, 3, 0, 0, 0),
    "tokenizer.chat_template": text("{{ messages }}"),
    "general.file_type": uint32(15),
}


def header(values, version=3, count=None):
    keys = b"".join(string(key) + value for key, value in values.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(values) if count is None else count) + keys


@pytest.fixture
def read(tmp_path):
    def read(data):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return gguf.read(path)

    return read


def test_facts_before_and_after_the_vocabulary_are_read(read):
    assert read(header(LLAMA)) == gguf.Header("llama", 8192, "q4_k_m", "{{ messages }}")


def test_what_is_not_said_is_none(read):
    assert read(header({"general.architecture": text("llama")})) == gguf.Header("llama", None, None, None)


def test_an_unknown_file_type_is_none(read):
    assert read(header({**LLAMA, "general.file_type": uint32(9999)})).quantization is None


@pytest.mark.parametrize("length", [uint32(0), text("8192"), struct.pack("<I?", BOOL, False)])
def test_a_context_length_that_is_none_is_not_taken(read, length):
    assert read(header({**LLAMA, "llama.context_length": length})).context_length is None


def test_reading_stops_when_all_is_known(read):
    early = {**LLAMA}
    early.pop("tokenizer.ggml.tokens")
    early.pop("tokenizer.ggml.scores")
    cut = header({**early, "tokenizer.ggml.tokens": strings("a")})[:-1]
    assert read(cut).context_length == 8192


def test_the_starter(starter):
    facts = gguf.read(starter)
    assert (facts.architecture, facts.context_length, facts.quantization) == ("llama", 8192, "q4_1")
    assert "<|im_start|>" in facts.chat_template


@pytest.mark.parametrize("size", range(len(header(LLAMA))))
def test_every_truncation_is_refused(read, size):
    with pytest.raises(ValueError):
        read(header(LLAMA)[:size])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello, this is text", "not a GGUF"),
        (header(LLAMA, version=1), "version 1 "),
        (header(LLAMA, version=3 << 24), "version 50331648"),  # big-endian
        (header(LLAMA, count=2**63), "keys"),
        (header({}), "architecture"),
        (header({"general.architecture": uint32(1)}), "architecture"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**64 - 1), "bytes"),
        (header({"a": struct.pack("<IQ", STRING, 2**40)}), "bytes"),
        (header({"a": struct.pack("<IIQ", ARRAY, STRING, 2**60)}), "strings"),
        (header({"a": struct.pack("<IIQ", ARRAY, UINT64, 2**61)}), "bytes"),
        (header({"a": struct.pack("<IIQ", ARRAY, ARRAY, 1)}), "unknown type 9"),
        (header({"a": struct.pack("<IB", 13, 0)}), "unknown type 13"),
    ],
)
def test_a_hostile_header_is_refused_before_it_costs_anything(read, data, reason):
    with pytest.raises(ValueError, match=reason):
        read(data)


def test_many_arrays_share_one_bound(read, monkeypatch):
    monkeypatch.setattr(gguf, "MAX_STRINGS", 5)
    with pytest.raises(ValueError, match="strings"):
        read(header({"general.architecture": text("llama"), "a": strings(*"abc"), "b": strings(*"def")}))


def test_a_header_that_goes_on_and_on_is_refused(read, monkeypatch):
    monkeypatch.setattr(gguf, "MAX_HEADER", 2**19)
    with pytest.raises(ValueError, match="bytes"):
        read(header({f"key{number}": text("x" * 2**16) for number in range(16)}))


def test_strings_across_chunks(read):
    values = {"general.architecture": text("llama"), "a": strings(*["ab" * 50_000] * 9), **LLAMA}
    assert read(header(values)).quantization == "q4_k_m"
