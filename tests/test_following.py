"""Many things followed on one connection (B8)."""

import asyncio
import json

import msgspec
import pytest
from waiting import until

from lmsp_jupyter import following as module
from lmsp_jupyter.errors import BadRequest, EventHistoryExpired, InsufficientScope, TaskNotFound
from lmsp_jupyter.events import Entry
from lmsp_jupyter.following import MAX_ARRAY, Following
from lmsp_jupyter.protocol import Approval

pytestmark = pytest.mark.ours


def run(scenario):
    """Run a coroutine that a lost wake-up would leave waiting for ever."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=20))


async def settle():
    """Let every other coroutine run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def entry(number, text="x"):
    return Entry(number, "response.output_text.delta", json.dumps({"delta": text, "sequence_number": number}))


def message(task_id, number, text="x"):
    return {
        "task_id": task_id,
        "id": number,
        "event": "response.output_text.delta",
        "data": {"delta": text, "sequence_number": number},
    }


def item(id, decision=None):
    return Approval(id=id, tool="t", arguments="{}", created_at=1, expires_at=2, decision=decision)


def json_of(item):
    return msgspec.to_builtins(item)


class Page:
    """The other end of the connection: what it was sent, and how it reads. The events of `logs` are followed."""

    def __init__(self, lists=None, poll=0.005):
        self.arrays = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.logs = {}
        self.added = asyncio.Event()
        self.left = []
        self.following = Following(self.receive, self.follow, lists or {}, poll)

    async def receive(self, array):
        self.arrays.append(json.loads(msgspec.json.encode(array)))
        await self.reads.wait()

    async def follow(self, task_id, after):
        try:
            if isinstance(log := self.logs.get(task_id, TaskNotFound("There is no such task.")), Exception):
                raise log
            while True:
                added = self.added
                if batch := [each for each in log if each and each.id > after]:
                    after = batch[-1].id
                    yield batch
                elif log[-1:] == [None]:
                    return
                else:
                    yield []
                    await added.wait()
        finally:
            self.left.append(task_id)

    def add(self, task_id, *entries):
        """Log events; None ends the log."""
        self.logs.setdefault(task_id, []).extend(entries)
        self.added.set()
        self.added = asyncio.Event()

    async def say(self, **message):
        await self.following.take(json.dumps(message))
        await settle()

    @property
    def messages(self):
        return [message for array in self.arrays for message in array]


# Messages of the page


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_request"),
        ("follow", "invalid_request"),
        ('["follow"]', "invalid_request"),
        ("{}", "invalid_request"),
        ('{"after": 1}', "invalid_request"),
        ('{"follow": 1}', "invalid_request"),
        ('{"follow": null}', "invalid_request"),
        ('{"follow": "task_1", "follow": "task_2"}', "invalid_request"),
        ('{"follow": "task_1", "after": -1}', "invalid_request"),
        ('{"follow": "task_1", "after": 1.5}', "invalid_request"),
        ('{"follow": "task_1", "after": "1"}', "invalid_request"),
        ('{"follow": "task_1", "after": true}', "invalid_request"),
        ('{"follow": "task_1", "before": 1}', "unknown_parameter"),
        ('{"follow": "task_1", "unfollow": "task_1"}', "unknown_parameter"),
        ('{"unfollow": ["task_1"]}', "invalid_request"),
        ('{"cancel": "task_1"}', "unknown_parameter"),
        ('{"follow": "\\ud83d"}', "invalid_request"),
        ("\ud83d", "invalid_request"),
        (b"\xff", "invalid_request"),
    ],
    ids=repr,
)
def test_b8_2_a_message_that_is_not_understood_is_answered_with_a_problem(text, code):
    async def scenario():
        page = Page()
        await page.following.take(text)
        page.add("task_1", entry(1))
        await page.say(follow="task_1")
        await page.following.close()
        return page.arrays

    [answer], *rest = run(scenario())

    assert (answer["error"]["code"], answer["error"]["status"]) == (code, 400)
    assert rest == [[message("task_1", 1)]]  # and the connection goes on


def test_b8_2_a_task_that_cannot_be_followed_so_is_named():
    async def scenario():
        page = Page()
        await page.following.take('{"follow": "task_1", "after": -1}')
        return page.messages

    [answer] = run(scenario())

    assert answer["task_id"] == "task_1"
    assert answer["error"]["code"] == "invalid_request"


