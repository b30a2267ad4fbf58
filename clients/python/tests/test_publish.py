"""Publishing: acknowledgements, attempts under one id, what became of a message."""

from __future__ import annotations

import asyncio

from gapless_client import (
    Ack,
    BatchError,
    Client,
    NewMessage,
    RefusedError,
    TimedOutError,
    TransportError,
)

from .harness import Case


class Publish(Case):
    async def test_an_ack_says_where_the_message_is_and_how_safe(self) -> None:
        ack = await self.client.publish("orders", "first", create=True)
        self.assertEqual((ack.seq, ack.durability, ack.duplicate), (1, "flushed", False))
        self.assertEqual((await self.client.message("orders", 1)).text, "first")

    async def test_a_message_comes_back_as_it_was_sent(self) -> None:
        await self.client.create_topic("orders")
        sent = [
            NewMessage(b"\xff\x00", key=b"\xfe", headers={"a": "1", "b": ["2", b"\xfd"]}),
            NewMessage.of_json({"n": [1, None, "ü"]}, key="k&=ü", ttl_ms=600_000),
            NewMessage("text/ü", id="my id"),
        ]
        for message in sent:
            await self.client.publish("orders", message)
        await self.client.publish_batch("orders", sent)
        await self.client.publish("orders", NewMessage.removal("k&=ü"))
        read = (await self.client.read("orders")).messages
        # The third has an id of its own, so it is a duplicate in the batch.
        self.assertEqual([each.seq for each in read], [1, 2, 3, 4, 5, 6])
        for first in (read[0], read[3]):
            self.assertEqual((first.kind, first.value, first.key), ("bytes", b"\xff\x00", b"\xfe"))
            self.assertEqual(dict(first.headers), {"a": ["1"], "b": ["2", b"\xfd"]})
        for second in (read[1], read[4]):
            self.assertEqual((second.kind, second.json()), ("json", {"n": [1, None, "ü"]}))
            self.assertEqual((second.key, second.ttl_ms), ("k&=ü", 600_000))
        self.assertEqual((read[2].text, read[2].id), ("text/ü", "my id"))
        self.assertEqual((read[5].kind, read[5].value, read[5].data), ("removal", None, b""))
        self.assertEqual(await self.client.body("orders", 2), b'{"n":[1,null,"\xc3\xbc"]}')

    async def test_a_publish_whose_answers_were_lost_is_stored_once(self) -> None:
        await self.client.create_topic("orders")
        network = await self.new_network()
        network.lose_answers = 3
        ack = await self.new_client(network.url).publish("orders", "first")
        self.assertEqual((ack.seq, ack.duplicate), (1, True))
        self.assertEqual(network.lose_answers, 0)
        self.assertEqual((await self.client.topic("orders"))["next"], 2)

    async def test_a_batch_whose_answers_were_torn_is_stored_once_and_in_order(self) -> None:
        await self.client.create_topic("orders")
        network = await self.new_network()
        network.cut_after = 20_000
        texts = [f"message {n}" for n in range(1200)]
        cutting = asyncio.create_task(self.new_client(network.url).publish_batch("orders", texts))

        async def was_cut() -> bool:
            return network.connections > 1

        await self.until("an answer is torn", was_cut)
        network.cut_after = None
        acks = await cutting
        self.assertEqual([ack.seq for ack in acks], list(range(1, 1201)))
        stored = await self.client.read("orders", limit=10_000)
        self.assertEqual([each.text for each in stored.messages], texts)

    async def test_a_batch_says_of_each_message_what_became_of_it(self) -> None:
        await self.client.create_topic("orders")
        messages = [NewMessage("a"), NewMessage("b", expect_seq=99), NewMessage("c")]
        with self.assertRaises(BatchError) as raised:
            await self.client.publish_batch("orders", messages)
        first, second, third = raised.exception.outcomes
        assert isinstance(first, Ack) and isinstance(third, Ack)
        assert isinstance(second, RefusedError)
        self.assertEqual((first.seq, third.seq), (1, 2))
        self.assertEqual(second.problem.name, "ExpectedSeq")
        self.assertEqual(raised.exception.fate, "did not happen")

    async def test_a_refusal_carries_the_problem_document(self) -> None:
        await self.client.publish("orders", "first", create=True)
        with self.assertRaises(RefusedError) as raised:
            await self.client.publish("orders", NewMessage("second", expect_seq=0))
        problem = raised.exception.problem
        self.assertEqual((problem.name, problem.code, problem.status), ("ExpectedSeq", 7, 412))
        self.assertEqual(problem.facts["actual"], 1)
        self.assertEqual(raised.exception.fate, "did not happen")

    async def test_without_a_server_a_publish_did_not_happen(self) -> None:
        await self.server.kill()
        with self.assertRaises(TransportError) as raised:
            await self.new_client(timeout=0.2).publish("orders", "first")
        self.assertEqual(raised.exception.fate, "did not happen")

    async def test_without_an_answer_the_fate_of_a_publish_is_unknown(self) -> None:
        await self.client.create_topic("orders")
        network = await self.new_network()
        network.silent = True
        with self.assertRaises(TimedOutError) as raised:
            await self.new_client(network.url, timeout=2.0).publish("orders", "first")
        self.assertEqual(raised.exception.fate, "unknown")

    async def test_a_publish_waits_for_a_server_that_comes_back(self) -> None:
        await self.client.create_topic("orders")
        await self.server.kill()
        publishing = asyncio.create_task(self.client.publish("orders", "first"))
        await self.server.start()
        self.assertEqual((await publishing).seq, 1)

    async def test_what_is_not_safe_to_send_again_is_sent_once(self) -> None:
        await self.client.create_topic("orders")
        network = await self.new_network()
        network.lose_answers = 1
        with self.assertRaises(TransportError) as raised:
            await self.new_client(network.url).delete_topic("orders")
        self.assertEqual((raised.exception.fate, network.connections), ("unknown", 1))

    async def test_several_topics_are_published_together_or_not_at_all(self) -> None:
        await self.client.create_topic("orders")
        await self.client.create_topic("audit")
        await self.client.publish_together([("orders", ["1"]), ("audit", ["order 1"])])
        with self.assertRaises(RefusedError):
            await self.client.publish_together([("orders", ["2"]), ("nowhere", ["order 2"])])
        self.assertEqual((await self.client.topic("orders"))["next"], 2)
        self.assertEqual((await self.client.message("audit", 1)).text, "order 1")

    async def test_a_delayed_message_can_be_taken_back(self) -> None:
        await self.client.create_topic("orders")
        waiting = await self.client.publish_later("orders", "later", delay_ms=3_600_000)
        await self.client.cancel_delayed(waiting.delayed)
        with self.assertRaises(RefusedError):
            await self.client.cancel_delayed(waiting.delayed)

    async def test_the_token_is_sent_as_a_bearer_token(self) -> None:
        heads: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", token="s3cret") as client:
            await client.server()
        listener.close()
        self.assertIn(b"\r\nAuthorization: Bearer s3cret\r\n", heads[0])
