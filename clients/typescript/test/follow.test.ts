// Following: nothing lost, nothing twice, through whatever happens in between.

import assert from "node:assert/strict";
import { test as plainTest } from "node:test";
import { FollowEndedError, Message, ProtocolError, RefusedError, TransportError } from "gapless-client";
import { EventParser } from "../dist/follow.js";
import { Server, numbers, take, test, until } from "./harness.js";

test("history comes first and then what is published", async ({ client }) => {
  await client.publish("orders", "first", { create: true });
  const texts: string[] = [];
  const events = client.follow("orders", { notices: true });
  for await (const event of events) {
    if (event.type === "message") texts.push(event.text);
    if (event.type === "live") await client.publish("orders", "second");
    if (texts.length === 2) break;
  }
  assert.deepEqual(texts, ["first", "second"]);
  assert.equal(events.cursor, (await client.message("orders", 2)).cursor);
  // Leaving the loop has closed it.
  assert.deepEqual(await events.next(), { done: true, value: undefined });
});

test("each message comes once and in order through kills of the server", async ({ server, client }) => {
  const count = 300;
  const kills = 4;
  await client.createTopic("orders");
  const publish = async (): Promise<number[]> => {
    const seqs: number[] = [];
    for (const n of numbers(count)) seqs.push((await client.publish("orders", n)).seq);
    return seqs;
  };
  const follower = client.follow("orders");
  const messages: Message[] = [];
  const publishing = publish();
  const taking = take(follower, count, messages);
  for (let kill = 1; kill <= kills; kill += 1) {
    await until("messages arrive", () => messages.length >= (kill * count) / (kills + 1));
    await server.restart();
  }
  await taking;
  assert.deepEqual(messages.map((each) => each.seq), await publishing);
  assert.deepEqual(messages.map((each) => each.text), numbers(count));
  assert.ok(follower.connections > 1);
  assert.equal((await client.topic("orders")).next, count + 1);
});

test("each message comes once over connections that are cut anywhere", async (given) => {
  const { client, newClient, newNetwork } = given;
  const texts = numbers(400).map((n) => `message ${n} ${"ü".repeat(Number(n) % 50)}`);
  await client.createTopic("orders");
  await client.publishBatch("orders", texts);
  const network = await newNetwork();
  network.cutAfter = 9_973;
  const follower = newClient(network.url).follow("orders");
  const messages = await take(follower, texts.length);
  assert.deepEqual(messages.map((each) => each.text), texts);
  assert.ok(follower.connections > 5);
});

test("a connection that falls silent is replaced", async ({ client, newClient, newNetwork }) => {
  await client.publish("orders", "first", { create: true });
  const network = await newNetwork();
  const follower = newClient(network.url, { silenceMsMax: 500 }).follow("orders");
  await take(follower, 1);
  network.mute();
  await client.publish("orders", "second");
  assert.equal((await take(follower, 1))[0]?.text, "second");
  assert.ok(follower.connections > 1);
});

test("a cursor resumes a pattern in another follower", async ({ server, client }) => {
  for (const name of ["orders.eu", "orders.us"]) await client.createTopic(name);
  for (const n of numbers(10)) await client.publish(Number(n) % 2 ? "orders.eu" : "orders.us", n);
  const follower = client.followPattern("orders.>");
  const first = await take(follower, 4);
  follower.close();
  await server.restart();
  assert.ok(follower.cursor);
  const rest = await take(client.followPattern("orders.>", { from: follower.cursor }), 6);
  assert.deepEqual([...first, ...rest].map((each) => each.text), numbers(10));
});

test("a follower from now misses nothing after its place is known", async ({ server, client }) => {
  await client.publish("orders", "before", { create: true });
  const events = client.follow("orders", { from: "now", notices: true });
  assert.equal((await events.next()).value?.type, "live");
  await server.restart();
  await client.publish("orders", "while it was away, or later");
  for await (const event of events) {
    if (event.type !== "message") continue;
    assert.equal(event.text, "while it was away, or later");
    break;
  }
});