# Tasks


def test_b8_1_a_task_is_followed_from_the_beginning_to_its_end():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1), entry(2))
        await page.say(follow="task_1")
        page.add("task_1", entry(3), None)
        await settle()
        return page.arrays

    assert run(scenario()) == [
        [message("task_1", 1), message("task_1", 2)],
        [message("task_1", 3)],
        [{"task_id": "task_1", "ended": True}],
    ]


def test_b8_1_a_task_is_followed_from_a_position():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1), entry(2), entry(3), None)
        await page.say(follow="task_1", after=2)
        return page.messages

    assert run(scenario()) == [message("task_1", 3), {"task_id": "task_1", "ended": True}]


def test_b3_4_a_finished_task_with_nothing_left_just_ends():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1), None)
        await page.say(follow="task_1", after=1)
        return page.messages

    assert run(scenario()) == [{"task_id": "task_1", "ended": True}]


def test_b8_1_the_data_of_an_event_is_sent_as_it_was_logged():
    text = '{"delta":"\\ud83d\\ude00 \\u00e9","n":1e2,"big":12345678901234567890}'
    sent = []

    async def send(array):
        sent.append(msgspec.json.encode(array))

    async def follow(task_id, after):
        yield [Entry(1, "response.output_text.delta", text)]

    async def scenario():
        await Following(send, follow, {}).take('{"follow": "task_1"}')
        await settle()

    run(scenario())

    assert sent[0] == (
        b'[{"task_id":"task_1","id":1,"event":"response.output_text.delta","data":' + text.encode() + b"}]"
    )


@pytest.mark.parametrize(
    "problem",
    [TaskNotFound("No."), EventHistoryExpired("Gone."), BadRequest("There is no event 9."), InsufficientScope("No.")],
    ids=lambda problem: problem.code,
)
def test_b3_4_what_keeps_a_task_from_being_followed_is_told(problem):
    async def scenario():
        page = Page()
        page.logs["task_1"] = problem
        page.add("task_2", entry(1))
        await page.say(follow="task_1")
        await page.say(follow="task_2")
        await page.following.close()
        return page.messages

    assert run(scenario()) == [{"task_id": "task_1", "error": problem.document()}, message("task_2", 1)]


def test_b8_1_an_unexpected_error_is_logged_and_told_without_what_it_says(caplog):
    async def scenario():
        page = Page()
        page.logs["task_1"] = RuntimeError("/home/ann")
        await page.say(follow="task_1")
        return page.messages

    [told] = run(scenario())

    assert (told["task_id"], told["error"]["code"]) == ("task_1", "internal_error")
    assert "/home/ann" not in json.dumps(told)
    assert "/home/ann" in caplog.text


def test_b8_1_several_tasks_are_followed_at_the_same_time():
    async def scenario():
        page = Page()
        for name in ("task_1", "task_2", "task_3"):
            page.add(name)
            await page.say(follow=name)
        for number in (1, 2):
            for name in ("task_1", "task_2", "task_3"):
                page.add(name, entry(number))
                await settle()
        await page.following.close()
        return page.messages

    assert run(scenario()) == [message(name, number) for number in (1, 2) for name in ("task_1", "task_2", "task_3")]


def test_b8_1_after_unfollow_nothing_of_the_task_is_sent():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1))
        page.add("task_2", entry(1))
        await page.say(follow="task_1")
        await page.say(follow="task_2")
        await page.say(unfollow="task_1")
        page.add("task_1", entry(2), None)
        page.add("task_2", entry(2))
        await settle()
        left = list(page.left)
        await page.following.close()
        return page.messages, left

    messages, left = run(scenario())

    assert messages == [message("task_1", 1), message("task_2", 1), message("task_2", 2)]
    assert left == ["task_1"]


def test_b8_2_unfollowing_what_is_not_followed_is_no_error():
    async def scenario():
        page = Page()
        await page.say(unfollow="task_1")
        await page.say(unfollow="tasks")
        return page.messages

    assert run(scenario()) == []


def test_b8_2_following_again_starts_from_the_new_position():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1), entry(2))
        await page.say(follow="task_1", after=1)
        await page.say(follow="task_1", after=0)
        page.add("task_1", entry(3))
        await settle()
        await page.following.close()
        return page.messages

    assert [told["id"] for told in run(scenario())] == [2, 1, 2, 3]


