"""N1.5 and N1.6: what a cell shows while an answer is generated, and what stays."""

import io
import json

import pytest
from fake_client import FakeStream, answer, progress
from IPython.core.displaypub import CapturingDisplayPublisher, DisplayPublisher

from lmsp_jupyter import display, errors, events, protocol
from lmsp_jupyter.display import (
    MIME,
    OnlyEnd,
    OwnCell,
    SharedCell,
    Terminal,
    choose_view,
    show,
)

MESSAGE_BYTES = 600  # what a kernel message weighs before its content


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class FrontEnd:
    """Plays kernel and front end: counts messages and bytes, and shows what a user would see."""

    def __init__(self, clock):
        self.clock = clock
        self.messages = []
        self.shown = []
        self.places = {}
        self.pending = ""
        self.clear_next = False

    # as a display publisher

    def publish(self, data, metadata=None, *, transient=None, update=False):
        self.flush()
        self._message("update" if update else "display", data)
        output = {"data": data, "metadata": metadata}
        display_id = (transient or {}).get("display_id")
        if update:
            self.shown[self.places[display_id]] = output
            return
        self._clear()
        self.places[display_id] = len(self.shown)
        self.shown.append(output)

    def clear_output(self, wait=False):
        self.flush()
        self._message("clear", {})
        if wait:
            self.clear_next = True
        else:
            self.shown = []

    # as stdout

    def write(self, text):
        self.pending += text

    def flush(self):
        if self.pending:
            self._message("stream", self.pending)
            self._clear()
            self.shown.append(self.pending)
            self.pending = ""

    def _clear(self):
        if self.clear_next:
            self.shown, self.clear_next = [], False

    def _message(self, kind, content):
        self.messages.append((self.clock(), kind, len(json.dumps(content)) + MESSAGE_BYTES))

    @property
    def bytes(self):
        return sum(size for _, _, size in self.messages)

    def updates_in_any_second(self):
        times = [time for time, kind, _ in self.messages if kind != "clear"]
        return max(sum(start <= time < start + 1 for time in times) for start in times)


class Run:
    """One stream shown by one kind of view, `rate` events a second."""

    def __init__(self, kind, script, rate=100):
        self.clock = Clock()
        self.front = FrontEnd(self.clock)
        self.looks = []
        out = (self.front,) if kind is OwnCell else ()

        def pause():
            self.looks.append(list(self.front.shown))
            self.clock.now += 1 / rate

        self.stream = FakeStream(script, pause, None)
        self.answer = show(self.stream, kind(self.front, *out, clock=self.clock), self.clock)

    @property
    def only_output(self):
        (output,) = self.front.shown
        return output


both = pytest.mark.parametrize("kind", [OwnCell, SharedCell])


# The output that stays.


@both
def test_n1_5_one_output_stays(kind):
    run = Run(kind, answer("Hello ", "*world*.\n"))

    assert run.only_output["data"] == {
        MIME: {
            "version": 1,
            "model": "fake",
            "status": "completed",
            "output": [
                {
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [
                        {
                            "type": "output_text",
                            "text": "Hello *world*.\n",
                            "annotations": [],
                            "logprobs": [],
                        }
                    ],
                }
            ],
            "usage": {"input_tokens": 5, "output_tokens": 3},
            "incomplete_details": None,
        },
        "text/markdown": "Hello *world*.\n\n<sub>fake · 5 tokens in · 3 out</sub>",
        "text/plain": "Hello *world*.\n\nfake · 5 tokens in · 3 out",
    }


@both
def test_n1_5_what_varies_stands_in_the_metadata(kind):
    first, second = (Run(kind, answer("a", "b", "c"), rate) for rate in (4, 16))

    assert first.only_output["data"] == second.only_output["data"]
    assert first.only_output["metadata"] == {
        MIME: {
            "response_id": first.answer.response.id,
            "task_id": None,
            "last_event_id": 10,
            "created_at": 1700000000,
            "timings": {"time_to_first_token": 1.0, "tokens_per_second": 4.0},
            "cached_tokens": 2,
        }
    }
    assert first.only_output["metadata"] != second.only_output["metadata"]


