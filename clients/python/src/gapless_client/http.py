"""HTTP/1.1 over asyncio streams: requests on kept connections, and streams of bytes.

The rule it keeps: an error says whether the request can have reached the server. Before the first
byte is written it "did not happen", after it its fate is "unknown". Nothing is sent twice here;
that is decided by those who know whether it is safe (`client.py`).
"""

from __future__ import annotations

import asyncio
import json
import ssl as tls
from dataclasses import dataclass
from typing import Any, Iterable, Mapping
from urllib.parse import quote_from_bytes, urlsplit

from .errors import (
    DID_NOT_HAPPEN,
    UNKNOWN,
    Fate,
    Problem,
    ProtocolError,
    RefusedError,
    TimedOutError,
    TransportError,
)

#: Bytes of the status line and headers of an answer, at most.
HEAD_BYTES_MAX = 64 * 1024
#: Bytes of an answer that is read whole, at most.
ANSWER_BYTES_MAX = 256 * 1024 * 1024
#: Bytes that are read from a socket at once, at most.
READ_BYTES_MAX = 64 * 1024
#: Seconds after which an idle connection is not used again: the server may be closing it.
IDLE_SECS_MAX = 4.0
#: Idle connections that are kept, at most.
IDLE_CONNECTIONS_MAX = 16

QueryValue = str | bytes | int | bool
Query = Iterable[tuple[str, QueryValue | None]]


@dataclass(frozen=True)
class Answer:
    """An answer that was read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ProtocolError(f"the answer is not JSON: {error}", UNKNOWN) from error


def path_of(*tokens: str) -> str:
    """A path whose tokens are percent-encoded."""
    return "/" + "/".join(quote_from_bytes(token.encode(), safe="") for token in tokens)


def encode_query(query: Query) -> str:
    pairs: list[str] = []
    for name, value in query:
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"
        raw = value if isinstance(value, bytes) else str(value).encode()
        pairs.append(f"{name}={quote_from_bytes(raw, safe='')}")
    return "&".join(pairs)


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> RefusedError:
    """The error that an answer with this status stands for."""
    try:
        members = json.loads(body)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        # A proxy answered: what it sent says nothing about the request.
        members = {"title": f"HTTP {status}", "detail": body[:200].decode("utf-8", "replace")}
    after = headers.get("retry-after", "")
    return RefusedError(Problem.parse(status, members), float(after) if after.isdigit() else None)


class Transport:
    """Where the server is, and the connections to it."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        requests_max: int,
        ssl: tls.SSLContext | None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https address")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"{url!r} has more than a host, a port and a path")
        secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if secure else 80)
        self._ssl = (ssl or tls.create_default_context()) if secure else None
        self._prefix = parts.path.rstrip("/")
        lines = [f"Host: {parts.netloc}", "User-Agent: gapless-client-python"]
        if token is not None:
            if not token or any(not "!" <= char <= "~" for char in token):
                raise ValueError("a token has visible ASCII characters only")
            lines.append(f"Authorization: Bearer {token}")
        self._fixed = "\r\n".join(lines)
        self._slots = asyncio.Semaphore(requests_max)
        self._idle: list[tuple[float, _Connection]] = []
        self._streams: set[Stream] = set()
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: bytes | None = None,
        content_type: str | None = None,
        accept: str = "application/json",
        timeout: float,
    ) -> Answer:
        """One request and its answer; raises `RefusedError` for a status from 400 on."""
        attempt = _Attempt()
        head = self._head(method, path, query, body, content_type, accept)
        try:
            answer = await asyncio.wait_for(self._exchange(attempt, method, head, body), timeout)
        except asyncio.TimeoutError as error:
            what = f"{method} {path}: no answer within {timeout:g} s"
            raise TimedOutError(what, attempt.fate) from error
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            what = f"{method} {path}: {error or type(error).__name__}"
            raise TransportError(what, attempt.fate) from error
        if answer.status >= 400:
            raise refusal(answer.status, answer.headers, answer.body)
        return answer

    async def stream(self, path: str, *, query: Query, accept: str, timeout: float) -> "Stream":
        """Opens an answer without end on a connection of its own."""
        head = self._head("GET", path, query, None, None, accept)
        try:
            return await asyncio.wait_for(self._open_stream(head), timeout)
        except asyncio.TimeoutError as error:
            what = f"GET {path}: no answer within {timeout:g} s"
            raise TimedOutError(what, DID_NOT_HAPPEN) from error
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            what = f"GET {path}: {error or type(error).__name__}"
            raise TransportError(what, DID_NOT_HAPPEN) from error

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.abort()
        for stream in list(self._streams):
            stream.close()

    def _head(
        self,
        method: str,
        path: str,
        query: Query,
        body: bytes | None,
        content_type: str | None,
        accept: str,
    ) -> bytes:
        text = encode_query(query)
        target = self._prefix + path + (f"?{text}" if text else "")
        lines = [f"{method} {target} HTTP/1.1", self._fixed, f"Accept: {accept}"]
        if body is not None or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body or b'')}")
        if content_type is not None:
            if any(not " " <= char <= "~" for char in content_type):
                raise ValueError("a content type has printable ASCII characters only")
            lines.append(f"Content-Type: {content_type}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")

    async def _exchange(
        self, attempt: "_Attempt", method: str, head: bytes, body: bytes | None
    ) -> Answer:
        async with self._slots:
            connection = self._take_idle() or await self._connect()
            keep = False
            try:
                attempt.fate = UNKNOWN
                # The whole request goes into the transport's buffer, so the answer is read while
                # it is being sent: the server answers lines before it has read the last.
                connection.writer.write(head + (body or b""))
                status, headers = await connection.read_head()
                if method == "HEAD" or status in (204, 304):
                    content = b""
                else:
                    content = await connection.read_body(headers)
                keep = headers.get("connection", "").lower() != "close"
                return Answer(status, headers, content)
            finally:
                self._give_back(connection, keep)

    async def _open_stream(self, head: bytes) -> "Stream":
        connection = await self._connect()
        opened = False
        try:
            connection.writer.write(head)
            status, headers = await connection.read_head()
            if status != 200:
                raise refusal(status, headers, await connection.read_body(headers))
            opened = True
            chunked = headers.get("transfer-encoding", "").lower() == "chunked"
            stream = Stream(connection, chunked, self._streams)
            self._streams.add(stream)
            return stream
        finally:
            if not opened:
                connection.abort()

    async def _connect(self) -> "_Connection":
        if self._closed:
            raise TransportError("the client is closed", DID_NOT_HAPPEN)
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._ssl, limit=HEAD_BYTES_MAX
        )
        return _Connection(reader, writer)

    def _take_idle(self) -> "_Connection | None":
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, connection = self._idle.pop()
            if now - since < IDLE_SECS_MAX and connection.is_usable():
                return connection
            connection.abort()
        return None

    def _give_back(self, connection: "_Connection", keep: bool) -> None:
        if keep and not self._closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.abort()


