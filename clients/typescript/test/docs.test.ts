// Every example of the guide and of the READMEs is type-checked and runs against a real server.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { root, test, until } from "./harness.js";

const here = join(root, "clients", "typescript");

function examples(page: string): string[] {
  const text = readFileSync(join(root, page), "utf8");
  return [...text.matchAll(/^```ts\n(.*?)^```$/gms)].map((match) => match[1] ?? "");
}

const guide = examples("docs/typescript.md");
const folder = join(here, "build", "docs");

/** Type-checks all programs in the folder of the package, so that they import it by name. */
async function compile(): Promise<void> {
  const importing = 'import { Client } from "gapless-client";\n';
  const programs = {
    guide: guide.join("\n"),
    package: examples("clients/typescript/README.md").join("\n"),
    repository: importing + examples("README.md").join("\n"),
  };
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  for (const [name, program] of Object.entries(programs)) {
    writeFileSync(join(folder, `${name}.ts`), program);
  }
  const options = {
    extends: "../../test/tsconfig.json",
    compilerOptions: { rootDir: ".", outDir: ".", sourceMap: false },
    files: Object.keys(programs).map((name) => `${name}.ts`),
    include: [],
  };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(options));
  const tsc = join(here, "node_modules", "typescript", "bin", "tsc");
  const compiling = promisify(execFile)(process.execPath, [tsc, "--project", folder]);
  await compiling.catch((error: { stdout: string }) => assert.fail(error.stdout));
}
const compiled = compile();

/** The path of a program, with the address of the test's server in it. */
async function programFor(name: string, url: string): Promise<string> {
  await compiled;
  const path = join(folder, `${name}.js`);
  writeFileSync(path, readFileSync(path, "utf8").replaceAll("http://127.0.0.1:4280", url));
  return path;
}

test("every example of the guide runs", async ({ server, client }) => {
  assert.equal(guide.length, 7);
  const program = await programFor("guide", server.url);
  const running = spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = once(running, "exit");
  let printed = "";
  running.stdout.on("data", (data) => (printed += String(data)));
  // The example's consumer runs until it gets a signal: when its group has done everything.
  await until("the consumer has handled everything", async () => {
    if (running.exitCode !== null) return true;
    for await (const group of client.groups.list()) return group.lag === 0 && group.member_count === 1;
    return false;
  });
  running.kill("SIGTERM");
  assert.deepEqual(await ended, [0, null], printed);
  const lines = printed.split("\n");
  assert.deepEqual(lines.slice(0, 3), ["1 first", "2 flushed", "c0 text order 0"]);
  for (const line of ["502 1 1", "orders 16 1 no such article"]) assert.ok(lines.includes(line), printed);
  assert.match(lines.at(-2) ?? "", /^ExpectedSeq \d+ did not happen$/);
});

test("the example of the package's README runs", async ({ server }) => {
  const program = await programFor("package", server.url);
  const { stdout } = await promisify(execFile)(process.execPath, [program]);
  assert.equal(stdout, "1 first\n");
});

test("the lines of the repository's README run", async ({ server }) => {
  const program = await programFor("repository", server.url);
  const running = spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "inherit"] });
  let printed = "";
  running.stdout.on("data", (data) => (printed += String(data)));
  await until("it has printed the message", () => /seq: 1,/.test(printed));
  running.kill("SIGKILL");
});
