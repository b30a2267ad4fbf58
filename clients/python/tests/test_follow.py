"""Following: nothing lost, nothing twice, through whatever happens in between."""

from __future__ import annotations

import asyncio

from gapless_client import (
    FollowEndedError,
    Follower,
    Gap,
    GaplessError,
    Live,
    Message,
    ProtocolError,
    RefusedError,
)
from gapless_client import follow as follow_module
from gapless_client.follow import EventParser
from gapless_client.http import _Chunks

from .harness import DEADLINE_SECS, Case, Server


async def take(
    follower: Follower[Message | Gap], count: int, messages: list[Message] | None = None
) -> list[Message]:
    messages = [] if messages is None else messages
    while len(messages) < count:
        event = await asyncio.wait_for(follower.__anext__(), DEADLINE_SECS)
        assert isinstance(event, Message), event
        messages.append(event)
    return messages


class Follow(Case):
    async def test_history_comes_first_and_then_what_is_published(self) -> None:
        await self.client.publish("orders", "first", create=True)
        async with self.client.follow("orders", notices=True) as events:
            first, live = await events.__anext__(), await events.__anext__()
            assert isinstance(first, Message)
            self.assertEqual((first.text, live), ("first", Live(first.cursor)))
            await self.client.publish("orders", "second")
            second = await events.__anext__()
            assert isinstance(second, Message)
            self.assertEqual((second.text, second.seq), ("second", 2))
            self.assertEqual(events.cursor, second.cursor)

    async def test_each_message_comes_once_and_in_order_through_kills_of_the_server(self) -> None:
        """No acknowledged message is lost, and none comes twice, while the server is killed."""
        count, kills = 300, 4
        await self.client.create_topic("orders")

        async def publish() -> list[int]:
            return [(await self.client.publish("orders", str(n))).seq for n in range(count)]

        async with self.client.follow("orders") as follower:
            messages: list[Message] = []
            publishing = asyncio.create_task(publish())
            taking = asyncio.create_task(take(follower, count, messages))
            for kill in range(1, kills + 1):

                async def moved() -> bool:
                    return len(messages) >= kill * count // (kills + 1)

                await self.until("messages arrive", moved)
                await self.server.restart()
            await taking
            self.assertEqual([each.seq for each in messages], await publishing)
            self.assertEqual([each.text for each in messages], [str(n) for n in range(count)])
            self.assertGreater(follower.connections, 1)
        self.assertEqual((await self.client.topic("orders"))["next"], count + 1)

    async def test_each_message_comes_once_over_connections_that_are_cut_anywhere(self) -> None:
        texts = [f"message {n} {'ü' * (n % 50)}" for n in range(400)]
        await self.client.create_topic("orders")
        await self.client.publish_batch("orders", texts)
        network = await self.new_network()
        network.cut_after = 9_973
        async with self.new_client(network.url).follow("orders") as follower:
            messages = await take(follower, len(texts))
            self.assertEqual([each.text for each in messages], texts)
            self.assertGreater(follower.connections, 5)

    async def test_a_connection_that_is_silent_is_replaced(self) -> None:
        await self.client.publish("orders", "first", create=True)
        network = await self.new_network()
        network.silent = True
        client = self.new_client(network.url, silence_secs_max=0.5)
        async with client.follow("orders") as follower:
            taking = asyncio.create_task(take(follower, 1))

            async def connected() -> bool:
                return network.connections > 0

            await self.until("the follower has a silent connection", connected)
            network.silent = False
            self.assertEqual((await taking)[0].text, "first")

    async def test_a_cursor_resumes_a_pattern_in_another_follower(self) -> None:
        for name in ("orders.eu", "orders.us"):
            await self.client.create_topic(name)
        for n in range(10):
            await self.client.publish("orders.eu" if n % 2 else "orders.us", str(n))
        async with self.client.follow_pattern("orders.>") as follower:
            first = await take(follower, 4)
            cursor = follower.cursor
        assert cursor is not None
        await self.server.restart()
        async with self.client.follow_pattern("orders.>", cursor) as follower:
            rest = await take(follower, 6)
        self.assertEqual([each.text for each in first + rest], [str(n) for n in range(10)])

    async def test_a_follower_from_now_misses_nothing_after_its_place_is_known(self) -> None:
        await self.client.publish("orders", "before", create=True)
        async with self.client.follow("orders", "now", notices=True) as events:
            self.assertIsInstance(await events.__anext__(), Live)
            await self.server.restart()
            await self.client.publish("orders", "while it was away, or later")
            event = await events.__anext__()
            while not isinstance(event, Message):
                event = await events.__anext__()
            self.assertEqual(event.text, "while it was away, or later")

    async def test_messages_that_are_gone_are_a_gap_with_its_reason(self) -> None:
        await self.client.create_topic("orders")
        await self.client.publish_batch("orders", [str(n) for n in range(1, 11)])
        async with self.client.follow("orders") as follower:
            await take(follower, 2)
            cursor = follower.cursor
        assert cursor is not None
        await self.client.purge_topic("orders", below=6)
        async with self.client.follow("orders", cursor) as follower:
            # A cursor is a position, so the first seq that is gone is not known.
            self.assertEqual(await follower.__anext__(), Gap("purge", "orders", None, 5))
            self.assertEqual((await take(follower, 1))[0].seq, 6)
        async with self.client.follow("orders", 3) as follower:
            self.assertEqual(await follower.__anext__(), Gap("purge", "orders", 3, 5))
            self.assertEqual((await take(follower, 1))[0].seq, 6)
        self.assertEqual((await self.client.read("orders", 3)).gaps, [Gap("purge", "orders", 3, 5)])

    async def test_a_cursor_of_another_store_is_a_gap(self) -> None:
        other = Server()
        await other.start()
        self.addAsyncCleanup(other.close)
        elsewhere = self.new_client(other.url)
        await elsewhere.publish("orders", "elsewhere", create=True)
        cursor = (await elsewhere.message("orders", 1)).cursor
        await self.client.publish("orders", "here", create=True)
        async with self.client.follow("orders", cursor) as follower:
            gap = await follower.__anext__()
            assert isinstance(gap, Gap)
            self.assertEqual(gap.reason, "epoch")
            self.assertEqual((await take(follower, 1))[0].text, "here")

    async def test_a_deleted_topic_ends_its_followers(self) -> None:
        await self.client.publish("orders", "first", create=True)
        async with self.client.follow("orders") as follower:
            await take(follower, 1)
            await self.client.delete_topic("orders")
            with self.assertRaises(FollowEndedError) as raised:
                await follower.__anext__()
            self.assertEqual(raised.exception.code, 222)
            with self.assertRaises(StopAsyncIteration):
                await follower.__anext__()

    async def test_a_topic_that_does_not_exist_is_an_error_at_once(self) -> None:
        async with self.client.follow("nowhere") as follower:
            with self.assertRaises(RefusedError) as raised:
                await follower.__anext__()
        self.assertEqual(raised.exception.problem.name, "UnknownTopic")

    async def test_a_follower_gives_up_after_the_time_it_was_given(self) -> None:
        await self.server.kill()
        async with self.client.follow("orders", offline_secs_max=0.2) as follower:
            with self.assertRaises(GaplessError):
                await follower.__anext__()

    async def test_a_wait_that_is_cancelled_loses_nothing(self) -> None:
        await self.client.create_topic("orders")
        async with self.client.follow("orders") as follower:
            for n in range(20):
                waiting = asyncio.ensure_future(follower.__anext__())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await self.client.publish("orders", str(n))
            messages = await take(follower, 20)
        self.assertEqual([each.seq for each in messages], list(range(1, 21)))


