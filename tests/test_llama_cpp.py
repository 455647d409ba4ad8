"""llama.cpp as an engine, with the starter's real weights. No test measures time: two cores, shared, say nothing."""

import random
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager

import psutil
import pytest

from lmsp_jupyter import schemas
from lmsp_jupyter.engines import (
    Broken,
    Call,
    CallArguments,
    CallEnded,
    CallStarted,
    Finished,
    Prompt,
    PromptProgress,
    ReasoningText,
    Settings,
    Text,
    Turn,
    calls,
    gguf,
    llama_cpp,
)
from lmsp_jupyter.errors import ModelUnavailable
from lmsp_jupyter.protocol import NamedTool, Options, ReasoningOptions, Tool

TIMEOUT = 300
"""Seconds after which a test is hung."""

COUNT = "Count from one to ten with digits: 1, 2, 3"
REPEAT = "Repeat exactly: 👩‍👩‍👧‍👦🇵🇹 ďábelské 歪"


class Answer:
    """All outputs of one prompt."""

    def __init__(self, on_output=None):
        self.outputs = []
        self.ended = threading.Event()
        self.cancel = None
        self._on_output = on_output
        self._lock = threading.RLock()

    def submit(self, engine, what):
        with self._lock:  # no output before there is a cancel for it
            self.cancel = engine.submit(what, self._emit)
        return self

    def _emit(self, output):
        with self._lock:
            self.outputs.append(output)
            if isinstance(output, Finished | Broken):
                self.ended.set()
            if self._on_output:
                self._on_output(self, output)

    def wait(self):
        assert self.ended.wait(TIMEOUT)
        return self

    @property
    def end(self):
        return self.outputs[-1]

    @property
    def text(self):
        return "".join(output.text for output in self.outputs if isinstance(output, Text))

    @property
    def progress(self):
        return [(output.done, output.total) for output in self.outputs if isinstance(output, PromptProgress)]

    @property
    def ends(self):
        return [output for output in self.outputs if isinstance(output, Finished | Broken)]


def prompt(text, **more):
    turns = [Turn("user", text)] if isinstance(text, str) else [Turn(role, content) for role, content in text]
    options = Options(**{name: more.pop(name) for name in list(more) if name in Options.__struct_fields__})
    return Prompt(turns=turns, options=options, **{"temperature": 0.0, **more})


def submit(engine, what, on_output=None):
    return Answer(on_output).submit(engine, what)


def ask(engine, text, **more):
    return submit(engine, prompt(text, **more)).wait()


@contextmanager
def loaded(path, **settings):
    engine = llama_cpp.load(path, Settings(**settings))
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def engine(starter):
    with loaded(starter) as engine:
        yield engine


@pytest.fixture(scope="module")
def narrow(starter):
    """One slot with a small window."""
    with loaded(starter, parallel=1, context_length=300) as engine:
        yield engine


# Text


def test_an_answer_is_text_and_an_end_with_usage(engine):
    answer = ask(engine, "Say hello.", max_output_tokens=5)
    assert answer.text
    assert answer.end.reason == "length"
    assert answer.end.usage.output_tokens == 5
    assert answer.end.usage.input_tokens == engine.count(prompt("Say hello."))
    assert answer.end.usage.total_tokens == answer.end.usage.input_tokens + 5
    assert answer.progress[-1] == (answer.end.usage.input_tokens,) * 2


def test_a_model_that_stops_by_itself(engine):
    assert ask(engine, COUNT, max_output_tokens=200).end.reason == "stop"


def test_one_token_of_output_is_text_and_a_limit(engine):
    answer = ask(engine, COUNT, max_output_tokens=1)
    assert (answer.text, answer.end.reason, answer.end.usage.output_tokens) == ("1", "length", 1)


def test_temperature_0_is_deterministic_and_a_seed_is_too(engine):
    """B0.6"""
    assert ask(engine, COUNT, max_output_tokens=20).text == ask(engine, COUNT, max_output_tokens=20).text
    for seed in (7, 2**32 - 1):
        first, second = (
            ask(engine, "Tell a story.", temperature=2.0, seed=seed, max_output_tokens=12).text for _ in range(2)
        )
        assert first == second


