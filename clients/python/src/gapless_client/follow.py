"""Following a topic or a pattern: Server-Sent Events that resume by themselves.

States: closed (no connection), open, ended. The invariant: `cursor` is the place behind the last
event that `__anext__` returned or passed over, and every connection begins there. So a lost
connection, a restart of the server or a silent network costs time and nothing else: no event is
lost, none comes twice. An event counts when it has arrived whole; a torn one is read again.

There is no queue: at most one read of the socket is taken apart ahead of the caller. A slow caller
is slow reading for the server, which then reads history for it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, AsyncIterator, Generic, TypeVar, Union, cast

from .backoff import Backoff
from .errors import (
    UNKNOWN,
    FollowEndedError,
    GaplessError,
    ProtocolError,
    RefusedError,
    TransportError,
)
from .http import QueryValue, Stream, Transport
from .messages import Gap, Live, Message, Recovering, Skipped, gap_of, message_of

#: Bytes of one event, at most: a message of the largest size, as JSON.
EVENT_BYTES_MAX = 64 * 1024 * 1024
#: Seconds between signs of life that are asked of the server.
KEEP_ALIVE_SECS = 5
#: Seconds of silence after which a connection is given up, unless the client says otherwise.
SILENCE_SECS_MAX = 20.0

Event = Union[Message, Gap, Skipped, Recovering, Live]
EventT = TypeVar("EventT", bound=Event, covariant=True)


@dataclass(frozen=True)
class _Raw:
    """A Server-Sent Event as it arrived; `data` is None for one that only moves the place."""

    name: str
    id: str | None
    data: str | None


class EventParser:
    """Takes Server-Sent Events apart, in whatever pieces they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._name = ""
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[_Raw]:
        events: list[_Raw] = []
        self._buffer += piece
        if len(self._buffer) > EVENT_BYTES_MAX:
            raise ProtocolError(f"an event has more than {EVENT_BYTES_MAX} bytes", UNKNOWN)
        begin = 0
        while (end := self._buffer.find(b"\n", max(begin, self._searched))) >= 0:
            line = bytes(self._buffer[begin:end]).rstrip(b"\r").decode("utf-8", "replace")
            begin = end + 1
            self._searched = begin
            raw = self._take_line(line)
            if raw is not None:
                events.append(raw)
        del self._buffer[:begin]
        self._searched = len(self._buffer)
        return events

    def _take_line(self, line: str) -> _Raw | None:
        if line == "":
            raw = _Raw(self._name, self._id, "\n".join(self._data) if self._data else None)
            self._name, self._id, self._data = "", None, []
            return raw if raw.data is not None or raw.id is not None else None
        field, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if field == "data":
            self._data.append(value)
        elif field == "id":
            self._id = value
        elif field == "event":
            self._name = value
        return None


class Follower(Generic[EventT], AsyncIterator[EventT]):
    """An async iterator over the events of a topic or a pattern. Close it, or use `async with`."""

    def __init__(
        self,
        transport: Transport,
        path: str,
        query: list[tuple[str, QueryValue | None]],
        from_: str,
        *,
        notices: bool,
        connect_timeout: float,
        silence_secs_max: float,
        offline_secs_max: float | None,
    ) -> None:
        self._transport = transport
        self._path = path
        self._query = query
        self._from = from_
        self._notices = notices
        self._connect_timeout = connect_timeout
        self._silence_secs_max = silence_secs_max
        self._offline_secs_max = offline_secs_max
        self._stream: Stream | None = None
        self._parser = EventParser()
        self._ready: deque[_Raw] = deque()
        self._backoff = Backoff()
        self._offline_since: float | None = None
        self._cursor: str | None = None
        self._closed = False
        #: How many connections were opened so far.
        self.connections = 0

    @property
    def cursor(self) -> str | None:
        """The place behind the last event: follow from here to go on. None before the first."""
        return self._cursor

    def __aiter__(self) -> "Follower[EventT]":
        return self

    async def __anext__(self) -> EventT:
        while not self._closed:
            while self._ready:
                event = self._take(self._ready.popleft())
                if event is not None:
                    return cast(EventT, event)
            try:
                await self._fill()
            except (TransportError, RefusedError) as error:
                await self._wait_after(error)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the follower; the server forgets it."""
        self._closed = True
        self._disconnect()

    async def __aenter__(self) -> "Follower[EventT]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _fill(self) -> None:
        """Reads until there is an event, on a new connection if there is none."""
        if self._stream is None:
            query = [*self._query, ("from", self._cursor or self._from)]
            self._stream = await self._transport.stream(
                self._path,
                query=query,
                accept="text/event-stream",
                timeout=self._connect_timeout,
            )
            self.connections += 1
        piece = await self._stream.read(self._silence_secs_max)
        if not piece:
            raise TransportError("the stream of events ended", UNKNOWN)
        self._offline_since = None
        self._backoff.reset()
        self._ready.extend(self._parser.feed(piece))

    async def _wait_after(self, error: GaplessError) -> None:
        self._disconnect()
        loop = asyncio.get_running_loop()
        if isinstance(error, RefusedError) and not may_try_again(error):
            self._closed = True
            raise error
        self._offline_since = self._offline_since or loop.time()
        wait = self._backoff.secs(error.retry_after if isinstance(error, RefusedError) else None)
        limit = self._offline_secs_max
        if limit is not None and loop.time() + wait - self._offline_since > limit:
            self._closed = True
            raise error
        await asyncio.sleep(wait)

    def _take(self, raw: _Raw) -> Event | None:
        """What an event means; None if the caller did not ask for it."""
        event = self._parse(raw)
        if raw.id is not None:
            self._cursor = raw.id
        if isinstance(event, (Message, Gap)) or self._notices:
            return event
        return None

    def _parse(self, raw: _Raw) -> Event | None:
        if raw.data is None:
            return None
        try:
            members: dict[str, Any] = json.loads(raw.data)
            if raw.name == "":
                return message_of(members)
            if raw.name == "gap":
                return gap_of(members)
            if raw.name == "skipped":
                return Skipped(members["topic"], members["from"], members["to"])
            if raw.name == "recovering":
                return Recovering(members["from"], members["to"], members["by"])
            if raw.name == "live":
                return Live(members["cursor"])
            if raw.name == "deleted":
                self._closed = True
                self._disconnect()
                raise FollowEndedError(members["code"], members["detail"])
        except (ValueError, KeyError, TypeError) as error:
            self._closed = True
            self._disconnect()
            raise ProtocolError(f"this is not an event: {raw.data[:200]}", UNKNOWN) from error
        # `failed` ends the stream, and the next connection goes on; other names are newer than this.
        return None

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._parser = EventParser()
        self._ready.clear()


def may_try_again(error: RefusedError) -> bool:
    """Whether the same request may be accepted later."""
    return error.problem.status in (408, 429, 502, 503, 504)