class _Attempt:
    """What is known about one attempt while it runs."""

    def __init__(self) -> None:
        self.fate: Fate = DID_NOT_HAPPEN


class _Connection:
    """A connection, and how answers are read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def is_usable(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        while True:
            raw = await self.reader.readuntil(b"\r\n\r\n")
            lines = raw.decode("latin-1").split("\r\n")
            words = lines[0].split(" ", 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise ProtocolError(f"this is not HTTP: {lines[0][:80]!r}", UNKNOWN)
            headers: dict[str, str] = {}
            for line in lines[1:-2]:
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
            status = int(words[1])
            if status >= 200:
                return status, headers

    async def read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._read_chunks()
        length = headers.get("content-length")
        if length is None:
            raise ProtocolError("the answer has no length", UNKNOWN)
        return await self.reader.readexactly(_within_limit(int(length)))

    async def _read_chunks(self) -> bytes:
        decoder, whole = _Chunks(), bytearray()
        while not decoder.done:
            # One line or less at a time, so nothing behind the answer is taken.
            need = decoder.need
            raw = await (self.reader.readexactly(need) if need else self.reader.readuntil(b"\n"))
            whole += decoder.feed(raw)
            _within_limit(len(whole))
        return bytes(whole)


class Stream:
    """The body of an answer without end."""

    def __init__(self, connection: _Connection, chunked: bool, open_: "set[Stream]") -> None:
        self._connection = connection
        self._chunks = _Chunks() if chunked else None
        self._open = open_

    async def read(self, silence_secs_max: float) -> bytes:
        """The next bytes; `b""` when the stream has ended.

        When nothing comes for so long, the connection is closed and the stream ends. A
        call that is cancelled loses nothing.
        """
        loop = asyncio.get_running_loop()
        while True:
            timer = loop.call_later(silence_secs_max, self.close)
            try:
                raw = await self._connection.reader.read(READ_BYTES_MAX)
            except OSError:
                return b""
            finally:
                timer.cancel()
            if not raw or self._chunks is None:
                return raw
            data = self._chunks.feed(raw)
            if data or self._chunks.done:
                return data

    def close(self) -> None:
        self._open.discard(self)
        self._connection.abort()


class _Chunks:
    """Takes chunked transfer encoding apart, in whatever pieces it arrives."""

    def __init__(self) -> None:
        self.done = False
        #: Bytes of the present chunk, with the line end behind it, that have not come.
        self.need = 0
        self._line = bytearray()
        self._last = False

    def feed(self, raw: bytes) -> bytes:
        out = bytearray()
        at = 0
        while at < len(raw) and not self.done:
            if self.need:
                piece = raw[at : at + self.need]
                # The last two bytes of `need` are the line end.
                body = max(0, min(len(piece), self.need - 2))
                out += piece[:body]
                self.need -= len(piece)
                at += len(piece)
                continue
            end = raw.find(b"\n", at)
            stop = len(raw) if end < 0 else end + 1
            self._line += raw[at:stop]
            at = stop
            if len(self._line) > HEAD_BYTES_MAX:
                raise ProtocolError("a line of a chunked answer is too long", UNKNOWN)
            if end >= 0:
                self._take_line()
        return bytes(out)

    def _take_line(self) -> None:
        line, self._line = bytes(self._line).strip(), bytearray()
        if self._last:
            # Trailers, which end with an empty line.
            self.done = not line
            return
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise ProtocolError("a chunk of the answer has no size", UNKNOWN) from error
        if size == 0:
            self._last = True
        else:
            self.need = _within_limit(size) + 2


def _within_limit(size: int) -> int:
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise ProtocolError(f"an answer has more than {ANSWER_BYTES_MAX} bytes", UNKNOWN)
    return size
