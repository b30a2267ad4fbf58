"""Groups: a handler, leases, second attempts, dead letters, gaps."""

from __future__ import annotations

import asyncio

from gapless_client import (
    Consumer,
    ConsumerOptions,
    Gap,
    GiveUp,
    GroupSettings,
    Handler,
    LeasedMessage,
    Letters,
    NewMessage,
    RefusedError,
    RetryLater,
)

from .harness import Case


class Groups(Case):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        await self.client.create_topic("orders")

    async def new_group(self, **settings: object) -> None:
        wanted: GroupSettings = {"source": "orders"}
        wanted.update(settings)  # type: ignore[typeddict-item]
        await self.client.create_group("billing", wanted)

    def start(self, handler: Handler, **options: object) -> tuple[Consumer, "asyncio.Task[object]"]:
        settings = ConsumerOptions(**options)  # type: ignore[arg-type]
        consumer = self.client.consumer("billing", handler, settings)
        running: asyncio.Task[object] = asyncio.create_task(consumer.run())
        self.addAsyncCleanup(self.stop, consumer, running)
        return consumer, running

    async def stop(self, consumer: Consumer, running: "asyncio.Task[object]") -> None:
        consumer.stop()
        await asyncio.gather(running, return_exceptions=True)

    async def until_lag_is(self, lag: int) -> None:
        async def is_so() -> bool:
            return (await self.client.group("billing"))["lag"] == lag

        await self.until(f"the lag is {lag}", is_so)

    async def test_a_handler_gets_every_message_and_no_more_at_once_than_it_wants(self) -> None:
        await self.new_group()
        await self.client.publish_batch("orders", [str(n) for n in range(100)])
        handled: list[str] = []
        running_now = most = 0

        async def handle(message: LeasedMessage) -> None:
            nonlocal running_now, most
            running_now += 1
            most = max(most, running_now)
            await asyncio.sleep(0)
            running_now -= 1
            handled.append(message.text)

        consumer, running = self.start(handle, concurrency=4)
        await self.until_lag_is(0)
        await self.stop(consumer, running)
        self.assertEqual(sorted(handled, key=int), [str(n) for n in range(100)])
        self.assertEqual((consumer.report.acked, consumer.report.refused), (100, 0))
        self.assertLessEqual(most, 4)
        self.assertEqual((await self.client.group("billing"))["member_count"], 0)

    async def test_a_lease_is_extended_for_as_long_as_the_handler_runs(self) -> None:
        lease_ms = 3000
        await self.new_group(lease_ms=lease_ms)
        await self.client.publish("orders", "slow")
        attempts: list[int] = []

        async def handle(message: LeasedMessage) -> None:
            attempts.append(message.attempt)
            begin = (await self.client.server())["time_ms"]

            async def lease_is_over() -> bool:
                return bool((await self.client.server())["time_ms"] > begin + lease_ms * 3 // 2)

            await self.until("more than a lease has passed", lease_is_over)

        consumer, running = self.start(handle)
        await self.until_lag_is(0)
        await self.stop(consumer, running)
        totals = (await self.client.group("billing"))["totals"]
        self.assertEqual((attempts, totals["expired"], totals["acked"]), ([1], 0, 1))

    async def test_a_message_that_was_given_back_comes_again_after_its_delay(self) -> None:
        await self.new_group(retry={"steps_ms": [3_600_000]})
        await self.client.publish("orders", "twice")
        attempts: list[int] = []

        async def handle(message: LeasedMessage) -> None:
            attempts.append(message.attempt)
            if message.attempt == 1:
                raise RetryLater("busy", delay_ms=50)

        consumer, running = self.start(handle)
        await self.until_lag_is(0)
        await self.stop(consumer, running)
        self.assertEqual((attempts, consumer.report.retried, consumer.report.acked), ([1, 2], 1, 1))

    async def test_what_fails_too_often_is_a_dead_letter_that_can_be_driven_again(self) -> None:
        await self.new_group(attempts_max=2, retry={"steps_ms": [0]})
        await self.client.publish_batch("orders", ["hopeless", "failing", "fine"])
        healed = False

        async def handle(message: LeasedMessage) -> None:
            if healed or message.text == "fine":
                return
            if message.text == "hopeless":
                raise GiveUp("cannot be read")
            raise ValueError("does not work")

        consumer, running = self.start(handle)

        async def both_are_dead() -> bool:
            return (await self.client.group("billing"))["dead_letters"] == 2

        await self.until("two dead letters", both_are_dead)
        letters = {each.value: each async for each in self.client.dead_letters("billing")}
        self.assertEqual(letters["hopeless"].error, "cannot be read")
        self.assertEqual((letters["failing"].error, letters["failing"].attempts), ("does not work", 2))
        self.assertEqual(letters["failing"].origin_seq, 2)
        shown = await self.client.dead_letter("billing", letters["failing"].seq)
        self.assertEqual(shown, letters["failing"])
        await self.client.delete_dead_letter("billing", letters["hopeless"].seq)
        healed = True
        redriven = await self.client.redrive("billing", Letters(error="not work"))
        self.assertEqual((redriven.moved, redriven.goes_on), (1, False))
        await self.until_lag_is(0)
        await self.stop(consumer, running)
        self.assertEqual([each async for each in self.client.dead_letters("billing")], [])
        self.assertEqual(await self.client.delete_dead_letters("billing"), 0)

    async def test_no_message_is_lost_through_kills_of_the_server(self) -> None:
        count, kills = 200, 3
        await self.new_group(lease_ms=2000, retry={"steps_ms": [0]})
        await self.client.publish_batch("orders", [str(n) for n in range(count)])
        handled: set[str] = set()

        async def handle(message: LeasedMessage) -> None:
            handled.add(message.text)

        consumer, running = self.start(handle, concurrency=4)
        for kill in range(1, kills + 1):

            async def moved() -> bool:
                return len(handled) >= kill * count // (kills + 1)

            await self.until("messages are handled", moved)
            await self.server.restart()
        await self.until_lag_is(0)
        await self.stop(consumer, running)
        self.assertEqual(handled, {str(n) for n in range(count)})
        self.assertEqual((await self.client.group("billing"))["dead_letters"], 0)

    async def test_messages_that_are_gone_are_a_gap_with_its_reason(self) -> None:
        await self.new_group(start="seq:1", on_gap="continue")
        await self.client.publish_batch("orders", ["1", "2", "3"])
        await self.client.purge_topic("orders", below=3)
        gaps: list[Gap] = []

        async def handle(message: LeasedMessage) -> None:
            self.assertEqual(message.seq, 3)

        consumer, running = self.start(handle, on_gap=gaps.append)
        await self.until_lag_is(0)
        await self.stop(consumer, running)
        self.assertEqual([(gap.reason, gap.topic, gap.to_seq) for gap in gaps], [("purge", "orders", 2)])
        self.assertEqual((consumer.report.gaps, consumer.report.acked), (1, 1))

    async def test_a_consumer_that_stops_gives_back_what_it_could_not_finish(self) -> None:
        await self.new_group()
        await self.client.publish("orders", "unfinished")
        begun = asyncio.Event()

        async def handle(message: LeasedMessage) -> None:
            begun.set()
            await asyncio.Event().wait()

        consumer, running = self.start(handle, drain_secs_max=0)
        await begun.wait()
        await self.stop(consumer, running)
        fetched = await self.client.member("billing", "other").fetch()
        self.assertEqual([(each.text, each.attempt) for each in fetched.messages], [("unfinished", 1)])

    async def test_a_consumer_that_stops_lets_handlers_finish(self) -> None:
        await self.new_group()
        await self.client.publish("orders", "finished")
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(message: LeasedMessage) -> None:
            begun.set()
            await go_on.wait()

        consumer, running = self.start(handle)
        await begun.wait()
        consumer.stop()
        go_on.set()
        await running
        self.assertEqual(consumer.report.acked, 1)
        self.assertEqual((await self.client.group("billing"))["lag"], 0)

    async def test_a_consumer_of_a_group_that_is_not_there_raises(self) -> None:
        async def handle(message: LeasedMessage) -> None:
            self.fail("there is nothing to handle")

        with self.assertRaises(RefusedError) as raised:
            await self.client.consumer("nowhere", handle).run()
        self.assertEqual(raised.exception.problem.name, "UnknownGroup")

    async def test_a_member_can_fetch_and_settle_by_hand(self) -> None:
        await self.new_group()
        await self.client.publish_batch("orders", ["1", "2", "3", "4"])
        member = self.client.member("billing", "worker")
        first, second, third, fourth = (await member.fetch(max=10)).messages
        self.assertEqual((await member.extend([first.lease, second.lease])).taken, 2)
        self.assertEqual((await member.ack([first.lease])).taken, 1)
        self.assertEqual((await member.ack([first.lease])).refused, 1)
        self.assertEqual((await member.nack([second.lease], delay_ms=0, reason="x")).taken, 1)
        self.assertEqual((await member.terminate([third.lease], reason="y")).taken, 1)
        again = (await member.fetch()).messages
        self.assertEqual([(each.text, each.attempt) for each in again], [("2", 2)])
        self.assertEqual((await self.client.group("billing"))["dead_letters"], 1)
        await self.client.publish_together([("orders", ["5"])], acks=[again[0].lease])
        with self.assertRaises(RefusedError) as raised:
            await self.client.publish_together([("orders", ["6"])], acks=[again[0].lease])
        self.assertEqual(raised.exception.problem.name, "LeaseLost")
        await member.leave()
        # What it held goes to others, and leaving is not a failed attempt.
        other = self.client.member("billing", "other")
        rest = [(each.text, each.attempt) for each in (await other.fetch(max=1)).messages]
        rest += [(each.text, each.attempt) for each in (await other.fetch(max=1)).messages]
        self.assertEqual(sorted(rest), [("4", 1), ("5", 1)])


class Administration(Case):
    async def test_topics_are_created_changed_listed_and_deleted(self) -> None:
        made = await self.client.create_topic("orders", {"retention": {"count": 5}})
        self.assertEqual((made["name"], made["next"]), ("orders", 1))
        await self.client.create_topic("orders", {"retention": {"count": 5}})
        with self.assertRaises(RefusedError) as raised:
            await self.client.create_topic("orders", {"compaction": True})
        self.assertEqual(raised.exception.problem.name, "TopicExists")
        changed = await self.client.change_topic("orders", {"max_message_bytes": 3})
        self.assertEqual(changed["settings"].get("max_message_bytes"), 3)
        with self.assertRaises(RefusedError) as raised:
            await self.client.publish("orders", "four")
        self.assertEqual(raised.exception.problem.name, "TooLarge")
        await self.client.create_topic("other")
        names = [each["name"] async for each in self.client.topics("*")]
        self.assertEqual(names, ["orders", "other"])
        self.assertEqual([each async for each in self.client.topics("orders.>")], [])
        await self.client.delete_topic("orders")
        with self.assertRaises(RefusedError) as raised:
            await self.client.topic("orders")
        self.assertEqual(raised.exception.problem.name, "UnknownTopic")

    async def test_the_latest_message_of_a_key_is_found(self) -> None:
        await self.client.create_topic("prices", {"compaction": True})
        await self.client.publish_batch(
            "prices", [NewMessage(text, key=key) for text, key in (("1", "a"), ("2", "b"), ("3", "a"))]
        )
        self.assertEqual((await self.client.latest("prices", "a")).text, "3")
        async with self.client.follow("prices", "last-per-key") as events:
            seen = [await events.__anext__() for _ in range(2)]
        self.assertEqual([getattr(each, "text", None) for each in seen], ["2", "3"])

    async def test_groups_are_created_changed_paused_reset_listed_and_deleted(self) -> None:
        await self.client.create_topic("orders")
        await self.client.create_group("billing", {"source": "orders"})
        await self.client.publish_batch("orders", ["1", "2"])
        self.assertEqual((await self.client.group("billing"))["lag"], 2)
        self.assertEqual((await self.client.pause_group("billing"))["state"], "paused")
        self.assertEqual((await self.client.resume_group("billing"))["state"], "running")
        changed = await self.client.change_group("billing", {"attempts_max": 9})
        self.assertEqual(changed["settings"].get("attempts_max"), 9)
        self.assertEqual((await self.client.reset_group("billing", "now"))["lag"], 0)
        self.assertEqual([each["name"] async for each in self.client.groups()], ["billing"])
        await self.client.delete_group("billing")
        self.assertEqual([each async for each in self.client.groups()], [])
