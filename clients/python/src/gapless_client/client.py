"""The client: publishing, reading, topics. Groups are in `groups.py`.

The rule it keeps: a request is sent again only if that is safe. Publishes are, because every message
has an id; so are reads and changes that can be made twice. Everything else is sent again only when
the first attempt did not happen.
"""

from __future__ import annotations

import asyncio
import json
import ssl as tls
import uuid
from types import TracebackType
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Literal,
    Sequence,
    TypeVar,
    overload,
)

from .backoff import Backoff
from .consumer import Consumer, ConsumerOptions, Handler
from .errors import (
    UNKNOWN,
    BatchError,
    Fate,
    GaplessError,
    Problem,
    ProtocolError,
    RefusedError,
    TransportError,
)
from .follow import KEEP_ALIVE_SECS, SILENCE_SECS_MAX, Event, Follower, may_try_again
from .groups import GroupsMixin
from .http import Answer, Query, QueryValue, Transport, path_of
from .messages import (
    Ack,
    Durability,
    Gap,
    Message,
    NewMessage,
    Range,
    Scheduled,
    ack_of,
    gap_of,
    message_of,
)
from .settings import Topic, TopicSettings

#: Messages in one request of a batch, at most.
BATCH_MESSAGES_MAX = 500
#: Bytes of lines in one request of a batch, about.
BATCH_BYTES_MAX = 4 * 1024 * 1024
#: Seconds until one attempt is given up, besides what the server was asked to wait.
ATTEMPT_SECS_MAX = 10.0
#: Seconds until a request is given up, with all its attempts. The server remembers message ids for
#: longer than that (two minutes unless the topic says otherwise), so no attempt is stored twice.
TIMEOUT_SECS = 30.0
#: Requests at the same time, at most; others wait.
REQUESTS_MAX = 64

AnswerT = TypeVar("AnswerT")