def test_n1_5_the_output_is_json():
    run = Run(OwnCell, answer("a", end="max_output_tokens"))

    assert json.loads(json.dumps(run.only_output)) == run.only_output


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ("completed", "fake · 5 tokens in · 3 out"),
        ("max_output_tokens", "fake · 5 tokens in · 3 out · truncated: max_output_tokens"),
        ("context_length", "fake · 5 tokens in · 3 out · truncated: context_length"),
        ("stop", "fake · 5 tokens in · 3 out · truncated: stop"),
    ],
)
def test_n1_6_a_line_says_model_tokens_and_why_it_stopped(end, line):
    data = Run(OwnCell, answer("Hi", end=end)).only_output["data"]
    escaped = line.replace("_", "\\_")

    assert data["text/plain"] == f"Hi\n\n{line}"
    assert data["text/markdown"] == f"Hi\n\n<sub>{escaped}</sub>"
    reason = None if end == "completed" else {"reason": end}
    assert data[MIME]["incomplete_details"] == reason


def test_n1_6_a_model_name_is_no_markup():
    data = Run(OwnCell, answer("Hi", model="<b>_x_*y*[z](u)")).only_output["data"]

    assert r"<sub>\<b\>\_x\_\*y\*\[z\]\(u\) ·" in data["text/markdown"]


def test_n1_5_an_answer_without_text():
    data = Run(SharedCell, answer()).only_output["data"]

    assert data["text/plain"] == "fake · 5 tokens in · 3 out"
    assert data["text/markdown"] == "<sub>fake · 5 tokens in · 3 out</sub>"


# Broken off.


@both
def test_n1_7_an_interrupt_keeps_the_partial_answer_as_cancelled(kind):
    run = Run(kind, [*answer("Half an", end=None), KeyboardInterrupt()])

    assert run.stream.closed
    assert isinstance(run.answer.error, KeyboardInterrupt)
    data = run.only_output["data"]
    assert data["text/plain"] == "Half an\n\nfake · cancelled"
    assert data[MIME]["status"] == "cancelled"
    assert data[MIME]["output"][0]["status"] == "incomplete"
    assert data[MIME]["usage"] is None


@both
def test_n1_7_an_interrupt_while_the_prompt_is_read_is_shown_too(kind):
    script = answer(end=None, before=[progress("prompt", 5, 10)])
    run = Run(kind, [*script, KeyboardInterrupt()])

    assert run.only_output["data"]["text/plain"] == "fake · cancelled"


@both
def test_n1_7_an_interrupt_before_the_first_event_shows_nothing(kind):
    run = Run(kind, [KeyboardInterrupt()])

    assert run.front.shown == []
    assert isinstance(run.answer.error, KeyboardInterrupt)


def test_n1_7_an_interrupt_after_the_end_cancels_nothing():
    run = Run(OwnCell, [*answer("All."), KeyboardInterrupt()])

    assert run.answer.response.status == "completed"
    assert isinstance(run.answer.error, KeyboardInterrupt)


@both
def test_n1_13_a_failure_keeps_the_partial_answer(kind):
    run = Run(kind, answer("Half", end="failed"))

    assert isinstance(run.answer.error, errors.EngineFailed)
    assert run.only_output["data"]["text/plain"] == "Half\n\nfake · failed: engine_failed"


@both
def test_n1_13_a_lost_connection_is_a_failure(kind):
    script = answer("Half", end=None)
    run = Run(kind, [*script, errors.ServiceUnreachable("Gone.")])

    assert run.only_output["data"][MIME]["status"] == "failed"
    assert "failed: service_unreachable" in run.only_output["data"]["text/plain"]


@both
def test_b0_7_a_call_that_was_not_whole_when_the_connection_was_lost_is_dropped(kind):
    added = events.ItemAdded(
        response_id="resp_0",
        output_index=1,
        item=protocol.FunctionCall(id="fc_1", call_id="call_1", name="add", arguments="", status="in_progress"),
    )
    run = Run(kind, [*answer("Half", end=None), added, errors.ServiceUnreachable("Gone.")])

    assert [item["type"] for item in run.only_output["data"][MIME]["output"]] == ["message"]


@both
def test_n1_13_a_failure_before_any_text_leaves_nothing(kind):
    script = answer(end=None, before=[progress("loading", 1, 10)])
    run = Run(kind, [*script, errors.ModelUnavailable("No room.")])

    assert any(run.looks)
    emptied = {"data": {"text/plain": ""}, "metadata": None}
    assert run.front.shown == ([] if kind is OwnCell else [emptied])


# While it is generated.


@both
def test_n1_5_text_is_shown_as_it_comes(kind):
    run = Run(kind, answer(*["word "] * 100), rate=10)

    assert len({json.dumps(look) for look in run.looks}) > 10