test("messages that are gone are a gap with its reason", async ({ client }) => {
  await client.createTopic("orders");
  await client.publishBatch("orders", numbers(10));
  const before = client.follow("orders");
  await take(before, 2);
  assert.ok(before.cursor);
  await client.purgeTopic("orders", { below: 6 });
  // A cursor is a position, so the first seq that is gone is not known.
  for (const [from, first] of [[before.cursor, null], [3, 3]] as const) {
    const follower = client.follow("orders", { from });
    const gap = { type: "gap", reason: "purge", topic: "orders", from: first, to: 5 };
    assert.deepEqual((await follower.next()).value, gap);
    assert.equal((await take(follower, 1))[0]?.seq, 6);
  }
  assert.equal((await client.read("orders", { from: 3 })).gaps[0]?.reason, "purge");
});

test("a cursor of another store is a gap", async ({ client, newClient, after }) => {
  const other = new Server();
  await other.start();
  after(() => other.close());
  const elsewhere = newClient(other.url);
  await elsewhere.publish("orders", "elsewhere", { create: true });
  await client.publish("orders", "here", { create: true });
  const follower = client.follow("orders", { from: (await elsewhere.message("orders", 1)).cursor });
  const gap = (await follower.next()).value;
  assert.ok(gap?.type === "gap" && gap.reason === "epoch");
  assert.equal((await take(follower, 1))[0]?.text, "here");
});

test("a deleted topic ends its followers", async ({ client }) => {
  await client.publish("orders", "first", { create: true });
  const follower = client.follow("orders");
  await take(follower, 1);
  await client.deleteTopic("orders");
  await assert.rejects(follower.next(), (error) => {
    assert.ok(error instanceof FollowEndedError);
    assert.equal(error.code, 222);
    return true;
  });
  assert.deepEqual(await follower.next(), { done: true, value: undefined });
});

test("a topic that does not exist is an error at once", async ({ client }) => {
  await assert.rejects(client.follow("nowhere").next(), (error) => {
    assert.ok(error instanceof RefusedError);
    assert.equal(error.problem.name, "UnknownTopic");
    return true;
  });
});

test("a follower gives up after the time it was given", async ({ server, client }) => {
  await server.kill();
  await assert.rejects(client.follow("orders", { offlineMsMax: 200 }).next(), TransportError);
});

test("closing ends a wait for the next event", async ({ client, newClient }) => {
  await client.createTopic("orders");
  const one = client.follow("orders", { notices: true });
  await one.next();
  const waiting = one.next();
  one.close();
  assert.deepEqual(await waiting, { done: true, value: undefined });
  const other = newClient();
  const follower = other.follow("orders", { notices: true });
  await follower.next();
  const ended = follower.next();
  other.close();
  assert.deepEqual(await ended, { done: true, value: undefined });
});

plainTest("events are the same in whatever pieces they arrive", () => {
  const raw = new TextEncoder().encode(
    "retry: 1\n\nid: a:1\ndata: {\ndata: }\n\n: alive\n\nevent: gap\r\ndata:ü\r\n\r\n",
  );
  const whole = new EventParser().feed(raw);
  assert.deepEqual(whole, [
    { name: "", id: "a:1", data: "{\n}" },
    { name: "gap", id: undefined, data: "ü" },
  ]);
  for (let size = 1; size < raw.length; size += 1) {
    const parser = new EventParser();
    const pieces = [];
    for (let at = 0; at < raw.length; at += size) pieces.push(...parser.feed(raw.subarray(at, at + size)));
    assert.deepEqual(pieces, whole);
  }
});

plainTest("an event without end is refused before it fills the memory", () => {
  const parser = new EventParser(1000);
  const piece = new TextEncoder().encode(`data: ${"x".repeat(94)}`);
  assert.throws(() => {
    for (let n = 0; n < 20; n += 1) parser.feed(piece);
  }, ProtocolError);
});
