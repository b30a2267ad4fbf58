// Groups: a handler, leases, second attempts, dead letters, gaps. And administration.

import assert from "node:assert/strict";
import { GiveUp, RefusedError, RetryLater } from "gapless-client";
import type { Client, Consumer, ConsumerOptions, Gap, GroupSettings, Handler, Report } from "gapless-client";
import { numbers, test, until } from "./harness.js";
import type { Given } from "./harness.js";

async function newGroup(client: Client, settings: GroupSettings = {}): Promise<void> {
  await client.createTopic("orders");
  await client.groups.create("billing", { source: "orders", ...settings });
}

interface Running {
  consumer: Consumer;
  stop: () => Promise<Report>;
}

function start({ client, after }: Given, handler: Handler, options: ConsumerOptions = {}): Running {
  const consumer = client.consumer("billing", handler, options);
  const running = consumer.run();
  running.catch(() => undefined);
  const stop = (): Promise<Report> => {
    consumer.stop();
    return running;
  };
  after(async () => void (await stop().catch(() => undefined)));
  return { consumer, stop };
}

async function untilLagIs(client: Client, lag: number): Promise<void> {
  await until(`the lag is ${lag}`, async () => (await client.groups.get("billing")).lag === lag);
}

test("a handler gets every message and no more at once than it wants", async (given) => {
  const { client } = given;
  await newGroup(client);
  await client.publishBatch("orders", numbers(100));
  const handled: string[] = [];
  let now = 0;
  let most = 0;
  const { stop } = start(
    given,
    async (message) => {
      now += 1;
      most = Math.max(most, now);
      await new Promise((resolve) => setImmediate(resolve));
      now -= 1;
      handled.push(message.text);
    },
    { concurrency: 4 },
  );
  await untilLagIs(client, 0);
  const report = await stop();
  assert.deepEqual(handled.sort((a, b) => Number(a) - Number(b)), numbers(100));
  assert.deepEqual([report.acked, report.refused], [100, 0]);
  assert.ok(most <= 4);
  assert.equal((await client.groups.get("billing")).member_count, 0);
});

test("a lease is extended for as long as the handler runs", async (given) => {
  const { client } = given;
  const leaseMs = 3000;
  await newGroup(client, { lease_ms: leaseMs });
  await client.publish("orders", "slow");
  const attempts: number[] = [];
  const { stop } = start(given, async (message) => {
    attempts.push(message.attempt);
    const begin = (await client.server()).time_ms;
    const isOver = async (): Promise<boolean> => (await client.server()).time_ms > begin + leaseMs * 1.5;
    await until("more than a lease has passed", isOver);
  });
  await untilLagIs(client, 0);
  await stop();
  const { totals } = await client.groups.get("billing");
  assert.deepEqual([attempts, totals.expired, totals.acked], [[1], 0, 1]);
});

test("a message that was given back comes again after its delay", async (given) => {
  const { client } = given;
  await newGroup(client, { retry: { steps_ms: [3_600_000] } });
  await client.publish("orders", "twice");
  const attempts: number[] = [];
  const { stop } = start(given, (message) => {
    attempts.push(message.attempt);
    if (message.attempt === 1) throw new RetryLater("busy", { delayMs: 50 });
  });
  await untilLagIs(client, 0);
  const report = await stop();
  assert.deepEqual([attempts, report.retried, report.acked], [[1, 2], 1, 1]);
});

test("what fails too often is a dead letter that can be driven again", async (given) => {
  const { client } = given;
  await newGroup(client, { attempts_max: 2, retry: { steps_ms: [0] } });
  await client.publishBatch("orders", ["hopeless", "failing", "fine"]);
  let healed = false;
  const { stop } = start(given, (message) => {
    if (healed || message.text === "fine") return;
    if (message.text === "hopeless") throw new GiveUp("cannot be read");
    throw new Error("does not work");
  });
  await until("two dead letters", async () => (await client.groups.get("billing")).dead_letters === 2);
  const letters = new Map<unknown, number>();
  for await (const letter of client.groups.deadLetters("billing")) {
    letters.set(letter.body.value, letter.seq);
    assert.equal(letter.error, letter.body.value === "hopeless" ? "cannot be read" : "does not work");
  }
  const failing = await client.groups.deadLetter("billing", letters.get("failing") ?? 0);
  assert.deepEqual([failing.originSeq, failing.attempts, failing.topic], [2, 2, "orders"]);
  await client.groups.deleteDeadLetter("billing", letters.get("hopeless") ?? 0);
  healed = true;
  const redriven = await client.groups.redrive("billing", { error: "not work" });
  assert.deepEqual(redriven, { moved: 1, goesOn: false });
  await untilLagIs(client, 0);
  await stop();
  assert.equal(await client.groups.deleteDeadLetters("billing"), 0);
});

test("no message of a group is lost through kills of the server", async (given) => {
  const { client, server } = given;
  const count = 200;
  const kills = 3;
  await newGroup(client, { lease_ms: 2000, retry: { steps_ms: [0] } });
  await client.publishBatch("orders", numbers(count));
  const handled = new Set<string>();
  const { stop } = start(given, (message) => void handled.add(message.text), { concurrency: 4 });
  for (let kill = 1; kill <= kills; kill += 1) {
    await until("messages are handled", () => handled.size >= (kill * count) / (kills + 1));
    await server.restart();
  }
  await untilLagIs(client, 0);
  await stop();
  assert.deepEqual(handled, new Set(numbers(count)));
  assert.equal((await client.groups.get("billing")).dead_letters, 0);
});

