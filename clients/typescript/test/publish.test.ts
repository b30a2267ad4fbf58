// Publishing: acknowledgements, attempts under one id, what became of a message.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { BatchError, Client, RefusedError, TimedOutError, TransportError } from "gapless-client";
import type { Ack, NewMessage } from "gapless-client";
import { numbers, test, until } from "./harness.js";

test("an ack says where the message is and how safe", async ({ client }) => {
  const ack = await client.publish("orders", "first", { create: true });
  assert.deepEqual([ack.seq, ack.durability, ack.duplicate], [1, "flushed", false]);
  assert.equal((await client.message("orders", 1)).text, "first");
});

test("a message comes back as it was sent", async ({ client }) => {
  await client.createTopic("orders");
  const bytes = Uint8Array.of(255, 0);
  const sent: NewMessage[] = [
    { data: bytes, key: Uint8Array.of(254), headers: { a: "1", b: ["2", Uint8Array.of(253)] } },
    { json: { n: [1, null, "ü"] }, key: "k&=ü", ttlMs: 600_000 },
    { text: "text/ü", id: "my id" },
  ];
  for (const message of sent) await client.publish("orders", message);
  await client.publishBatch("orders", sent);
  await client.publish("orders", { key: "k&=ü" });
  const { messages } = await client.read("orders");
  // The third has an id of its own, so it is a duplicate in the batch.
  assert.deepEqual(messages.map((each) => each.seq), [1, 2, 3, 4, 5, 6]);
  for (const first of [messages[0], messages[3]]) {
    assert.deepEqual(first?.body, { kind: "data", value: bytes });
    assert.deepEqual(first.key, Uint8Array.of(254));
    assert.deepEqual(first.headers, { a: ["1"], b: ["2", Uint8Array.of(253)] });
  }
  for (const second of [messages[1], messages[4]]) {
    assert.deepEqual(second?.body, { kind: "json", value: { n: [1, null, "ü"] } });
    assert.deepEqual([second.key, second.ttlMs], ["k&=ü", 600_000]);
  }
  assert.deepEqual([messages[2]?.text, messages[2]?.id], ["text/ü", "my id"]);
  assert.deepEqual(messages[2]?.headers, {});
  assert.deepEqual(messages[5]?.body, { kind: "removal", value: null });
  assert.equal(new TextDecoder().decode(await client.body("orders", 2)), '{"n":[1,null,"ü"]}');
});

test("a publish whose answers were lost is stored once", async ({ client, newClient, newNetwork }) => {
  await client.createTopic("orders");
  const network = await newNetwork();
  network.loseAnswers = 3;
  const ack = await newClient(network.url).publish("orders", "first");
  assert.deepEqual([ack.seq, ack.duplicate, network.loseAnswers], [1, true, 0]);
  assert.equal((await client.topic("orders")).next, 2);
});

test("a batch whose answers were torn is stored once and in order", async (given) => {
  const { client, newClient, newNetwork } = given;
  await client.createTopic("orders");
  const network = await newNetwork();
  network.cutAfter = 1_000;
  const publishing = newClient(network.url).publishBatch("orders", numbers(1200));
  await until("an answer is torn", () => network.connections > 1);
  network.cutAfter = undefined;
  const acks = await publishing;
  assert.deepEqual(acks.map((ack) => ack.seq), numbers(1200).map((n) => Number(n) + 1));
  const { messages } = await client.read("orders", { limit: 10_000 });
  assert.deepEqual(messages.map((each) => each.text), numbers(1200));
});

test("a batch says of each message what became of it", async ({ client }) => {
  await client.createTopic("orders");
  const batch = client.publishBatch("orders", ["a", { text: "b", expectSeq: 99 }, "c"]);
  await assert.rejects(batch, (error) => {
    assert.ok(error instanceof BatchError);
    const [first, second, third] = error.outcomes as [Ack, RefusedError, Ack];
    assert.deepEqual([first.seq, third.seq], [1, 2]);
    assert.equal(second.problem.name, "ExpectedSeq");
    assert.equal(error.fate, "did not happen");
    return true;
  });
});

