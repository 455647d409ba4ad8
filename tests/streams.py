"""Requests, tasks and event streams as tests write and read them."""

import json

from lmsp_jupyter import sse


def body(model="hello", input="hi", **more):
    """A request."""
    return {"model": model, "input": input, **more}


async def stream(client, request, leave_after=None):
    """The events of a streaming request, as (id, name, data); with `leave_after`, leave after so many."""
    decoder, events = sse.Decoder(), []
    async with client.stream("POST", "/responses", json=request | {"stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["Content-Type"] == "text/event-stream"
        async for chunk in answer.aiter_bytes():
            events += [(int(m.id), m.event, json.loads(m.data)) for m in decoder.feed(chunk)]
            if leave_after and len(events) >= leave_after:
                break
    return events


def deltas(events):
    """The text that a stream brought."""
    return "".join(data["delta"] for _, name, data in events if name == "response.output_text.delta")


async def create(client, request, headers=None, **more):
    """A new task."""
    answer = await client.post("/tasks", json={"type": "response", "request": request, **more}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def follow(client, task, leave_after=None, **options):
    """The frames of a task's events, byte for byte; with `leave_after`, leave after so many."""
    raw = b""
    async with client.stream("GET", f"/tasks/{task['id']}/events", **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["Content-Type"] == "text/event-stream"
        async for chunk in answer.aiter_raw():
            raw += chunk
            if leave_after and len(frames(raw)) >= leave_after:
                break
    return frames(raw)[:leave_after]


async def finished(client, task):
    """The task, when it has ended."""
    await follow(client, task)
    return (await client.get(f"/tasks/{task['id']}")).json()


def frames(raw):
    """A stream cut into its events, heartbeats apart; an unfinished one at the end is left out."""
    return [frame + b"\n\n" for frame in raw.replace(sse.PING, b"").split(b"\n\n")[:-1]]


def events_in(cut):
    """The events in frames, as (id, name, data)."""
    return [(int(m.id), m.event, json.loads(m.data)) for m in sse.Decoder().feed(b"".join(cut))]


def names_in(cut):
    """The names of the events in frames."""
    return [name for _, name, _ in events_in(cut)]
