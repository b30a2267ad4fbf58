// A PostgreSQL of its own, on a Unix socket in a temporary folder, for tests of the outbox.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, chownSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { until } from "./harness.js";

const call = promisify(execFile);
const versions = "/usr/lib/postgresql";
/** PostgreSQL refuses to run as root: `nobody` does. */
const other = process.getuid() === 0 ? { uid: 65534, gid: 65534 } : {};

export class Postgres {
  static async start() {
    const server = new Postgres();
    const newest = readdirSync(versions).map(Number).sort((one, two) => two - one)[0];
    server.bin = join(versions, String(newest), "bin");
    server.folder = mkdtempSync(join(tmpdir(), "gapless-pg-"));
    chmodSync(server.folder, 0o755);
    if (other.uid) chownSync(server.folder, other.uid, other.gid);
    const data = join(server.folder, "data");
    const options = { cwd: server.folder, ...other };
    const how = ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"];
    await call(join(server.bin, "initdb"), [...how, "-D", data], options);
    const where = ["-D", data, "-k", server.folder, "-c", "listen_addresses="];
    server.process = spawn(join(server.bin, "postgres"), where, { ...options, stdio: "ignore" });
    server.ended = once(server.process, "exit");
    await until("PostgreSQL answers", () => server.sql("SELECT 1").then(() => true, () => false));
    return server;
  }

  get dsn() {
    return `host=${this.folder} user=postgres dbname=postgres`;
  }

  /** Runs statements on a connection of their own. */
  async sql(text) {
    return (await call("psql", [this.dsn, "-v", "ON_ERROR_STOP=1", "-Atqc", text])).stdout;
  }

  /** Runs statements and keeps the connection, and an open transaction, until `end` is called. */
  async hold(text) {
    const session = spawn("psql", [this.dsn, "-v", "ON_ERROR_STOP=1", "-Atq"], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    const ended = once(session, "exit");
    session.stdin.write(`${text}\nSELECT 'held';\n`);
    for await (const part of session.stdout) if (`${part}`.includes("held")) break;
    return async (last) => {
      session.stdin.end(`${last}\n`);
      assert.equal((await ended)[0], 0);
    };
  }

  async close() {
    this.process.kill("SIGQUIT");
    await this.ended;
    rmSync(this.folder, { recursive: true, force: true });
  }
}
