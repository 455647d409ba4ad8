"""A client whose answers are scripted, as the magics know one. Kernels import it too."""

import time
from pathlib import Path

from lmsp_jupyter import errors, events, protocol


def usage(tokens_in=5, tokens_out=3, cached=2):
    return protocol.Usage(
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        total_tokens=tokens_in + tokens_out,
        input_tokens_details=protocol.InputTokensDetails(cached_tokens=cached),
    )


def answer(*deltas, end="completed", before=(), model="fake"):
    """The events of one answer; `before` are events that stand before the first delta."""
    id = protocol.new_id("resp")
    composer = events.Composer(id)
    created = protocol.Response(id=id, created_at=1700000000, model=model)
    script = [events.Created(response_id=id, response=created), *before]
    for delta in deltas:
        script += composer.text(delta)
    if end == "completed":
        script += composer.completed(usage())
    elif end == "failed":
        script += composer.failed(errors.EngineFailed("The engine gave up. Try again."))
    elif end is not None:
        script += composer.incomplete(end, usage())
    for number, event in enumerate(script, 1):
        event.sequence_number = number
    return script


def progress(phase, done, total):
    return events.Progress(response_id="resp_0", phase=phase, done=done, total=total)


class FakeStream:
    """`pause` is called before each event; an exception in the script is raised in its place."""

    def __init__(self, script, pause, log):
        self._script = iter(script)
        self._pause = pause
        self._log = log
        self._fold = events.Fold()
        self.closed = False

    @property
    def response(self):
        return self._fold.response

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True
        if self._log:
            Path(self._log).write_text("closed")

    def __iter__(self):
        return self

    def __next__(self):
        event = next(self._script)
        self._pause()
        if isinstance(event, BaseException):
            raise event
        self._fold.apply(event)
        if isinstance(event, events.Failed):
            self._script = iter([errors.from_document(event.error)])
        return event


class FakeModels:
    def __init__(self, ids):
        self._ids = ids

    def list(self):
        return [
            protocol.Model(
                id=id,
                engine="fake",
                capabilities=["tools"],
                context_length=8192,
                size_bytes=270_000_000,
                quantization="Q8_0",
                source="fake",
            )
            for id in self._ids
        ]

    def get(self, id):
        for model in self.list():
            if model.id == id:
                return model
        raise errors.ModelNotFound(f"No model {id!r}; did you mean {self._ids[0]!r}?")


class FakeClient:
    """Each request takes the next script; the last one is used again and again."""

    def __init__(self, *scripts, delay=0.0, log=None, models=("smollm2:135m", "other_model")):
        self.scripts = list(scripts) or [answer("Hello ", "world.")]
        self.delay = delay
        self.log = log
        self.requests = []
        self.streams = []
        self.models = FakeModels(models)

    def service(self):
        return protocol.Service(
            name="lmsp-jupyter",
            version="0.1.0",
            lmsp_versions=["1.0"],
            capabilities=[],
            engines=[protocol.Engine(name="fake", available=True)],
            default_model="smollm2:135m",
            limits=protocol.Limits(queue=1, body=1, event_retention=1, task_retention=1),
        )

    def close(self):
        self.closed = True

    def count_tokens(self, input, **options):
        return len(f"{options.get('system') or ''} {input}".split())

    def stream(self, input, **options):
        self.requests.append({"input": input, **options})
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        stream = FakeStream(script, lambda: time.sleep(self.delay), self.log)
        self.streams.append(stream)
        return stream