def test_every_sampling_option_reaches_the_model(engine):
    """B2.4: at a temperature that makes noise, one candidate alone gives the greedy text."""
    greedy = ask(engine, COUNT, max_output_tokens=12).text
    for option in ({"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}):
        assert ask(engine, COUNT, temperature=2.0, max_output_tokens=12, **option).text == greedy
    # Without a penalty the text counts with commas; with the largest it cannot go on.
    for option in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert ask(engine, COUNT, max_output_tokens=12, **option).text != greedy


def test_the_cache_of_a_conversation_is_counted(engine):
    turns = [("system", "Be brief, " + "and kind, " * 20), ("user", "Hello")]
    ask(engine, turns, max_output_tokens=1)
    usage = ask(engine, turns, max_output_tokens=1).end.usage
    assert 0 < usage.input_tokens_details.cached_tokens < usage.input_tokens


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_limit_inside_a_character_splits_none(engine, limit):
    """B4.1: what a token limit cuts is left out, never half of it."""
    whole = ask(engine, REPEAT, max_output_tokens=40).text
    answer = ask(engine, REPEAT, max_output_tokens=limit)
    assert whole.startswith(answer.text)
    assert "\ufffd" not in answer.text
    for output in answer.outputs:
        if isinstance(output, Text):
            output.text.encode()
    assert answer.end.usage.output_tokens == limit


# Stop strings


def test_text_ends_before_a_stop_string(engine):
    whole = ask(engine, COUNT, max_output_tokens=40).text
    for start, end in ((1, 3), (10, 16), (len(whole) - 1, len(whole))):
        stop = whole[start:end]
        answer = ask(engine, COUNT, max_output_tokens=40, stop=["never", stop])
        assert answer.text == whole[: whole.index(stop)]
        assert answer.end.reason == "stop"
        assert 0 < answer.end.usage.output_tokens <= 40


def test_what_only_began_like_a_stop_string_is_not_lost_at_a_limit(engine):
    whole = ask(engine, COUNT, max_output_tokens=9).text
    answer = ask(engine, COUNT, max_output_tokens=9, stop=[whole[-4:] + "~"])
    assert (answer.text, answer.end.reason) == (whole, "length")


# Tokens


@pytest.mark.parametrize(
    "turns",
    [
        [("user", "Hi")],
        [("system", "Be brief ☃."), ("user", "What is 歪?"), ("assistant", "A kanji."), ("user", "Go on.")],
        [("user", REPEAT)],
        [("user", "</s><|endoftext|> [INST] <|im_end|>\n<|im_start|>system\nx")],
        [("user", " \r\n\t\x00 {{ braces }} {% x %}")],
        [("user", "")],
        [("user", "a"), ("assistant", "b ")],
        [("system", "one"), ("system", "two"), ("user", "three")],
        [("user", "word " * 150)],
    ],
)
def test_a_count_is_what_usage_says(engine, turns):
    """B0.4"""
    answer = ask(engine, turns, max_output_tokens=1)
    assert engine.count(prompt(turns)) == answer.end.usage.input_tokens


def test_a_prompt_longer_than_the_window_can_be_counted(narrow):
    assert narrow.count(prompt("word " * 900)) > 900


def test_the_window_is_what_the_settings_ask_and_at_most_the_models(engine, narrow):
    assert narrow.context_length == 300
    assert engine.context_length == 8192


def test_an_input_fits_with_one_token_to_spare(narrow):
    """A1.11, B0.4; a full window ends by its length."""
    fits = "word " * (298 - narrow.count(prompt("")))
    assert narrow.count(prompt(fits)) == 299
    answer = ask(narrow, fits)
    assert (answer.end.reason, answer.end.usage.total_tokens, answer.end.usage.output_tokens) == ("length", 300, 1)
    for words in (1, 2000):
        refused = ask(narrow, fits + "word " * words)
        assert refused.end.problem["code"] == "context_length_exceeded"
        assert refused.end.problem["status"] == 400
        assert str(299 + words) in refused.end.problem["detail"]
        assert len(refused.outputs) == 1


def test_without_a_limit_the_answer_is_the_rest_of_the_window(narrow):
    """B0.5"""
    answer = ask(narrow, "word " * 240 + "Write a very long story about a dragon, a river and a house of stone.")
    assert answer.end.usage.total_tokens <= 300
    assert answer.end.reason == ("length" if answer.end.usage.total_tokens == 300 else "stop")


# Cancelling (B0.8)


def test_a_prompt_that_is_being_processed_is_cancelled_within_a_batch(engine):
    text = " ".join(random.Random(1).choices(["river", "stone", "house", "green", "walk", "ocean"], k=6000))
    total = engine.count(prompt(text))
    assert total > 6000

    def on_output(answer, output):
        if isinstance(output, PromptProgress) and output.done >= 100:
            answer.cancel()

    answer = submit(engine, prompt(text), on_output).wait()
    assert answer.end.reason == "cancelled"
    assert (answer.end.usage.input_tokens, answer.end.usage.output_tokens) == (total, 0)
    assert answer.progress[-1][0] < 1000
    assert answer.text == ""
    assert ask(engine, COUNT, max_output_tokens=3).end.reason == "length"


def test_a_prompt_behind_one_that_is_being_processed_is_cancelled_at_once(engine):
    """llama.cpp calls back for one prompt at a time: the other must still be with us, not inside."""
    later = threading.Event()

    def on_output(answer, output):
        if len(answer.outputs) == 5:
            later.set()

    first = submit(engine, prompt("stone " * 4000), on_output)
    second = submit(engine, prompt("river " * 4000))
    assert later.wait(TIMEOUT)
    second.cancel()
    assert second.outputs == [Finished("cancelled")]
    assert not first.ended.is_set()
    first.cancel()
    assert first.wait().end.reason == "cancelled"


def test_an_answer_that_is_generated_is_cancelled_with_what_was_counted(engine):
    def on_output(answer, output):
        if sum(isinstance(output, Text) for output in answer.outputs) == 3:
            answer.cancel()

    answer = submit(engine, prompt("Write a long story.", max_output_tokens=500), on_output).wait()
    assert answer.end.reason == "cancelled"
    assert 3 <= answer.end.usage.output_tokens < 20
    assert answer.text


def test_cancelling_twice_and_after_the_end_changes_nothing(engine):
    answer = ask(engine, COUNT, max_output_tokens=3)
    answer.cancel()
    answer.cancel()
    assert [end.reason for end in answer.ends] == ["length"]


def test_others_generate_while_one_is_cancelled(engine):
    others = [submit(engine, prompt(COUNT, max_output_tokens=20)) for _ in range(3)]
    gone = submit(engine, prompt("Write a long story.", max_output_tokens=500))
    gone.cancel()
    assert gone.wait().end.reason == "cancelled"
    assert len({other.wait().text for other in others}) == 1


def test_of_many_mixed_requests_each_ends_exactly_once(engine):
    """B0.6, B0.8: long and short, some cancelled before, while or after they run, some refused."""
    chance = random.Random(3)
    answers = []
    cancelled = set()
    for number in range(120):
        kind = number % 6
        if kind == 5:
            what = prompt("word " * 9000)
        else:
            what = prompt(f"{number} " + "word " * (kind * 5), max_output_tokens=1 + kind * 3, stop=["\n"])
        after = chance.choice([None, None, None, 0, 1, 3])

        def on_output(answer, output, after=after):
            if after is not None and len(answer.outputs) >= after:
                answer.cancel()

        answer = submit(engine, what, on_output)
        if after is not None:
            cancelled.add(answer)
        if after == 0:
            answer.cancel()
        answers.append(answer)
    for answer in answers:
        answer.wait()
    assert ask(engine, COUNT, max_output_tokens=1).text == "1"
    for number, answer in enumerate(answers):
        assert len(answer.ends) == 1
        assert answer.outputs[-1] is answer.ends[0]
        if answer in cancelled:
            continue
        if number % 6 == 5:
            assert answer.end.problem["code"] == "context_length_exceeded"
        else:
            assert answer.end.reason in ("stop", "length")
            assert "\n" not in answer.text


# Reasoning


def changed(starter, path, template, tokens=()):
    """The starter as another file, with another template and new names for some tokens."""
    data = starter.read_bytes()
    size = len(data)
    for old, new in tokens:
        data = replaced(data, old, new)
    old = gguf.read(starter).chat_template.encode()
    # What follows the header must stay aligned to 32 bytes.
    shift = len(data) - size + len(template) - len(old) + len("{##}")
    path.write_bytes(replaced(data, old, template + b"{#" + b" " * (-shift % 32) + b"#}"))
    return path


def replaced(data, old, new):
    """`data` with one string of the GGUF header replaced."""
    old, new = (len(each).to_bytes(8, "little") + each for each in (old, new))
    assert data.count(old) == 1
    return data.replace(old, new)


@pytest.fixture(scope="module")
def thinker(starter, tmp_path_factory):
    """The starter with a template that begins each answer with the model's reasoning."""
    template = (
        b"{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n"
        b"{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        b"{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
        b"{% if enable_thinking is false %}\n</think>\n\n{% endif %}{% endif %}"
    )
    path = changed(starter, tmp_path_factory.mktemp("models") / "thinker.gguf", template)
    with loaded(path, parallel=1, context_length=1024) as engine:
        yield path, engine


def test_a_template_that_thinks_gives_the_capability(starter, engine, thinker):
    path, thinking = thinker
    assert llama_cpp.inspect(path).capabilities == ("tools", "structured_output", "reasoning")
    assert thinking.capabilities == ["tools", "structured_output", "reasoning"]
    assert llama_cpp.inspect(starter).capabilities == ("tools", "structured_output")
    assert engine.capabilities == ["tools", "structured_output"]


def test_reasoning_is_told_from_text_and_can_be_turned_off(thinker):
    """B2.4"""
    _, thinking = thinker
    on = ask(thinking, COUNT, max_output_tokens=8, reasoning=ReasoningOptions(enabled=True))
    off = ask(thinking, COUNT, max_output_tokens=8, reasoning=ReasoningOptions(enabled=False))
    assert any(isinstance(output, ReasoningText) for output in on.outputs)
    assert not any(isinstance(output, ReasoningText) for output in off.outputs)
    assert off.text
    for answer, enabled in ((on, True), (off, False)):
        counted = thinking.count(prompt(COUNT, reasoning=ReasoningOptions(enabled=enabled)))
        assert counted == answer.end.usage.input_tokens
    assert on.end.usage.output_tokens_details.reasoning_tokens == 8
    assert off.end.usage.output_tokens_details.reasoning_tokens == 0


def test_b0_9_a_thinking_template_has_its_free_reasoning_before_the_grammar(thinker):
    """Reasoning counts in the limit."""
    _, thinking = thinker
    off = ask(thinking, COUNT, schema=AGE, reasoning=ReasoningOptions(enabled=False))
    assert schemas.mistake_in(off.text, AGE) is None
    assert not any(isinstance(output, ReasoningText) for output in off.outputs)
    on = ask(thinking, COUNT, schema=AGE, max_output_tokens=6, reasoning=ReasoningOptions(enabled=True))
    assert (on.text, on.end.reason, on.end.usage.output_tokens_details.reasoning_tokens) == ("", "length", 6)
    assert any(isinstance(output, ReasoningText) for output in on.outputs)
    counted = thinking.count(prompt(COUNT, schema=AGE, reasoning=ReasoningOptions(enabled=True)))
    assert counted == on.end.usage.input_tokens


# Schemas and tools (B0.9, B0.10, B0.11)


def an_object(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


AGE = an_object(name={"type": "string", "maxLength": 12}, age={"type": "integer", "minimum": 0, "maximum": 120})
WEATHER = Tool(
    name="get_weather",
    description="The weather in a city.",
    parameters=an_object(city={"type": "string", "maxLength": 20}, days={"$ref": "#/$defs/Days"})
    | {"$defs": {"Days": {"type": "integer", "minimum": 1, "maximum": 5}}},
)
TIME = Tool(name="get_time", parameters=an_object(zone={"enum": ["UTC", "CET"]}))
ANYTHING = Tool(name="get")


def called(what, answer):
    """The calls in an answer, each with its arguments and whether it is whole, as a worker tells them; and the text."""
    said = []
    reader = calls.Calls(what, said.append)
    for output in answer.outputs:
        reader(output)
    found = []
    for output in said:
        if isinstance(output, CallStarted):
            found.append([output.name, "", False])
        elif isinstance(output, CallArguments):
            found[-1][1] += output.text
        elif isinstance(output, CallEnded):
            found[-1][2] = True
    return found, "".join(output.text for output in said if isinstance(output, Text))


@pytest.mark.parametrize("question", ["What is the weather in Rome?", "Tell me a story 👩‍👧.", "<tool_call> {"])
@pytest.mark.parametrize("choice", ["required", NamedTool(name="get_time")], ids=["required", "named"])
def test_b0_10_a_call_that_is_required_is_made(engine, question, choice):
    what = prompt(question, tools=[WEATHER, TIME], tool_choice=choice, parallel=False, max_output_tokens=80)
    answer = submit(engine, what).wait()
    [(name, arguments, is_whole)], text = called(what, answer)
    tool = {"get_weather": WEATHER, "get_time": TIME}[name]
    assert choice in ("required", NamedTool(name=name))
    assert is_whole
    assert text == ""
    assert schemas.mistake_in(arguments, tool.parameters) is None
    assert answer.end.reason == "stop"
    assert engine.count(what) == answer.end.usage.input_tokens
    assert engine.count(what) > engine.count(prompt(question)) + 50


def test_b0_10_a_required_call_that_hits_the_limit_is_no_call(engine):
    for limit, found in ((4, []), (20, [["get_time", '{"', False]])):
        what = prompt(COUNT, tools=[TIME], tool_choice="required", max_output_tokens=limit)
        answer = submit(engine, what).wait()
        cut, text = called(what, answer)
        assert [name for name, *_ in cut] == [name for name, *_ in found]
        assert not any(is_whole for *_, is_whole in cut)
        assert (text, answer.end.reason) == ("", "length")


def test_b0_9_with_auto_an_answer_may_be_text_and_ends_by_itself(engine):
    what = prompt("Say hi.", tools=[WEATHER], max_output_tokens=100)
    answer = submit(engine, what).wait()
    assert called(what, answer) == ([], answer.text)
    assert answer.text
    assert answer.end.reason == "stop"


def test_b0_9_with_none_the_model_is_not_told_of_tools(engine):
    assert engine.count(prompt(COUNT, tools=[WEATHER], tool_choice="none")) == engine.count(prompt(COUNT))


def test_b2_4_a_stop_string_does_not_end_a_call(engine):
    what = prompt(COUNT, tools=[TIME], tool_choice="required", parallel=False, stop=["}", "zone"])
    answer = submit(engine, what).wait()
    [(name, _, is_whole)], _ = called(what, answer)
    assert (name, is_whole) == ("get_time", True)


SCHEMAS = {
    "nested references": {"$defs": {"A": AGE}, **an_object(one={"$ref": "#/$defs/A"}, two={"$ref": "#/$defs/A"})},
    "recursion": {
        "$defs": {
            "T": an_object(v={"type": "boolean"})
            | {"properties": {"v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/T"}}}}
        },
        "$ref": "#/$defs/T",
    },
    "emoji": an_object(mood={"enum": ["😀", "👩‍👧", "蓝"]}, kind={"const": "ďábel"}),
    "null or more": an_object(x={"anyOf": [{"type": "null"}, {"type": "integer", "maximum": 9}]}),
    "optional": {"type": "object", "properties": {name: {"type": "boolean"} for name in "abcd"}},
    "numbers": an_object(
        n={"type": "number", "exclusiveMinimum": 0, "maximum": 1}, m={"type": "number", "minimum": -1}
    ),
    "pattern": an_object(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "items": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 4},
    "date": an_object(date={"type": "string", "format": "date"}),
    "one of": {"oneOf": [an_object(t={"const": "cat"}), an_object(t={"const": "dog"}, good={"type": "boolean"})]},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_b0_11_an_answer_is_valid_under_its_schema_or_cut(engine, name):
    schema = SCHEMAS[name]
    schemas.check(schema, "")
    answers = [
        submit(engine, prompt(f"An example of {name} in JSON.", schema=schema, max_output_tokens=64, **sampling))
        for sampling in ({}, {"temperature": 0.8, "seed": 1}, {"temperature": 2.0, "seed": 2})
    ]
    for answer in answers:
        answer.wait()
        assert isinstance(answer.end, Finished)
        assert answer.end.reason == "length" or schemas.mistake_in(answer.text, schema) is None


def test_b0_11_a_grammar_that_llama_cpp_does_not_take_ends_the_answer(engine, monkeypatch):
    """It would go on without one."""
    monkeypatch.setattr(llama_cpp, "_LAYOUT", {"no_such_option": True})
    answer = ask(engine, COUNT, schema=AGE, max_output_tokens=20)
    assert answer.text == ""
    assert answer.end.problem["code"] == "engine_failed"


def test_b0_11_a_schema_that_makes_no_grammar_fails_before_anything_is_generated(engine):
    answer = ask(engine, COUNT, schema={"not": {}})
    assert [type(output) for output in answer.outputs] == [Broken]
    assert ask(engine, COUNT, max_output_tokens=1).text == "1"


def test_a_prompt_with_a_schema_that_does_not_fit_is_refused(narrow):
    answer = ask(narrow, "word " * 300, schema=AGE)
    assert answer.end.problem["code"] == "context_length_exceeded"


def test_b6_3_the_last_turn_is_gone_on_with(engine):
    whole = ask(engine, COUNT, max_output_tokens=12).text
    what = prompt([("user", COUNT), ("assistant", whole[:10])], continue_last=True, max_output_tokens=6)
    answer = submit(engine, what).wait()
    assert answer.text
    assert (whole + "…").startswith((whole[:10] + answer.text)[: len(whole)])
    assert engine.count(what) == answer.end.usage.input_tokens


HERMES = b"""{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls %}{% set a = c.function.arguments %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ a if a is string else a | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def hermes(starter, tmp_path_factory):
    """The starter with a template that knows tools, and the markers of calls as tokens of their own."""
    path = tmp_path_factory.mktemp("models") / "hermes.gguf"
    tokens = [(b"<file_sep>", b"<tool_call>"), (b"<filename>", b"</tool_call>")]
    with loaded(changed(starter, path, HERMES, tokens), parallel=1, context_length=2048) as engine:
        yield engine


def test_b0_9_a_template_that_knows_tools_renders_them(hermes, engine):
    assert hermes._template.knows_tools
    assert not engine._template.knows_tools
    turns = [
        Turn("user", "Weather?"),
        Turn("assistant", "I look.", [Call("get_weather", '{"city": "Rome"}'), Call("get", "not JSON")]),
        Turn("tool", "sunny", name="get_weather"),
        Turn("tool", "{}", name="get"),
    ]
    what = Prompt(turns=turns, tools=[WEATHER, ANYTHING], max_output_tokens=1)
    rendered = hermes._endpoint.post("/apply-template", hermes._template.body(what))["prompt"]
    assert '"description": "The weather in a city."' in rendered
    assert 'I look.<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>' in rendered
    assert '{"name": "get", "arguments": not JSON}' in rendered
    assert "<|im_start|>tool\nsunny<|im_end|>" in rendered
    assert submit(hermes, what).wait().end.usage.input_tokens == hermes.count(what)


def test_b0_9_markers_may_be_tokens_of_their_own(hermes):
    assert hermes._template.markers.keys() == {"<tool_call>", "</tool_call>"}
    for choice in ("required", NamedTool(name="get_time")):
        what = prompt(COUNT, tools=[TIME, WEATHER], tool_choice=choice, parallel=False, max_output_tokens=60)
        [(_, _, is_whole)], text = called(what, submit(hermes, what).wait())
        assert is_whole
        assert text == ""
    what = prompt(COUNT, tools=[TIME], max_output_tokens=20)
    assert called(what, submit(hermes, what).wait())[1]


def test_each_output_says_how_many_tokens_there_are_so_far(engine):
    ask(engine, "Say hello to everyone.", max_output_tokens=4)
    answer = ask(engine, "Say hello to everyone.", max_output_tokens=4)
    assert [output.tokens for output in answer.outputs if isinstance(output, Text)][-1] in (3, 4)
    progress = [output for output in answer.outputs if isinstance(output, PromptProgress)]
    assert all(0 < output.cached <= output.done <= output.total for output in progress)


# Trouble


def test_an_emit_that_raises_ends_its_own_answer_only(engine, caplog):
    def on_output(answer, output):
        if isinstance(output, Text):
            raise BrokenPipeError("the reader is gone")

    answer = submit(engine, prompt(COUNT), on_output).wait()
    assert [end.problem["code"] for end in answer.ends] == ["engine_failed"]
    assert "the reader is gone" in caplog.text
    assert ask(engine, COUNT, max_output_tokens=1).text == "1"


def test_an_emit_that_always_raises_costs_no_thread(starter, caplog):
    with loaded(starter, parallel=1, context_length=512) as engine:

        def emit(output):
            raise BrokenPipeError

        for _ in range(3):
            engine.submit(prompt(COUNT), emit)
        assert ask(engine, COUNT, max_output_tokens=1).text == "1"


def test_what_llama_cpp_refuses_is_a_problem_of_that_request(engine):
    for text in ("half a surrogate: \ud800",):
        answer = ask(engine, text)
        assert answer.end.problem["code"] == "engine_failed"
    assert ask(engine, COUNT, max_output_tokens=1).text == "1"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"hello", "not a GGUF"), (5_000_000, "llama.cpp says: .*corrupted or incomplete")],
)
def test_a_model_that_cannot_be_loaded_says_why_without_its_path(starter, tmp_path, content, reason):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(starter.read_bytes()[:content] if isinstance(content, int) else content)
    with pytest.raises(ModelUnavailable, match=reason) as caught:
        llama_cpp.load(path, Settings())
    assert str(tmp_path) not in caught.value.detail


def test_a_platform_without_unix_sockets_is_told(monkeypatch):
    monkeypatch.delattr(socket, "AF_UNIX")
    missing = llama_cpp.unavailable()
    assert "Unix socket" in missing.reason
    assert missing.fix


def test_a_missing_library_is_told_with_the_command_that_mends_it(monkeypatch, starter):
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda name: None)
    assert llama_cpp.unavailable().fix == "pip install xllamacpp"
    with pytest.raises(ModelUnavailable, match="pip install xllamacpp"):
        llama_cpp.load(starter, Settings())


def test_the_vision_part_of_a_model_is_no_model(tmp_path):
    path = tmp_path / "mmproj.gguf"
    key, value = b"general.architecture", b"clip"
    path.write_bytes(
        b"GGUF\3\0\0\0"
        + bytes(8)
        + (1).to_bytes(8, "little")
        + len(key).to_bytes(8, "little")
        + key
        + (8).to_bytes(4, "little")
        + len(value).to_bytes(8, "little")
        + value
    )
    with pytest.raises(ValueError, match="vision"):
        llama_cpp.inspect(path)


@pytest.mark.parametrize(
    ("megabytes", "threads", "tokens"),
    [(98, 2, 32), (98, 8, 128), (800, 8, 16), (5000, 8, 16), (98, 64, 256), (0, 2, 256)],
)
def test_a_batch_on_a_cpu_is_about_half_a_second(megabytes, threads, tokens):
    """B0.8"""
    assert llama_cpp._cpu_batch(megabytes * 10**6, Settings(threads=threads)) == tokens


def test_a_batch_has_room_for_a_token_of_every_slot():
    assert llama_cpp._cpu_batch(5 * 10**9, Settings(threads=2, parallel=24)) == 24


# Closing, and what is left open


def test_closing_ends_everything_and_leaves_nothing(starter):
    """B5.6: a socket in a private folder, and no port."""
    process = psutil.Process()
    ports = {connection.laddr for connection in process.net_connections("inet")}
    threads = set(threading.enumerate())
    engine = llama_cpp.load(starter, Settings(parallel=2, context_length=2048))
    folder = engine._endpoint.address.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {connection.laddr for connection in process.net_connections("inet")} == ports
    answers = [submit(engine, prompt("Write a long story.")) for _ in range(6)]
    engine.close()
    engine.close()
    for answer in answers:
        assert answer.ended.is_set()
        assert [end.reason for end in answer.ends] == ["cancelled"]
    assert not folder.exists()
    assert set(threading.enumerate()) == threads
    assert submit(engine, prompt("Hi")).outputs == [Finished("cancelled")]


def test_a_long_temporary_folder_still_has_room_for_a_socket(starter, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with loaded(starter, parallel=1, context_length=256) as engine:
        assert engine.count(prompt("Hi")) > 0


def test_a_socket_that_is_not_asked_with_the_key_tells_nothing(engine):
    wrong = llama_cpp._Endpoint(engine._endpoint.address, "wrong")
    with pytest.raises(llama_cpp.EngineFailed):
        wrong.post("/tokenize", {"content": "a"})


def test_nothing_is_printed_and_the_process_ends_well(starter):
    code = (
        "import sys; from pathlib import Path; from lmsp_jupyter.engines import *; "
        "from lmsp_jupyter.engines import llama_cpp; "
        "assert 'xllamacpp' not in sys.modules; "
        "engine = llama_cpp.load(Path(sys.argv[1]), Settings(parallel=1, context_length=256)); "
        "engine.submit(Prompt(turns=[Turn('user', 'Hi')]), lambda output: None); engine.close()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(starter)], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr == ""
