"""Groups: their administration, members that fetch by themselves, dead letters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Mapping, Sequence

from .http import Answer, Query, QueryValue, path_of
from .messages import (
    Gap,
    HeaderValue,
    Kind,
    LeasedMessage,
    body_of,
    gap_of,
    headers_of,
    leased_of,
    text_or_bytes,
)
from .settings import Group, GroupSettings

#: Milliseconds that a fetch waits for the first message, unless the call says otherwise.
FETCH_WAIT_MS = 20_000


@dataclass(frozen=True)
class Fetched:
    """Messages that are leased to a member."""

    messages: Sequence[LeasedMessage]
    gaps: Sequence[Gap]
    #: All messages together; neighbours share a lease.
    leases: Sequence[str]
    #: Whether others are ready now.
    more: bool
    #: False for a standby of an ordered group, which gets nothing.
    active: bool


@dataclass(frozen=True)
class Settled:
    """How many messages an ack, nack, terminate or extend was for."""

    taken: int
    #: Not held any more, so not counted.
    refused: int


@dataclass(frozen=True)
class DeadLetter:
    """A message that failed too often."""

    seq: int
    topic: str
    origin_seq: int
    attempts: int
    error: str
    first_failed_ms: int
    died_ms: int
    kind: Kind
    value: Any
    key: str | bytes | None = None
    id: str | bytes | None = None
    headers: Mapping[str, Sequence[HeaderValue]] = field(default_factory=dict)


@dataclass(frozen=True)
class Letters:
    """Which dead letters; all if nothing is named."""

    from_: int | None = None
    to: int | None = None
    #: A pattern.
    topic: str | None = None
    #: A part of the error.
    error: str | None = None
    key: str | bytes | None = None

    def query(self) -> list[tuple[str, QueryValue | None]]:
        return [
            ("from", self.from_),
            ("to", self.to),
            ("topic", self.topic),
            ("error", self.error),
            ("key", self.key),
        ]


@dataclass(frozen=True)
class Redriven:
    moved: int
    #: Whether the rest follows in the background.
    goes_on: bool


class GroupsMixin(ABC):
    """The part of the client that is about groups."""

    @abstractmethod
    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        accept: str = "application/json",
        safe: bool = True,
        waits: float = 0.0,
        timeout: float | None = None,
    ) -> Answer: ...

    async def create_group(self, group: str, settings: GroupSettings) -> Group:
        """Creates a group; one that exists with equal settings is fine."""
        return await self._group("PUT", [group], body=settings)

    async def change_group(self, group: str, changes: GroupSettings) -> Group:
        return await self._group("PATCH", [group], body=changes)

    async def group(self, group: str) -> Group:
        """How a group stands: lag, members, and why it does not move."""
        return await self._group("GET", [group])

    async def delete_group(self, group: str) -> None:
        """Deletes a group with its dead letters."""
        await self._ask("DELETE", path_of("v1", "groups", group), safe=False)

    async def pause_group(self, group: str) -> Group:
        return await self._group("POST", [group, "pause"])

    async def resume_group(self, group: str) -> Group:
        """Lets it go on, after a pause or over a gap."""
        return await self._group("POST", [group, "resume"])

    async def reset_group(self, group: str, to: str, *, force: bool = False) -> Group:
        """Begins elsewhere: `beginning`, `now`, `seq:42`, `time:…`, `position:7` or a cursor."""
        return await self._group("POST", [group, "reset"], [("to", to), ("force", force or None)])

    async def groups(self) -> AsyncIterator[Group]:
        """All groups, by name."""
        after: str | None = None
        while True:
            query: Query = [("after", after), ("limit", 1000)]
            members = (await self._ask("GET", "/v1/groups", query=query)).json()
            for each in members["groups"]:
                yield each
            after = members["next"]
            if after is None:
                return

    def member(self, group: str, name: str) -> "Member":
        """A member that fetches and acks by hand; `consumer` does it for you."""
        return Member(self, group, name)

    async def dead_letters(
        self, group: str, which: Letters = Letters()
    ) -> AsyncIterator[DeadLetter]:
        """All dead letters that `which` names."""
        path, after = path_of("v1", "groups", group, "dead-letters"), which.from_
        while True:
            query: Query = [("from", after), *which.query()[1:], ("limit", 100)]
            members = (await self._ask("GET", path, query=query)).json()
            for each in members["letters"]:
                yield _letter_of(each)
            after = members["next"]
            if after is None:
                return

    async def dead_letter(self, group: str, seq: int) -> DeadLetter:
        path = path_of("v1", "groups", group, "dead-letters", str(seq))
        return _letter_of((await self._ask("GET", path)).json())

    async def redrive(
        self, group: str, which: Letters = Letters(), *, rate: int | None = None
    ) -> Redriven:
        """Publishes dead letters again to their topics; with `rate` so many per second, in the
        background. A letter is moved once, so this can be sent again."""
        path = path_of("v1", "groups", group, "dead-letters", "redrive")
        members = (await self._ask("POST", path, query=[*which.query(), ("rate", rate)])).json()
        return Redriven(members["moved"], members["goes_on"])

    async def delete_dead_letter(self, group: str, seq: int) -> None:
        path = path_of("v1", "groups", group, "dead-letters", str(seq))
        await self._ask("DELETE", path, safe=False)

    async def delete_dead_letters(self, group: str, which: Letters = Letters()) -> int:
        """Removes dead letters for ever; returns how many."""
        query = which.query()
        if which == Letters():
            query.append(("all", True))
        path = path_of("v1", "groups", group, "dead-letters")
        return int((await self._ask("DELETE", path, query=query)).json()["removed"])

    async def _group(
        self, method: str, tokens: list[str], query: Query = (), body: GroupSettings | None = None
    ) -> Group:
        path = path_of("v1", "groups", *tokens)
        members: Group = (await self._ask(method, path, query=query, body=body)).json()
        return members


class Member:
    """A member of a group, by name. It needs no connection of its own."""

    def __init__(self, client: GroupsMixin, group: str, name: str) -> None:
        self._client = client
        self.group = group
        self.name = name

    async def fetch(self, max: int = 100, *, wait_ms: int = FETCH_WAIT_MS) -> Fetched:
        """Takes up to `max` messages; waits for the first.

        If an answer is lost, what was leased comes again when its lease has run out.
        """
        query: Query = [("member", self.name), ("max", max), ("wait_ms", wait_ms)]
        path = path_of("v1", "groups", self.group, "fetch")
        answer = await self._client._ask("POST", path, query=query, waits=wait_ms / 1000)
        members = answer.json()
        return Fetched(
            messages=[leased_of(each) for each in members["messages"]],
            gaps=[gap_of(each) for each in members["gaps"]],
            leases=members["leases"],
            more=members["more"],
            active=members["active"],
        )

    async def ack(self, leases: Sequence[str]) -> Settled:
        """These are done. What an earlier attempt of this call took counts as refused."""
        return await self._settle("ack", {"leases": list(leases)})

    async def nack(
        self, leases: Sequence[str], *, delay_ms: int | None = None, reason: str | None = None
    ) -> Settled:
        """These come again, after the delay or by the group's schedule."""
        body: dict[str, Any] = {"leases": list(leases)}
        if delay_ms is not None:
            body["delay_ms"] = delay_ms
        if reason is not None:
            body["reason"] = reason
        return await self._settle("nack", body)

    async def terminate(self, leases: Sequence[str], *, reason: str | None = None) -> Settled:
        """These can never be done: they are dead letters now."""
        body: dict[str, Any] = {"leases": list(leases)}
        if reason is not None:
            body["reason"] = reason
        return await self._settle("terminate", body)

    async def extend(self, leases: Sequence[str]) -> Settled:
        """These need more time: the group's lease from now."""
        return await self._settle("extend", {"leases": list(leases)})

    async def leave(self, *, timeout: float | None = None) -> None:
        """Ends the membership; what it holds goes to others, uncounted."""
        path = path_of("v1", "groups", self.group, "members", self.name)
        await self._client._ask("DELETE", path, safe=False, timeout=timeout)

    async def _settle(self, verb: str, body: dict[str, Any]) -> Settled:
        path = path_of("v1", "groups", self.group, verb)
        members = (await self._client._ask("POST", path, body=body)).json()
        return Settled(members["taken"], members["refused"])


def _letter_of(members: Mapping[str, Any]) -> DeadLetter:
    kind, value = body_of(members)
    return DeadLetter(
        seq=members["seq"],
        topic=members["topic"],
        origin_seq=members["origin_seq"],
        attempts=members["attempts"],
        error=members["error"],
        first_failed_ms=members["first_failed_ms"],
        died_ms=members["died_ms"],
        kind=kind,
        value=value,
        key=text_or_bytes(members, "key"),
        id=text_or_bytes(members, "id"),
        headers=headers_of(members),
    )