class Client(GroupsMixin):
    """A client of one server. Use it in one event loop, and close it, or use `async with`."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:4280",
        *,
        token: str | None = None,
        timeout: float = TIMEOUT_SECS,
        silence_secs_max: float = SILENCE_SECS_MAX,
        requests_max: int = REQUESTS_MAX,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        """`token` is sent as a bearer token. `timeout` is for a request with all its attempts;
        a follower gives up a connection on which nothing comes for `silence_secs_max`."""
        if timeout <= 0 or requests_max <= 0 or silence_secs_max <= 0:
            raise ValueError("timeout, silence_secs_max and requests_max are above zero")
        self._transport = Transport(url, token=token, requests_max=requests_max, ssl=ssl)
        self._timeout = timeout
        self._silence_secs_max = silence_secs_max

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes idle connections and followers; requests from now on fail."""
        await self._transport.close()

    # Publishing

    async def publish(
        self,
        topic: str,
        message: NewMessage | bytes | str,
        *,
        durability: Durability | None = None,
        require_subscribers: bool | None = None,
        create: bool = False,
        timeout: float | None = None,
    ) -> Ack:
        """Publishes a message; when this returns, it is as safe as the ack says.

        It is sent again under the same id until there is an answer or the time is up. An
        error with fate `unknown` then means that it may or may not be stored.
        """
        new = _new(message)
        query = [
            *new.query(new.id or _new_id()),
            ("durability", durability),
            ("require_subscribers", require_subscribers),
            ("create", create or None),
        ]
        answer = await self._send_message(topic, new, query, timeout)
        return ack_of(answer.json())

    async def publish_later(
        self,
        topic: str,
        message: NewMessage | bytes | str,
        *,
        delay_ms: int | None = None,
        at_ms: int | None = None,
        create: bool = False,
        timeout: float | None = None,
    ) -> Scheduled:
        """Publishes a message that appears after `delay_ms`, or at `at_ms` (since 1970)."""
        if (delay_ms is None) == (at_ms is None):
            raise ValueError("either delay_ms or at_ms")
        new = _new(message)
        query = [
            *new.query(new.id or _new_id()),
            ("delay_ms", delay_ms),
            ("at_ms", at_ms),
            ("create", create or None),
        ]
        members = (await self._send_message(topic, new, query, timeout)).json()
        return Scheduled(members["topic"], members["delayed"], members["due_ms"])

    async def cancel_delayed(self, delayed: int) -> None:
        """Takes back a message that waits for its time."""
        await self._ask("DELETE", path_of("v1", "delayed", str(delayed)), safe=False)

    async def publish_batch(
        self,
        topic: str,
        messages: Iterable[NewMessage | bytes | str],
        *,
        durability: Durability | None = None,
        create: bool = False,
        timeout: float | None = None,
    ) -> list[Ack]:
        """Publishes many messages in order, a few hundred in each request.

        Messages without an answer are sent again under their ids. If some are refused, the
        others are published all the same, and `BatchError` has the outcome of each. `timeout`
        is for each request.
        """
        query: list[tuple[str, QueryValue | None]] = [
            ("durability", durability),
            ("create", create or None),
            ("answer_each", True),
        ]
        outcomes: list[Ack | GaplessError] = []
        lines: list[bytes] = []
        size = 0
        for each in messages:
            new = _new(each)
            line = new.line(new.id or _new_id())
            if lines and (len(lines) == BATCH_MESSAGES_MAX or size + len(line) > BATCH_BYTES_MAX):
                outcomes += await self._publish_lines(topic, lines, query, timeout)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            outcomes += await self._publish_lines(topic, lines, query, timeout)
        acks = [each for each in outcomes if isinstance(each, Ack)]
        if len(acks) < len(outcomes):
            raise BatchError(outcomes)
        return acks

    async def publish_together(
        self,
        parts: Sequence[tuple[str, Sequence[NewMessage | bytes | str]]],
        *,
        acks: Sequence[str] = (),
        durability: Durability | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publishes to several topics, and acks leases of a group, in one step or not at all."""
        body: dict[str, Any] = {
            "parts": [
                {"topic": topic, "messages": [_line_members(each) for each in messages]}
                for topic, messages in parts
            ]
        }
        if acks:
            body["acks"] = list(acks)
        if durability is not None:
            body["durability"] = durability
        await self._ask("POST", "/v1/atomic", body=body, safe=False, timeout=timeout)

    # Reading

    async def message(self, topic: str, seq: int) -> Message:
        """The message with this seq."""
        path = path_of("v1", "topics", topic, "messages", str(seq))
        return message_of((await self._ask("GET", path)).json())

    async def latest(self, topic: str, key: str | bytes) -> Message:
        """The latest message of a key."""
        path = path_of("v1", "topics", topic, "latest")
        return message_of((await self._ask("GET", path, query=[("key", key)])).json())

    async def body(self, topic: str, seq: int) -> bytes:
        """The body of a message, byte by byte as it was sent."""
        path = path_of("v1", "topics", topic, "messages", str(seq), "body")
        return (await self._ask("GET", path, accept="*/*")).body

    async def read(
        self,
        topic: str,
        from_: str | int = "beginning",
        *,
        to: int | None = None,
        limit: int = 100,
        wait_ms: int = 0,
    ) -> Range:
        """A part of a topic, with what is gone of it. `from_` is as in `follow`."""
        query: list[tuple[str, QueryValue | None]] = [
            ("from", _from(from_)),
            ("to", to),
            ("limit", limit),
            ("wait_ms", wait_ms or None),
        ]
        path = path_of("v1", "topics", topic, "messages")
        members = (await self._ask("GET", path, query=query, waits=wait_ms / 1000)).json()
        return Range(
            messages=[message_of(each) for each in members["messages"]],
            gaps=[gap_of(each, topic) for each in members["gaps"]],
            cursor=members["cursor"],
            more=members["more"],
        )

    @overload
    def follow(
        self,
        topic: str,
        from_: str | int = ...,
        *,
        notices: Literal[False] = ...,
        anyway: bool = ...,
        offline_secs_max: float | None = ...,
    ) -> Follower[Message | Gap]: ...

    @overload
    def follow(
        self,
        topic: str,
        from_: str | int = ...,
        *,
        notices: Literal[True],
        anyway: bool = ...,
        offline_secs_max: float | None = ...,
    ) -> Follower[Event]: ...

    def follow(
        self,
        topic: str,
        from_: str | int = "beginning",
        *,
        notices: bool = False,
        anyway: bool = False,
        offline_secs_max: float | None = None,
    ) -> Follower[Any]:
        """Everything that is kept of a topic, then what is published, without end.

        `from_` is `beginning`, `now`, `last-per-key`, a seq, `time:…`, or a cursor. The
        follower reconnects and goes on by itself; `offline_secs_max` is how long it tries
        before it raises (None: for ever). With `notices` it returns `Skipped`, `Recovering` and
        `Live` too. `anyway` creates the topic.
        """
        query: list[tuple[str, QueryValue | None]] = [("anyway", anyway or None)]
        path = path_of("v1", "topics", topic, "follow")
        return self._follow(path, query, from_, notices, offline_secs_max)

    @overload
    def follow_pattern(
        self,
        pattern: str,
        from_: str = ...,
        *,
        notices: Literal[False] = ...,
        offline_secs_max: float | None = ...,
    ) -> Follower[Message | Gap]: ...

    @overload
    def follow_pattern(
        self,
        pattern: str,
        from_: str = ...,
        *,
        notices: Literal[True],
        offline_secs_max: float | None = ...,
    ) -> Follower[Event]: ...

    def follow_pattern(
        self,
        pattern: str,
        from_: str = "beginning",
        *,
        notices: bool = False,
        offline_secs_max: float | None = None,
    ) -> Follower[Any]:
        """The same for all topics that match: `*` is one token, `>` the rest."""
        return self._follow(
            "/v1/follow", [("pattern", pattern)], from_, notices, offline_secs_max
        )

    # Topics

    async def create_topic(self, topic: str, settings: TopicSettings | None = None) -> Topic:
        """Creates a topic; one that exists with equal settings is fine."""
        return await self._topic("PUT", topic, settings or {})

    async def change_topic(self, topic: str, changes: TopicSettings) -> Topic:
        """Changes what `changes` names; None sets the default."""
        return await self._topic("PATCH", topic, changes)

    async def topic(self, topic: str) -> Topic:
        return await self._topic("GET", topic, None)

    async def delete_topic(self, topic: str) -> None:
        """Deletes a topic with all its messages."""
        await self._ask("DELETE", path_of("v1", "topics", topic), safe=False)

    async def purge_topic(self, topic: str, below: int | None = None) -> int:
        """Removes the messages below a seq, or all; returns how many are gone."""
        which: tuple[str, QueryValue] = ("all", True) if below is None else ("below", below)
        path = path_of("v1", "topics", topic, "purge")
        return int((await self._ask("POST", path, query=[which])).json()["purged"])

    async def topics(self, pattern: str | None = None) -> AsyncIterator[Topic]:
        """All topics that match, by name."""
        after: str | None = None
        while True:
            query: Query = [("pattern", pattern), ("after", after), ("limit", 1000)]
            members = (await self._ask("GET", "/v1/topics", query=query)).json()
            for each in members["topics"]:
                yield each
            after = members["next"]
            if after is None:
                return

    async def server(self) -> dict[str, Any]:
        """Version, state and numbers of the server."""
        members: dict[str, Any] = (await self._ask("GET", "/v1/server")).json()
        return members

    # Groups with a handler

    def consumer(
        self, group: str, handler: Handler, options: ConsumerOptions | None = None
    ) -> Consumer:
        """Gives messages of a group to a handler; see `Consumer`."""
        return Consumer(self, group, handler, options or ConsumerOptions())

    # How requests are sent

    async def _topic(self, method: str, topic: str, body: TopicSettings | None) -> Topic:
        members: Topic = (await self._ask(method, path_of("v1", "topics", topic), body=body)).json()
        return members

    def _follow(
        self,
        path: str,
        query: list[tuple[str, QueryValue | None]],
        from_: str | int,
        notices: bool,
        offline_secs_max: float | None,
    ) -> Follower[Any]:
        return Follower(
            self._transport,
            path,
            [*query, ("keep_alive_secs", KEEP_ALIVE_SECS)],
            _from(from_),
            notices=notices,
            connect_timeout=min(ATTEMPT_SECS_MAX, self._silence_secs_max),
            silence_secs_max=self._silence_secs_max,
            offline_secs_max=offline_secs_max,
        )

    async def _send_message(
        self, topic: str, new: NewMessage, query: Query, timeout: float | None
    ) -> Answer:
        path, body = path_of("v1", "topics", topic, "messages"), new.body_bytes()
        query = list(query)

        async def attempt(secs: float) -> Answer:
            return await self._transport.request(
                "POST", path, query=query, body=body, content_type=new.content_type, timeout=secs
            )

        return await self._attempts(attempt, safe=True, timeout=timeout)

    async def _publish_lines(
        self, topic: str, lines: list[bytes], query: Query, timeout: float | None
    ) -> list[Ack | GaplessError]:
        """One request of a batch, and again for what has no answer; an outcome for each line."""
        path = path_of("v1", "topics", topic, "messages")
        outcomes: dict[int, Ack | GaplessError] = {}

        async def attempt(secs: float) -> None:
            open_lines = [index for index in range(len(lines)) if index not in outcomes]
            answer = await self._transport.request(
                "POST",
                path,
                query=query,
                body=b"".join(lines[index] for index in open_lines),
                content_type="application/x-ndjson",
                accept="application/x-ndjson",
                timeout=secs,
            )
            again: RefusedError | None = None
            for text in answer.body.splitlines():
                members = json.loads(text)
                if members.get("end"):
                    continue
                if members.get("stopped"):
                    again = RefusedError(Problem.parse(200, members))
                    continue
                index = open_lines[members["line"] - 1]
                if "code" not in members:
                    outcomes[index] = _line_ack(topic, members)
                    continue
                refused = RefusedError(Problem.parse(200, members))
                if may_try_again(refused):
                    again = refused
                else:
                    outcomes[index] = refused
            if len(outcomes) < len(lines):
                raise again or TransportError("not every line was answered", UNKNOWN)

        try:
            await self._attempts(attempt, safe=True, timeout=timeout)
        except GaplessError as error:
            return [outcomes.get(index, error) for index in range(len(lines))]
        return [outcomes[index] for index in range(len(lines))]

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
    ) -> Answer:
        """A request with a JSON body, sent again where that is safe."""
        raw = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        query = list(query)

        async def attempt(secs: float) -> Answer:
            return await self._transport.request(
                method,
                path,
                query=query,
                body=raw,
                content_type=None if raw is None else "application/json",
                accept=accept,
                timeout=secs,
            )

        return await self._attempts(attempt, safe=safe, waits=waits, timeout=timeout)

    async def _attempts(
        self,
        attempt: Callable[[float], Awaitable[AnswerT]],
        *,
        safe: bool,
        waits: float = 0.0,
        timeout: float | None = None,
    ) -> AnswerT:
        """Attempts until one succeeds, fails for good, or the time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._timeout if timeout is None else timeout) + waits
        backoff = Backoff()
        fate: Fate | None = None
        while True:
            try:
                secs = min(ATTEMPT_SECS_MAX + waits, deadline - loop.time())
                return await attempt(max(secs, 0.001))
            except (TransportError, RefusedError, ProtocolError) as error:
                # What one attempt left unknown stays so, whatever the next ones say.
                if error.fate == UNKNOWN:
                    fate = UNKNOWN
                error.fate = fate or error.fate
                final = isinstance(error, ProtocolError) or (
                    isinstance(error, RefusedError) and not may_try_again(error)
                )
                if final or (not safe and error.fate == UNKNOWN):
                    raise
                after = error.retry_after if isinstance(error, RefusedError) else None
                wait = backoff.secs(after)
                if loop.time() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)


def _new(message: NewMessage | bytes | str) -> NewMessage:
    return message if isinstance(message, NewMessage) else NewMessage(message)


def _new_id() -> str:
    return uuid.uuid4().hex


def _line_members(message: NewMessage | bytes | str) -> Any:
    new = _new(message)
    return json.loads(new.line(new.id or _new_id()))


def _line_ack(topic: str, members: dict[str, Any]) -> Ack:
    return Ack(
        topic=topic,
        seq=members["first"],
        position=members["position"],
        durability=members["durability"],
        duplicate=members["duplicate"],
    )


def _from(from_: str | int) -> str:
    return f"seq:{from_}" if isinstance(from_, int) else from_
