"""A handler for the messages of a group.

A message goes through: fetched (leased), handled, settled (acked, given back or given up), free.
Invariants: no more than `concurrency` messages are in hand; the lease of each is extended until it
is settled; its slot is free only when the server has answered. What crashes when:

- the handler raises: the message is given back, and comes again by the group's schedule;
- this process dies: its leases run out, and the messages go to others;
- the server restarts: fetch and ack are repeated. Leases of before are void, so an ack may be
  refused (`refused` in the report), and the message is handled again.

So a message is handled at least once; once its ack is counted, never again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Coroutine

from .backoff import Backoff
from .errors import GaplessError, RefusedError, TransportError
from .follow import may_try_again
from .groups import FETCH_WAIT_MS, Member, Settled
from .messages import Gap, LeasedMessage

if TYPE_CHECKING:
    from .client import Client

#: Seconds given to a leaving member to say so.
LEAVE_SECS_MAX = 2.0
#: Seconds between extensions, at least.
EXTEND_SECS_MIN = 0.05
#: Characters of a reason that are sent, at most.
REASON_CHARS_MAX = 1000

Handler = Callable[[LeasedMessage], Awaitable[None]]


class RetryLater(Exception):
    """Raised by a handler: again after `delay_ms`, or by the group's schedule."""

    def __init__(self, reason: str = "", *, delay_ms: int | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = delay_ms


class GiveUp(Exception):
    """Raised by a handler: hopeless, a dead letter now."""


@dataclass(frozen=True)
class ConsumerOptions:
    #: Messages that are handled at the same time, at most.
    concurrency: int = 8
    #: The member's name; one of its own if it is None.
    member: str | None = None
    #: Called with messages of the source that are gone. The group itself decides whether it goes on.
    on_gap: Callable[[Gap], None] | None = None
    #: Seconds that `stop` gives to handlers that run.
    drain_secs_max: float = 10.0


@dataclass
class Report:
    """What a consumer has done so far, in messages."""

    acked: int = 0
    retried: int = 0
    given_up: int = 0
    #: Settled too late: the lease was void, and the message comes again.
    refused: int = 0
    gaps: int = 0


class Consumer:
    """Runs a handler on the messages of a group: `await consumer.run()`, and `consumer.stop()`."""

    def __init__(
        self, client: "Client", group: str, handler: Handler, options: ConsumerOptions
    ) -> None:
        if options.concurrency <= 0:
            raise ValueError("concurrency is above zero")
        self._client = client
        self._handler = handler
        self._options = options
        name = options.member or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._member = Member(client, group, name)
        self._stopping = asyncio.Event()
        self._in_hand: dict[str, asyncio.Task[None]] = {}
        self._settled = asyncio.Event()
        self._acks: dict[str, asyncio.Future[None]] = {}
        self._has_acks = asyncio.Event()
        self.report = Report()

    @property
    def member(self) -> str:
        return self._member.name

    def stop(self) -> None:
        """Ends `run`: nothing more is fetched, and what runs may finish."""
        self._stopping.set()

    async def run(self) -> Report:
        """Handles messages until `stop`, or until the server refuses for good (then raises)."""
        background = [
            asyncio.create_task(self._extend_leases()),
            asyncio.create_task(self._send_acks()),
        ]
        try:
            await self._fetch_until_stopped()
            await self._drain()
        finally:
            tasks = [*background, *self._in_hand.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave()
        return self.report

    async def _fetch_until_stopped(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            free = self._options.concurrency - len(self._in_hand)
            if free <= 0:
                self._settled.clear()
                await self._unless_stopping(self._settled.wait())
                continue
            try:
                fetched = await self._unless_stopping(
                    self._member.fetch(free, wait_ms=FETCH_WAIT_MS)
                )
            except (TransportError, RefusedError) as error:
                if not _is_passing(error):
                    await self._drain()
                    raise
                after = error.retry_after if isinstance(error, RefusedError) else None
                await self._unless_stopping(asyncio.sleep(backoff.secs(after)))
                continue
            if fetched is None:
                return
            backoff.reset()
            for gap in fetched.gaps:
                self.report.gaps += 1
                if self._options.on_gap is not None:
                    self._options.on_gap(gap)
            for message in fetched.messages:
                task = asyncio.create_task(self._work(message))
                self._in_hand[message.lease] = task

    async def _work(self, message: LeasedMessage) -> None:
        try:
            await self._settle_with(message)
        finally:
            del self._in_hand[message.lease]
            self._settled.set()

    async def _settle_with(self, message: LeasedMessage) -> None:
        leases = [message.lease]
        try:
            await self._handler(message)
        except GiveUp as error:
            reason = _reason(error)
            settled = await self._surely(lambda: self._member.terminate(leases, reason=reason))
            self.report.given_up += settled.taken
        except Exception as error:
            reason = _reason(error)
            delay_ms = error.delay_ms if isinstance(error, RetryLater) else None
            settled = await self._surely(
                lambda: self._member.nack(leases, delay_ms=delay_ms, reason=reason)
            )
            self.report.retried += settled.taken
        else:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._acks[message.lease] = done
            self._has_acks.set()
            await done
            return
        self.report.refused += settled.refused

    async def _send_acks(self) -> None:
        """Acks in batches: while one request is on its way, others gather."""
        while True:
            await self._has_acks.wait()
            self._has_acks.clear()
            acks, self._acks = self._acks, {}
            try:
                settled = await self._surely(lambda: self._member.ack(list(acks)))
            finally:
                for done in acks.values():
                    if not done.done():
                        done.set_result(None)
            self.report.acked += settled.taken
            self.report.refused += settled.refused

    async def _extend_leases(self) -> None:
        """Extends what is in hand, three times in each lease.

        By lease and not by member: what a lost answer leased to this member must run out.
        """
        while True:
            try:
                group = await self._client.group(self._member.group)
                lease_secs = (group["settings"]["lease_ms"] or 0) / 1000
                await asyncio.sleep(max(lease_secs / 3, EXTEND_SECS_MIN))
                if self._in_hand:
                    await self._member.extend(list(self._in_hand))
            except (TransportError, RefusedError):
                # Fetching meets the same error, and decides what it means.
                await asyncio.sleep(Backoff().secs())

    async def _surely(self, ask: Callable[[], Coroutine[Any, Any, Settled]]) -> Settled:
        """Repeats a request while the server is away; what it refuses for good counts as refused."""
        backoff = Backoff()
        while True:
            try:
                return await ask()
            except (TransportError, RefusedError) as error:
                if not _is_passing(error):
                    return Settled(0, 1)
                after = error.retry_after if isinstance(error, RefusedError) else None
            await asyncio.sleep(backoff.secs(after))

    async def _unless_stopping(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Awaits `work`, or cancels it when the consumer is stopped; then None."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _drain(self) -> None:
        if self._in_hand:
            await asyncio.wait(self._in_hand.values(), timeout=self._options.drain_secs_max)

    async def _leave(self) -> None:
        try:
            await self._member.leave(timeout=LEAVE_SECS_MAX)
        except GaplessError:
            pass  # then its leases run out


def _is_passing(error: GaplessError) -> bool:
    """Whether it may work later: the server is away, or the member was ended and can join again."""
    if isinstance(error, RefusedError):
        return may_try_again(error) or error.problem.name == "UnknownMember"
    return True


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:REASON_CHARS_MAX]
