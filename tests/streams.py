"""Requests and event streams as tests write and read them."""

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
