// The real server in a process of its own, and a network that fails on demand.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import type { AddressInfo, Server as Listener, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { test as nodeTest } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Client, Message } from "gapless-client";
import type { Event, Follower } from "gapless-client";

export const root = resolve(import.meta.dirname, "..", "..", "..");
const binary = process.env["GAPLESS_BIN"] ?? join(root, "target", "debug", "gapless");
/** Longer than anything takes on a loaded machine; only a failing test waits for it. */
export const DEADLINE_MS = 60_000;
/** How often a condition is looked at. */
const LOOK_MS = 20;

/** A server on free ports and a folder of its own; it restarts on the same port. */
export class Server {
  readonly folder = mkdtempSync(join(tmpdir(), "gapless-typescript-"));
  port = 0;
  process!: ChildProcess;
  readonly #settings: readonly string[];

  /** Settings are words such as `http.cors_origins=*`. */
  constructor(...settings: readonly string[]) {
    this.#settings = settings.flatMap((each) => ["--set", each]);
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const listen = ["--listen", "127.0.0.1:0", "--http", `127.0.0.1:${this.port}`];
    const data = ["--data", join(this.folder, "data"), "--json"];
    this.process = spawn(binary, ["serve", ...listen, ...data, ...this.#settings], {
      stdio: ["ignore", "pipe", "ignore"],
    });
    assert.ok(this.process.stdout);
    for await (const line of createInterface({ input: this.process.stdout })) {
      this.port = Number(new URL(JSON.parse(line).http).port);
      this.process.stdout.resume();
      return;
    }
    throw new Error("the server ended before it was ready");
  }

  /** kill -9, and waits for its end. */
  async kill(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = once(this.process, "exit");
    this.process.kill("SIGKILL");
    await ended;
  }

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  async close(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A way to the server that loses answers and cuts connections as it is set. */
export class Network {
  /** How many answers are still to be lost: the request arrives, its answer does not. */
  loseAnswers = 0;
  /** Bytes of answers after which each connection is cut. */
  cutAfter: number | undefined;
  connections = 0;
  #mutedUpTo = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #listener: Listener = createServer((socket) => this.#accept(socket));

  constructor(server: Server) {
    this.#server = server;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#listener.address() as AddressInfo).port}`;
  }

  async start(): Promise<void> {
    this.#listener.listen(0, "127.0.0.1");
    await once(this.#listener, "listening");
  }

  /** The connections of now, or all, carry nothing back any more, and stay open. */
  mute(which: { newOnesToo?: boolean } = {}): void {
    this.#mutedUpTo = which.newOnesToo ? Number.POSITIVE_INFINITY : this.connections;
  }

  async close(): Promise<void> {
    this.#listener.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #accept(socket: Socket): void {
    this.connections += 1;
    const connection = this.connections;
    let passed = 0;
    const there = connect(this.#server.port, "127.0.0.1");
    for (const [one, other] of [[socket, there], [there, socket]] as const) {
      this.#sockets.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => {
        this.#sockets.delete(one);
        other.destroySoon();
      });
    }
    socket.on("data", (data) => there.write(data));
    there.on("data", (data) => {
      if (connection <= this.#mutedUpTo) return;
      if (this.loseAnswers > 0) {
        this.loseAnswers -= 1;
        socket.destroy();
      } else if (this.cutAfter !== undefined && passed + data.length >= this.cutAfter) {
        socket.end(data.subarray(0, this.cutAfter - passed));
        there.destroy();
      } else {
        passed += data.length;
        socket.write(data);
      }
    });
  }
}

export interface Given {
  server: Server;
  /** A client of the server. */
  client: Client;
  /** Another client; what is made here is closed after the test. */
  newClient: (url?: string, options?: { timeoutMs?: number; silenceMsMax?: number }) => Client;
  newNetwork: () => Promise<Network>;
  after: (close: () => Promise<void> | void) => void;
}

/** A test with a server of its own. */
export function test(name: string, run: (given: Given) => Promise<void>): void {
  void nodeTest(name, { timeout: 2 * DEADLINE_MS }, async () => {
    const closes: (() => Promise<void> | void)[] = [];
    const server = new Server();
    const newClient: Given["newClient"] = (url = server.url, options = {}) => {
      const client = new Client(url, { timeoutMs: DEADLINE_MS, ...options });
      closes.push(() => client.close());
      return client;
    };
    const newNetwork = async (): Promise<Network> => {
      const network = new Network(server);
      await network.start();
      closes.push(() => network.close());
      return network;
    };
    closes.push(() => server.close());
    try {
      await server.start();
      const after = (close: () => Promise<void> | void): void => void closes.push(close);
      await run({ server, client: newClient(), newClient, newNetwork, after });
    } finally {
      // Each is closed, also when another cannot be: a server that is left keeps this process alive.
      const failed: unknown[] = [];
      for (const close of closes.reverse()) {
        try {
          await close();
        } catch (error) {
          failed.push(error);
        }
      }
      assert.deepEqual(failed, []);
    }
  });
}

/** Waits for a condition outside this process. */
export async function until(what: string, holds: () => Promise<boolean> | boolean): Promise<void> {
  const deadline = performance.now() + DEADLINE_MS;
  while (!(await holds())) {
    assert.ok(performance.now() < deadline, `never: ${what}`);
    await pause(LOOK_MS);
  }
}

/** The next so many messages; anything else is a failure. */
export async function take(
  follower: Follower<Event>,
  count: number,
  messages: Message[] = [],
): Promise<Message[]> {
  while (messages.length < count) {
    const { value } = await follower.next();
    assert.ok(value instanceof Message, JSON.stringify(value));
    messages.push(value);
  }
  return messages;
}

export function numbers(count: number): string[] {
  return Array.from({ length: count }, (_, n) => String(n));
}