test("messages that are gone before a group has read them are a gap", async (given) => {
  const { client } = given;
  await newGroup(client, { start: "seq:1", on_gap: "continue" });
  await client.publishBatch("orders", numbers(3));
  await client.purgeTopic("orders", { below: 3 });
  const gaps: Gap[] = [];
  const onGap = (gap: Gap): void => void gaps.push(gap);
  const { stop } = start(given, (message) => assert.equal(message.seq, 3), { onGap });
  await untilLagIs(client, 0);
  const report = await stop();
  assert.deepEqual(gaps.map((gap) => [gap.reason, gap.topic, gap.to]), [["purge", "orders", 2]]);
  assert.deepEqual([report.gaps, report.acked], [1, 1]);
});

test("a consumer that stops gives back what it could not finish", async (given) => {
  const { client } = given;
  await newGroup(client);
  await client.publish("orders", "unfinished");
  let begun = false;
  let wasAborted = false;
  const { stop } = start(
    given,
    (_, signal) => {
      begun = true;
      return new Promise((resolve) => {
        signal.addEventListener("abort", () => {
          wasAborted = true;
          resolve();
        });
      });
    },
    { drainMsMax: 1 },
  );
  await until("the handler has begun", () => begun);
  const report = await stop();
  assert.deepEqual([wasAborted, report.acked], [true, 0]);
  const { messages } = await client.groups.member("billing", "other").fetch();
  assert.deepEqual(messages.map((each) => [each.text, each.attempt]), [["unfinished", 1]]);
});

test("a consumer that stops lets handlers finish", async (given) => {
  const { client } = given;
  await newGroup(client);
  await client.publish("orders", "finished");
  let goOn: (() => void) | undefined;
  const { stop } = start(given, () => new Promise<void>((resolve) => (goOn = resolve)));
  await until("the handler has begun", () => goOn !== undefined);
  const stopped = stop();
  goOn?.();
  assert.equal((await stopped).acked, 1);
  assert.equal((await client.groups.get("billing")).lag, 0);
});

test("a consumer of a group that is not there throws", async ({ client }) => {
  await assert.rejects(client.consumer("nowhere", () => undefined).run(), (error) => {
    assert.ok(error instanceof RefusedError);
    assert.equal(error.problem.name, "UnknownGroup");
    return true;
  });
});

test("a member can fetch and settle by hand", async ({ client }) => {
  await newGroup(client);
  await client.publishBatch("orders", ["1", "2", "3", "4"]);
  const member = client.groups.member("billing", "worker");
  const [first, second, third] = (await member.fetch(10)).messages;
  assert.ok(first && second && third);
  assert.equal((await member.extend([first.lease, second.lease])).taken, 2);
  assert.equal((await member.ack([first.lease])).taken, 1);
  assert.equal((await member.ack([first.lease])).refused, 1);
  assert.equal((await member.nack([second.lease], { delayMs: 0, reason: "x" })).taken, 1);
  assert.equal((await member.terminate([third.lease], { reason: "y" })).taken, 1);
  const [again] = (await member.fetch()).messages;
  assert.ok(again);
  assert.deepEqual([again.text, again.attempt], ["2", 2]);
  assert.equal((await client.groups.get("billing")).dead_letters, 1);
  await client.publishTogether([{ topic: "orders", messages: ["5"] }], { acks: [again.lease] });
  const twice = client.publishTogether([{ topic: "orders", messages: ["6"] }], { acks: [again.lease] });
  await assert.rejects(twice, (error) => error instanceof RefusedError && error.problem.name === "LeaseLost");
  await member.leave();
  // What it held goes to others, and leaving is not a failed attempt.
  const other = client.groups.member("billing", "other");
  const rest = [...(await other.fetch(1)).messages, ...(await other.fetch(1)).messages];
  assert.deepEqual(rest.map((each) => `${each.text} ${each.attempt}`).sort(), ["4 1", "5 1"]);
});

test("topics are created, changed, listed and deleted", async ({ client }) => {
  const made = await client.createTopic("orders", { retention: { count: 5 } });
  assert.deepEqual([made.name, made.next], ["orders", 1]);
  await client.createTopic("orders", { retention: { count: 5 } });
  const refused = (name: string) => (error: unknown) =>
    error instanceof RefusedError && error.problem.name === name;
  await assert.rejects(client.createTopic("orders", { compaction: true }), refused("TopicExists"));
  await client.changeTopic("orders", { max_message_bytes: 3 });
  await assert.rejects(client.publish("orders", "four"), refused("TooLarge"));
  await client.createTopic("other");
  const names: string[] = [];
  for await (const topic of client.topics("*")) names.push(topic.name);
  assert.deepEqual(names, ["orders", "other"]);
  await client.deleteTopic("orders");
  await assert.rejects(client.topic("orders"), refused("UnknownTopic"));
});

test("the latest message of a key is found", async ({ client }) => {
  await client.createTopic("prices", { compaction: true });
  const prices = [["1", "a"], ["2", "b"], ["3", "a"]] as const;
  await client.publishBatch("prices", prices.map(([text, key]) => ({ text, key })));
  assert.equal((await client.latest("prices", "a")).text, "3");
});

test("groups are created, changed, paused, reset, listed and deleted", async ({ client }) => {
  await newGroup(client);
  await client.publishBatch("orders", ["1", "2"]);
  assert.equal((await client.groups.get("billing")).lag, 2);
  assert.equal((await client.groups.pause("billing")).state, "paused");
  assert.equal((await client.groups.resume("billing")).state, "running");
  assert.equal((await client.groups.change("billing", { attempts_max: 9 })).settings.attempts_max, 9);
  assert.equal((await client.groups.reset("billing", "now")).lag, 0);
  const names: string[] = [];
  for await (const group of client.groups.list()) names.push(group.name);
  assert.deepEqual(names, ["billing"]);
  await client.groups.delete("billing");
  for await (const group of client.groups.list()) assert.fail(group.name);
});
