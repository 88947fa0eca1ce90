"""The parent's side of control, with workers that answer when the test says so."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from pellucid.app.control import Control, Link
from pellucid.app.frames import encode, error_record
from pellucid.app.team import Team
from pellucid.core.record import Event
from pellucid.errors import FormatError, PellucidError, UnavailableError
from pellucid.serving.shared_memory import Regions
from pellucid.testing.plane import echo_model, make_plane
from pellucid.testing.recorder import MemoryRecorder

MEMBERS = {"key": "seg", "offset": 0, "byte_size": 8}


class Worker:
    """The parent's end of a worker's stream, as far as control uses it."""

    def __init__(self, control: Control, number: int) -> None:
        self.control, self.number, self.sent = control, number, list[dict[str, Any]]()
        control.join(cast(Link, self))

    def open(self) -> None:
        """Nothing to listen to."""

    def close(self) -> None:
        """Nothing is held."""

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def ask(self, number: int, verb: str, name: str, **more: Any) -> None:
        message = {"ask": number, "verb": verb, "name": name, "more": more}
        self.control.hear(cast(Link, self), message)
        self.control.proceed(is_starting=False)

    def orders(self) -> list[tuple[str, str, bool]]:
        """What it is told to do and has not done."""
        done = [message["was"] for message in self.sent if "was" in message]
        found = [m for m in self.sent if "do" in m and m["do"] not in done]
        return [(m["verb"], m["name"], m["is_first"]) for m in found]

    def did(self, **told: Any) -> None:
        """It has done the oldest."""
        done = [message["was"] for message in self.sent if "was" in message]
        number = next(m["do"] for m in self.sent if "do" in m and m["do"] not in done)
        self.sent.append({"was": number})
        self.control.hear(cast(Link, self), {"did": number} | (told or {"value": True}))
        self.control.proceed(is_starting=False)

    def answers(self) -> list[Any]:
        """What it was told of what it asked for: an error's code, or nothing."""
        return [m["error"]["code"] if "error" in m else None for m in self.sent if "told" in m]


def crew() -> tuple[Control, Worker, Worker]:
    control = Control()
    return control, Worker(control, 0), Worker(control, 1)


def test_the_one_that_was_asked_is_first_and_its_answer_waits_for_the_others() -> None:
    control, one, other = crew()
    one.ask(1, "register", "in", members=MEMBERS)
    assert (one.orders(), other.orders()) == ([("register", "in", True)], [])
    one.did()
    assert (one.answers(), other.orders()) == ([], [("register", "in", False)])
    other.did()
    assert one.answers() == [None]
    assert control.regions == {"in": MEMBERS}
    assert not control.is_changing


def test_who_begins_later_is_told_what_is_registered_then() -> None:
    control, one, other = crew()
    for number, verb, name in (
        (1, "register", "a"), (2, "register", "b"), (3, "unregister", "a"), (4, "register", "c"),
    ):  # fmt: skip
        one.ask(number, verb, name, members=MEMBERS)
        one.did()
        other.did()
    assert Worker(control, 2).sent == [{"changes": {}, "regions": {"b": MEMBERS, "c": MEMBERS}}]
    control.leave(cast(Link, other))
    one.ask(5, "unregister", "")
    one.did()
    assert control.regions == {}


def test_a_region_that_the_first_refuses_nobody_else_hears_of() -> None:
    control, one, other = crew()
    one.ask(1, "register", "in", members=MEMBERS)
    one.did(error=error_record(FormatError("taken")))
    assert (one.answers(), other.orders(), control.regions) == (["format"], [], {})


def test_a_region_that_a_follower_refuses_is_said_so() -> None:
    _, one, other = crew()
    one.ask(1, "register", "in", members=MEMBERS)
    one.did()
    other.did(error=error_record(FormatError("gone")))
    assert one.answers() == [UnavailableError.code]


def test_two_who_register_the_same_name_are_one_after_the_other() -> None:
    _, one, other = crew()
    one.ask(1, "register", "in", members=MEMBERS)
    one.ask(2, "register", "in", members=MEMBERS | {"key": "another"})
    other.ask(1, "register", "in", members=MEMBERS)
    assert len(one.orders()) == 1
    one.did()
    other.did()
    one.did(error=error_record(FormatError("taken")))
    other.did(error=error_record(FormatError("taken")))
    assert (one.answers(), other.answers()) == ([None, "format"], ["format"])


def test_a_region_does_not_wait_for_an_engine_and_loads_still_come_one_by_one() -> None:
    control, one, other = crew()
    one.ask(1, "load", "large")
    other.ask(1, "load", "small")
    other.ask(2, "register", "in", members=MEMBERS)
    assert one.orders() == [("load", "large", True)]
    assert other.orders() == [("register", "in", True)]
    other.did()
    assert one.orders() == [("load", "large", True), ("register", "in", False)]
    assert control.is_changing
    one.did()
    assert other.orders() == [("load", "large", False)]
    other.did()
    assert other.orders() == [("load", "small", True)]


def test_nothing_changes_while_somebody_begins() -> None:
    control, one, _ = crew()
    message = {"ask": 1, "verb": "register", "name": "in", "more": {"members": MEMBERS}}
    control.hear(cast(Link, one), message)
    control.proceed(is_starting=True)
    assert one.orders() == []
    control.proceed(is_starting=False)
    assert one.orders() == [("register", "in", True)]


def test_what_only_some_workers_could_register_is_taken_back_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent, worker = socket.socketpair()
    with parent, worker:
        parent.sendall(encode({"changes": {}, "regions": {}}))
        team, asked = Team(worker), list[tuple[str, str, Any]]()

        async def ask(verb: str, name: str, more: Any) -> list[Any]:
            asked.append((verb, name, more))
            if verb == "register":
                raise errors.pop()
            return []

        monkeypatch.setattr(team, "_ask", ask)
        errors: list[PellucidError] = [FormatError("taken"), UnavailableError("one did not follow")]
        with pytest.raises(UnavailableError, match="did not follow"):
            asyncio.run(team.register_region("in", MEMBERS | {"more": "of the client's"}))
        assert asked == [("register", "in", {"members": MEMBERS}), ("unregister", "in", {})]
        asked.clear()
        with pytest.raises(FormatError, match="taken"):  # what another has registered stays
            asyncio.run(team.register_region("in", MEMBERS))
        assert [verb for verb, _, _ in asked] == ["register"]


def test_a_worker_that_begins_registers_what_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(bytes(8))
    recorder = MemoryRecorder()
    plane = make_plane([echo_model()], recorder, regions=Regions(tmp_path))
    parent, worker = socket.socketpair()
    with parent, worker:
        regions = {name: {"key": name, "offset": 0, "byte_size": 8} for name in ("gone", "there")}
        parent.sendall(encode({"changes": {}, "regions": regions}))
        team = Team(worker)
        team.share(plane.manage)
        assert plane.manage.shm_status("") == [{"name": "there"} | regions["there"]]
        assert plane.manage.sharing is team
        assert not [record for record in recorder.records if isinstance(record, Event)]  # said once before