def test_b8_1_an_ended_task_may_be_followed_again():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1), None)
        await page.say(follow="task_1")
        await page.say(follow="task_1")
        return page.messages

    assert run(scenario()) == [message("task_1", 1), {"task_id": "task_1", "ended": True}] * 2


# Lists


class Things:
    """A list that changes."""

    def __init__(self, *items):
        self.items = {item.id: item for item in items}
        self.reads = 0

    async def __call__(self):
        self.reads += 1
        return dict(self.items)

    def put(self, item):
        self.items[item.id] = item


def test_b8_1_a_list_comes_whole_first_and_then_as_it_changes():
    things = Things(item("a"), item("b"))

    async def scenario():
        page = Page({"tasks": things})
        await page.say(follow="tasks")
        things.put(item("b", "allow"))
        things.put(item("c"))
        del things.items["a"]
        await asyncio.sleep(0.02)
        await settle()
        await page.following.close()
        return page.arrays

    assert run(scenario()) == [
        [{"list": "tasks", "changed": [json_of(item("a")), json_of(item("b"))], "gone": []}],
        [{"list": "tasks", "changed": [json_of(item("b", "allow")), json_of(item("c"))], "gone": ["a"]}],
    ]


def test_b8_1_an_empty_list_is_told_too():
    async def scenario():
        page = Page({"models": Things()})
        await page.say(follow="models")
        await page.following.close()
        return page.messages

    assert run(scenario()) == [{"list": "models", "changed": [], "gone": []}]


def test_b8_1_a_list_that_did_not_change_is_not_told_again():
    things = Things(item("a"))

    async def scenario():
        page = Page({"tasks": things})
        await page.say(follow="tasks")
        for _ in range(3):
            things.put(item("a"))
            await asyncio.sleep(0.02)
            await settle()
        await page.following.close()
        return page.messages

    assert len(run(scenario())) == 1
    assert things.reads >= 4


def test_b8_1_lists_are_looked_at_without_being_woken():
    things = Things()

    async def scenario():
        page = Page({"approvals": things})
        await page.say(follow="approvals")
        things.put(item("a"))
        await until(lambda: len(page.messages) == 2)
        await page.following.close()
        return page.messages

    assert run(scenario())[1:] == [{"list": "approvals", "changed": [json_of(item("a"))], "gone": []}]


def test_b8_1_a_change_while_a_list_is_read_is_not_lost():
    release = asyncio.Event()
    items = {"a": item("a")}

    async def slowly():
        read = dict(items)
        await release.wait()
        return read

    async def scenario():
        page = Page({"tasks": slowly})
        await page.say(follow="tasks")
        items["b"] = item("b")
        release.set()
        await asyncio.sleep(0.02)
        await page.following.close()
        return page.messages

    assert [told["changed"] for told in run(scenario())] == [[json_of(item("a"))], [json_of(item("b"))]]


def test_b8_2_following_a_list_again_tells_it_whole_again():
    async def scenario():
        page = Page({"tasks": Things(item("a"))})
        await page.say(follow="tasks")
        await page.say(follow="tasks")
        await page.following.close()
        return page.messages

    assert run(scenario()) == [{"list": "tasks", "changed": [json_of(item("a"))], "gone": []}] * 2


def test_b5_3_a_list_that_the_caller_may_not_see_is_a_problem():
    problem = InsufficientScope("This takes the scope tasks:read.")

    async def refused():
        raise problem

    async def scenario():
        page = Page({"tasks": refused, "models": Things()})
        await page.say(follow="tasks")
        await page.say(follow="models")
        await page.following.close()
        return page.messages

    assert run(scenario()) == [
        {"list": "tasks", "error": problem.document()},
        {"list": "models", "changed": [], "gone": []},
    ]


def test_b8_1_after_unfollow_a_list_is_not_read():
    things = Things(item("a"))

    async def scenario():
        page = Page({"tasks": things})
        await page.say(follow="tasks")
        await page.say(unfollow="tasks")
        things.put(item("b"))
        await asyncio.sleep(0.02)
        await settle()
        return page.messages

    assert len(run(scenario())) == 1
    assert things.reads == 1


# Slow pages, many things, the end


def test_b3_5_what_gathers_while_a_page_is_slow_goes_out_as_one_array():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1))
        page.reads.clear()
        await page.say(follow="task_1")
        for number in range(2, 10):
            page.add("task_1", entry(number))
            await settle()
        page.reads.set()
        await settle()
        await page.following.close()
        return page.arrays

    assert [[told["id"] for told in array] for array in run(scenario())] == [[1], [2, 3, 4, 5, 6, 7, 8, 9]]