test("a refusal carries the problem document", async ({ client }) => {
  await client.publish("orders", "first", { create: true });
  await assert.rejects(client.publish("orders", { text: "second", expectSeq: 0 }), (error) => {
    assert.ok(error instanceof RefusedError);
    const { name, code, status, facts } = error.problem;
    assert.deepEqual([name, code, status, facts["actual"]], ["ExpectedSeq", 7, 412, 1]);
    assert.equal(error.fate, "did not happen");
    return true;
  });
});

test("without a server a publish did not happen", async ({ server, newClient }) => {
  await server.kill();
  const publishing = newClient(server.url, { timeoutMs: 200 }).publish("orders", "first");
  await assert.rejects(publishing, (error) => {
    assert.ok(error instanceof TransportError);
    assert.equal(error.fate, "did not happen");
    return true;
  });
});

test("without an answer the fate of a publish is unknown", async ({ client, newClient, newNetwork }) => {
  await client.createTopic("orders");
  const network = await newNetwork();
  network.mute({ newOnesToo: true });
  const publishing = newClient(network.url, { timeoutMs: 500 }).publish("orders", "first");
  await assert.rejects(publishing, (error) => {
    assert.ok(error instanceof TimedOutError);
    assert.equal(error.fate, "unknown");
    return true;
  });
});

test("a publish waits for a server that comes back", async ({ server, client }) => {
  await client.createTopic("orders");
  await server.kill();
  const publishing = client.publish("orders", "first");
  await server.start();
  assert.equal((await publishing).seq, 1);
});

test("what is not safe to send again is sent once", async ({ client, newClient, newNetwork }) => {
  await client.createTopic("orders");
  const network = await newNetwork();
  network.loseAnswers = 1;
  await assert.rejects(newClient(network.url).deleteTopic("orders"), (error) => {
    assert.ok(error instanceof TransportError);
    assert.deepEqual([error.fate, network.connections], ["unknown", 1]);
    return true;
  });
});

test("several topics are published together or not at all", async ({ client }) => {
  await client.createTopic("orders");
  await client.createTopic("audit");
  const to = (topic: string, message: string): { topic: string; messages: string[] } => ({
    topic,
    messages: [message],
  });
  await client.publishTogether([to("orders", "1"), to("audit", "order 1")]);
  await assert.rejects(client.publishTogether([to("orders", "2"), to("nowhere", "order 2")]), RefusedError);
  assert.equal((await client.topic("orders")).next, 2);
  assert.equal((await client.message("audit", 1)).text, "order 1");
});

test("a delayed message can be taken back", async ({ client }) => {
  await client.createTopic("orders");
  const waiting = await client.publishLater("orders", "later", { delayMs: 3_600_000 });
  await client.cancelDelayed(waiting.delayed);
  await assert.rejects(client.cancelDelayed(waiting.delayed), RefusedError);
});

test("requests over the limit wait for their turn", async ({ server, after }) => {
  const client = new Client(server.url, { requestsMax: 2 });
  after(() => client.close());
  await client.createTopic("orders");
  const acks = await Promise.all(numbers(50).map((n) => client.publish("orders", n)));
  assert.deepEqual(new Set(acks.map((ack) => ack.seq)).size, 50);
});

test("the token is sent as a bearer token", async ({ after }) => {
  const said: (string | undefined)[] = [];
  const listener = createServer((request, response) => {
    said.push(request.headers.authorization);
    response.end("{}");
  }).listen(0, "127.0.0.1");
  after(() => void listener.close());
  await until("it listens", () => listener.listening);
  const { port } = listener.address() as AddressInfo;
  const client = new Client(`http://127.0.0.1:${port}`, { token: "s3cret" });
  await client.server();
  assert.deepEqual(said, ["Bearer s3cret"]);
});