class Parsers(Case):
    async def asyncSetUp(self) -> None:
        pass

    def test_events_are_the_same_in_whatever_pieces_they_arrive(self) -> None:
        raw = "retry: 1\n\nid: a:1\ndata: {\ndata: }\n\n: alive\n\nevent: gap\r\ndata:ü\r\n\r\n".encode()
        whole = EventParser().feed(raw)
        self.assertEqual([(each.name, each.id, each.data) for each in whole],
                         [("", "a:1", "{\n}"), ("gap", None, "ü")])
        for size in range(1, len(raw)):
            parser, pieces = EventParser(), []
            for at in range(0, len(raw), size):
                pieces += parser.feed(raw[at : at + size])
            self.assertEqual(pieces, whole)

    def test_chunks_are_the_same_in_whatever_pieces_they_arrive(self) -> None:
        raw = b"5;x=y\r\nhello\r\n1\r\n \r\n6\r\nworld!\r\n0\r\nTrailer: 1\r\n\r\n"
        for size in range(1, len(raw) + 1):
            chunks, out = _Chunks(), b""
            for at in range(0, len(raw), size):
                out += chunks.feed(raw[at : at + size])
            self.assertEqual((out, chunks.done), (b"hello world!", True))

    def test_an_event_without_end_is_refused_before_it_fills_the_memory(self) -> None:
        limit, follow_module.EVENT_BYTES_MAX = follow_module.EVENT_BYTES_MAX, 1000
        try:
            parser = EventParser()
            with self.assertRaises(ProtocolError):
                for _ in range(20):
                    parser.feed(b"data: " + b"x" * 94)
        finally:
            follow_module.EVENT_BYTES_MAX = limit
