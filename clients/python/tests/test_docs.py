"""Every example of the guide and of the package's README runs against a real server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import sys
from typing import Any

from gapless_client import Client, Message

from .harness import DEADLINE_SECS, ROOT, Case

DEFAULT_URL = "http://127.0.0.1:4280"


def examples(page: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Docs(Case):
    async def run_program(self, program: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", program.replace(DEFAULT_URL, self.server.url)),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), DEADLINE_SECS)
        self.assertEqual(process.returncode, 0, program)
        return out.decode()

    async def stop_consumers(self, snippet: str) -> None:
        """Sends the signal that an example waits for, when its group has done everything."""
        if "SIGTERM" not in snippet:
            return

        async def is_done() -> bool:
            groups = [each async for each in self.client.groups()]
            return bool(groups) and groups[0]["lag"] == 0 and groups[0]["member_count"] == 1

        await self.until("the consumer has handled everything", is_done)
        os.kill(os.getpid(), signal.SIGTERM)

    async def test_every_example_of_the_guide_runs(self) -> None:
        program, *snippets = examples("docs/python.md")
        self.assertEqual(await self.run_program(program), "1 first\n")
        self.assertEqual(len(snippets), 6)
        printed: list[str] = []
        names: dict[str, Any] = {
            "client": self.client,
            "print": lambda *values: printed.append(" ".join(map(str, values))),
        }
        for snippet in snippets:
            code = compile(snippet, "docs/python.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)
            if inspect.isawaitable(running):
                stopping = asyncio.create_task(self.stop_consumers(snippet))
                await asyncio.wait_for(running, DEADLINE_SECS)
                await stopping
        self.assertEqual(printed[0], "2 flushed")
        self.assertIn("orders 16 1 no such article", printed)
        self.assertRegex(printed[-1], r"^ExpectedSeq \d+ did not happen$")
        # The report of the consumer: one message was retried, one was given up.
        self.assertIn("502 1 1", printed)

    async def test_the_lines_of_the_repository_readme_run(self) -> None:
        class Enough(Exception):
            pass

        def print_once(event: Message) -> None:
            self.assertEqual((event.seq, event.text), (1, "first"))
            raise Enough

        (lines,) = examples("README.md")
        lines = lines.replace(DEFAULT_URL, self.server.url)
        code = compile(lines, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with self.assertRaises(Enough):
            await eval(code, {"Client": Client, "print": print_once})

    async def test_the_example_of_the_readme_runs(self) -> None:
        (program,) = examples("clients/python/README.md")
        self.assertEqual(await self.run_program(program), "1 first\n")
