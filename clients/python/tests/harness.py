"""The real server in a process of its own, and a network that fails on demand."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Awaitable, Callable

from gapless_client import Client

ROOT = Path(__file__).resolve().parents[3]
BINARY = os.environ.get("GAPLESS_BIN", str(ROOT / "target" / "debug" / "gapless"))
#: Longer than anything takes on a loaded machine; only a failing test waits for it.
DEADLINE_SECS = 60.0
#: How often a condition is looked at.
LOOK_SECS = 0.02


class Server:
    """A server on free ports and a folder of its own; it restarts on the same port."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="gapless-python-")
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            BINARY,
            "serve",
            *("--data", f"{self.folder}/data", "--json"),
            *("--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{self.port}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_SECS)
        self.port = int(json.loads(line)["http"].rsplit(":", 1)[1])

    async def kill(self) -> None:
        """kill -9, and waits for its end."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def close(self) -> None:
        await self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Network:
    """A way to the server that loses answers and cuts connections as it is set."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        #: How many answers are still to be lost: the request arrives, its answer does not.
        self.lose_answers = 0
        #: Bytes of answers after which each connection is cut; None for never.
        self.cut_after: int | None = None
        #: Whether new connections carry nothing back and stay open.
        self.silent = False
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        back = None
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._server.port)
            await asyncio.gather(self._forward(reader, back), self._answer(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            if back is not None:
                back.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent, passed = self.silent, 0
        while data := await reader.read(65536):
            if silent:
                continue
            if self.lose_answers > 0:
                self.lose_answers -= 1
                break
            if self.cut_after is not None and passed + len(data) >= self.cut_after:
                writer.write(data[: self.cut_after - passed])
                await writer.drain()
                writer.close()
                return
            passed += len(data)
            writer.write(data)
        writer.transport.abort()


class Case(unittest.IsolatedAsyncioTestCase):
    """A test with a server, a client of it, and a network between another client and it."""

    async def asyncSetUp(self) -> None:
        self.server = Server()
        await self.server.start()
        self.addAsyncCleanup(self.server.close)
        self.client = self.new_client()

    def new_client(self, url: str | None = None, **options: float) -> Client:
        client = Client(
            url or self.server.url,
            timeout=options.get("timeout", DEADLINE_SECS),
            silence_secs_max=options.get("silence_secs_max", 20.0),
        )
        self.addAsyncCleanup(client.aclose)
        return client

    async def new_network(self) -> Network:
        network = Network(self.server)
        await network.start()
        self.addAsyncCleanup(network.close)
        return network

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Waits for a condition outside this process."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_SECS
        while not await holds():
            self.assertLess(loop.time(), deadline, f"never: {what}")
            await asyncio.sleep(LOOK_SECS)