def test_b3_5_a_slow_page_is_sent_one_array_at_a_time():
    async def scenario():
        page = Page({"tasks": Things(item("a"))})
        page.reads.clear()
        for name in ("task_1", "task_2", "task_3"):
            page.add(name, entry(1), entry(2), None)
            await page.say(follow=name)
        await page.say(follow="tasks")
        stalled = len(page.arrays)
        page.reads.set()
        await settle()
        await page.following.close()
        return stalled, page.messages

    stalled, messages = run(scenario())

    assert stalled == 1
    assert len(messages) == 3 * 3 + 1


def test_b3_5_a_slow_page_slows_no_other():
    async def scenario():
        slow, other = Page(), Page()
        other.logs, other.added = slow.logs, slow.added
        slow.reads.clear()
        slow.add("task_1", entry(1), entry(2), None)
        await slow.say(follow="task_1")
        await other.say(follow="task_1")
        await slow.following.close()
        return slow.messages, other.messages

    slow, other = run(scenario())

    assert len(slow) == 2
    assert other == [message("task_1", 1), message("task_1", 2), {"task_id": "task_1", "ended": True}]


def test_b8_2_a_long_log_goes_out_in_several_arrays():
    count = 2 * MAX_ARRAY + 1

    async def scenario():
        page = Page()
        page.add("task_1", *(entry(number) for number in range(1, count + 1)), None)
        await page.say(follow="task_1")
        return page.arrays

    *arrays, end = run(scenario())

    assert [len(array) for array in arrays] == [MAX_ARRAY, MAX_ARRAY, 1]
    assert [told["id"] for array in arrays for told in array] == list(range(1, count + 1))
    assert end == [{"task_id": "task_1", "ended": True}]


def test_b8_2_one_connection_follows_so_many_things(monkeypatch):
    monkeypatch.setattr(module, "MAX_FOLLOWED", 2)

    async def scenario():
        page = Page({"tasks": Things()})
        for name in ("task_1", "task_2", "task_3"):
            page.add(name)
            await page.say(follow=name)
        await page.say(follow="tasks")
        await page.say(follow="task_2")  # is followed already
        await page.say(unfollow="task_1")
        page.add("task_3", entry(1))
        await page.say(follow="task_3")
        await page.following.close()
        return page.messages

    task, list_, *rest = run(scenario())

    assert (task["task_id"], task["error"]["code"]) == ("task_3", "queue_full")
    assert (list_["list"], list_["error"]["code"]) == ("tasks", "queue_full")
    assert rest == [message("task_3", 1)]


def test_b8_1_closing_leaves_every_log_and_list():
    things = Things()

    async def scenario():
        page = Page({"tasks": things})
        page.add("task_1", entry(1))
        page.add("task_2", entry(1), entry(2))
        await page.say(follow="tasks")
        await page.say(follow="task_1")
        page.reads.clear()
        await page.say(follow="task_2")
        await page.following.close()
        page.reads.set()
        await asyncio.sleep(0.02)
        page.add("task_1", entry(2))
        await settle()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return page.messages, page.left, len(others)

    messages, left, others = run(scenario())

    assert messages[1:] == [message("task_1", 1), message("task_2", 1), message("task_2", 2)]
    assert sorted(left) == ["task_1", "task_2"]
    assert things.reads == 1
    assert others == 1  # `wait_for`, around this scenario


def test_b8_1_a_closed_connection_follows_nothing_more():
    async def scenario():
        page = Page()
        page.add("task_1", entry(1))
        await page.following.close()
        await page.say(follow="task_1")
        return page.messages

    assert run(scenario()) == []


def test_b8_1_whoever_finds_the_connection_closed_stops_all_readers():
    async def scenario():
        page = Page({"tasks": Things(item("a"))})
        for name in ("task_1", "task_2"):
            page.add(name, entry(1))
            await page.say(follow=name)

        async def closed(array):
            await page.following.close()

        page.following._send = closed
        page.add("task_1", entry(2))
        page.add("task_2", entry(2))
        await settle()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return page.left, len(others)

    left, others = run(scenario())

    assert sorted(left) == ["task_1", "task_2"]
    assert others == 1  # `wait_for`, around this scenario