def test_n1_5_an_own_cell_streams_every_character_once():
    text = [f"{number} " for number in range(500)]
    run = Run(OwnCell, answer(*text))
    streamed = "".join(run.looks[-1])

    assert "".join(text).startswith(streamed)
    assert len(streamed) > 0.9 * len("".join(text))


@both
@pytest.mark.parametrize("rate", [40, 100, 1000, 100_000])
def test_n1_5_bytes_grow_linearly(kind, rate):
    once, twice = (Run(kind, answer(*["abc "] * n), rate).front.bytes for n in (2000, 4000))

    assert twice <= 2.2 * once
    assert once < 15 * 8000 + 30 * MESSAGE_BYTES + 2000 / rate * 15 * MESSAGE_BYTES


@both
@pytest.mark.parametrize("rate", [10, 100, 10_000])
def test_n1_5_at_most_15_updates_a_second(kind, rate):
    loading = [progress("loading", n, 2000) for n in range(2000)]
    run = Run(kind, answer(*["abc "] * 2000, before=loading), rate)

    assert run.front.updates_in_any_second() <= 15 + 3


@both
def test_n1_6_progress_is_shown_and_gone_at_the_end(kind):
    before = [
        events.Queued(response_id="resp_0", position=2),
        progress("loading", 135_000_000, 270_000_000),
        progress("prompt", 100, 400),
        progress("prompt", 0, 0),
        events.ReasoningDelta(response_id="resp_0", item_id="rs_0", delta="hm"),
    ]
    run = Run(kind, answer("Hello", before=before), rate=1)
    looks = [json.dumps(look, ensure_ascii=False) for look in run.looks]

    for said in (
        "number 2 in line",
        "██████████░░░░░░░░░░ 135 of 270 MB",
        "█████░░░░░░░░░░░░░░░ 100 of 400 tokens",
        "Thinking",
    ):
        assert any(said in look for look in looks), said
    assert not any("Hello" in look and ("█" in look or "░" in look) for look in looks)
    assert run.only_output["data"]["text/plain"].startswith("Hello\n")


def test_n1_5_a_shared_cell_leaves_other_output_alone():
    clock = Clock()
    front = FrontEnd(clock)
    front.write("mine\n")
    front.flush()
    show(FakeStream(answer("Hello"), lambda: None, None), SharedCell(front, clock), clock)

    assert front.shown[0] == "mine\n"
    assert len(front.shown) == 2
    assert not any(kind == "clear" for _, kind, _ in front.messages)


def test_only_the_end():
    front = FrontEnd(Clock())
    script = answer("a", "b", before=[progress("loading", 1, 2)])
    show(FakeStream(script, lambda: None, None), OnlyEnd(front))

    assert [kind for _, kind, _ in front.messages] == ["display"]


# Terminals.


class Tty(io.StringIO):
    def isatty(self):
        return True


def in_terminal(script, err):
    out = io.StringIO()
    show(FakeStream(script, lambda: None, None), Terminal(out, err))
    return out.getvalue()


def test_n1_5_a_terminal_shows_the_text_once():
    assert in_terminal(answer("Hel", "lo"), Tty()) == "Hello\n\nfake · 5 tokens in · 3 out\n"
    assert in_terminal(answer("Hi\n"), Tty()) == "Hi\n\nfake · 5 tokens in · 3 out\n"
    assert in_terminal(answer(), Tty()) == "fake · 5 tokens in · 3 out\n"


def test_n1_6_progress_goes_to_a_terminal_only():
    script = answer("Hi", before=[progress("loading", 1, 2)])
    err, pipe = Tty(), io.StringIO()

    assert "Loading" not in in_terminal(script, err) + in_terminal(script, pipe)
    assert "\rLoading" in err.getvalue().replace("\x1b[K", "")
    assert err.getvalue().endswith("\r\x1b[K")
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(
    ("publisher", "owned", "live", "kind"),
    [
        (DisplayPublisher(), False, True, Terminal),
        (DisplayPublisher(), True, False, OnlyEnd),
        (CapturingDisplayPublisher(), True, True, OnlyEnd),
        (FrontEnd(Clock()), True, True, OwnCell),
        (FrontEnd(Clock()), False, True, SharedCell),
        (FrontEnd(Clock()), True, False, OnlyEnd),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_view_fits_the_shell(publisher, owned, live, kind):
    shell = type("Shell", (), {"display_pub": publisher})

    assert type(choose_view(shell, owned=owned, live=live)) is kind


def test_public_mime_type():
    assert display.MIME == "application/vnd.lmsp.response+json"
