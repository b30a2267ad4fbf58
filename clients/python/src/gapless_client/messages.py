"""What is published and what is read: messages, acknowledgements, and what is gone."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, Sequence, Union

from .errors import UNKNOWN, ProtocolError

Durability = Literal["memory", "written", "flushed"]
HeaderValue = Union[str, bytes]
#: A header has one value, or several.
Headers = Mapping[str, Union[HeaderValue, Sequence[HeaderValue]]]
GapReason = Literal["retention", "expiry", "purge", "epoch", "compaction", "slow", "deleted"]
Kind = Literal["json", "text", "bytes", "removal"]

JSON_TYPE = "application/json"


@dataclass(frozen=True)
class NewMessage:
    """A message to publish. A body that is `str` is sent as UTF-8.

    `NewMessage.of_json` creates one whose body is JSON, `NewMessage.removal` one that removes a key.
    """

    body: bytes | str | None
    key: str | bytes | None = None
    #: Sent again under the same id, a message is not stored again. One is chosen if it is None.
    id: str | None = None
    headers: Headers = field(default_factory=dict)
    #: How long it may be delivered.
    ttl_ms: int | None = None
    #: Publish only if this is the topic's last seq; 0 for none.
    expect_seq: int | None = None
    #: Publish only if this is the last seq of the key.
    expect_key_seq: int | None = None
    content_type: str | None = None

    def __post_init__(self) -> None:
        if self.body is None and self.key is None:
            raise ValueError("a message without a body removes its key, and so needs one")

    @staticmethod
    def of_json(
        value: Any,
        *,
        key: str | bytes | None = None,
        id: str | None = None,
        headers: Headers | None = None,
        ttl_ms: int | None = None,
        expect_seq: int | None = None,
        expect_key_seq: int | None = None,
    ) -> "NewMessage":
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return NewMessage(
            body, key, id, headers or {}, ttl_ms, expect_seq, expect_key_seq, JSON_TYPE
        )

    @staticmethod
    def removal(key: str | bytes, *, id: str | None = None) -> "NewMessage":
        return NewMessage(None, key, id)

    def body_bytes(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else self.body or b""

    def query(self, id: str) -> list[tuple[str, str | bytes | int | bool | None]]:
        """Everything but the body, for an address."""
        query: list[tuple[str, str | bytes | int | bool | None]] = [
            ("key", self.key),
            ("id", id),
            ("ttl_ms", self.ttl_ms),
            ("expect_seq", self.expect_seq),
            ("expect_key_seq", self.expect_key_seq),
            ("tombstone", True if self.body is None else None),
        ]
        for name, value in self.headers.items():
            for each in _values(value):
                raw = each.encode() if isinstance(each, str) else each
                query.append(("header", name.encode() + b"=" + raw))
        return query

    def line(self, id: str) -> bytes:
        """The message as a line of many."""
        members: dict[str, Any] = {"id": id, **_text_or_base64("key", self.key)}
        for name in ("ttl_ms", "expect_seq", "expect_key_seq"):
            if getattr(self, name) is not None:
                members[name] = getattr(self, name)
        headers: dict[str, Any] = {}
        for name, value in self.headers.items():
            shown = [each if isinstance(each, str) else _base64(each) for each in _values(value)]
            headers[name] = shown[0] if len(shown) == 1 else shown
        if self.content_type is not None:
            headers["content-type"] = self.content_type
        if headers:
            members["headers"] = headers
        if isinstance(self.body, str):
            members["text"] = self.body
        elif self.body is not None:
            members.update(_base64(self.body))
        return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True)
class Ack:
    """A message is stored, as safe as `durability` says."""

    topic: str
    seq: int
    #: Its place in the journal; None for a duplicate whose first is not known any more.
    position: int | None
    durability: Durability
    #: Whether a message of this id was there already; the numbers are its.
    duplicate: bool


@dataclass(frozen=True)
class Scheduled:
    """A message waits for its time; `delayed` cancels it."""

    topic: str
    delayed: int
    due_ms: int


@dataclass(frozen=True)
class Message:
    """A message as it is read. `value` is its body: JSON, text, bytes, or None if it removes a key."""

    topic: str
    seq: int
    position: int
    #: The place right behind it, to go on from.
    cursor: str
    time_ms: int
    kind: Kind
    value: Any
    key: str | bytes | None = None
    id: str | bytes | None = None
    ttl_ms: int | None = None
    headers: Mapping[str, Sequence[HeaderValue]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The body as text; JSON in its shortest form."""
        if self.kind == "json":
            return json.dumps(self.value, ensure_ascii=False, separators=(",", ":"))
        if self.kind == "text":
            return str(self.value)
        return self.data.decode()

    @property
    def data(self) -> bytes:
        """The body as bytes; nothing if it removes a key. JSON in its shortest form."""
        if self.kind == "bytes":
            return bytes(self.value)
        return b"" if self.kind == "removal" else self.text.encode()

    def json(self) -> Any:
        """The body as JSON, also if the publisher did not say that it is."""
        return self.value if self.kind == "json" else json.loads(self.text)


@dataclass(frozen=True)
class LeasedMessage(Message):
    """A message of a group, leased to a member."""

    #: 1 for the first delivery.
    attempt: int = 1
    #: What to name in ack, nack, extend and terminate.
    lease: str = ""


@dataclass(frozen=True)
class Gap:
    """Messages that will not come, and why. Numbers are None where they are not known."""

    reason: GapReason
    topic: str | None
    from_seq: int | None
    to_seq: int | None


@dataclass(frozen=True)
class Skipped:
    """Seqs that were compacted away or have expired."""

    topic: str
    from_seq: int
    to_seq: int


@dataclass(frozen=True)
class Recovering:
    """History is read from the disk, up to here; `by` is `seq`, or `position` for a pattern."""

    from_: int | None
    to: int | None
    by: str


@dataclass(frozen=True)
class Live:
    """History is done: what comes now is new."""

    cursor: str


@dataclass(frozen=True)
class Range:
    """A part of a topic."""

    messages: Sequence[Message]
    gaps: Sequence[Gap]
    #: Where to go on.
    cursor: str
    #: Whether there was more when this was read.
    more: bool


def ack_of(members: Mapping[str, Any]) -> Ack:
    return Ack(
        topic=members["topic"],
        seq=members["seq"],
        position=members["position"],
        durability=members["durability"],
        duplicate=members["duplicate"],
    )


def message_of(members: Mapping[str, Any]) -> Message:
    return Message(**_message_fields(members))


def leased_of(members: Mapping[str, Any]) -> LeasedMessage:
    fields = _message_fields(members)
    return LeasedMessage(**fields, attempt=members["attempt"], lease=members["lease"])


def gap_of(members: Mapping[str, Any], topic: str | None = None) -> Gap:
    return Gap(
        reason=members["reason"],
        topic=members.get("topic", topic),
        from_seq=members.get("from"),
        to_seq=members.get("to"),
    )


def body_of(members: Mapping[str, Any]) -> tuple[Kind, Any]:
    """What the body is, and the body."""
    if "json" in members:
        return "json", members["json"]
    if "text" in members:
        return "text", members["text"]
    if "base64" in members:
        return "bytes", _decode(members["base64"])
    return "removal", None


def text_or_bytes(members: Mapping[str, Any], name: str) -> str | bytes | None:
    if f"{name}_base64" in members:
        return _decode(members[f"{name}_base64"])
    value = members.get(name)
    return None if value is None else str(value)


def headers_of(members: Mapping[str, Any]) -> dict[str, list[HeaderValue]]:
    headers: dict[str, list[HeaderValue]] = {}
    for name, value in members.get("headers", {}).items():
        values = value if isinstance(value, list) else [value]
        headers[name] = [
            each if isinstance(each, str) else _decode(each["base64"]) for each in values
        ]
    return headers


def _message_fields(members: Mapping[str, Any]) -> dict[str, Any]:
    try:
        kind, value = body_of(members)
        return {
            "topic": members["topic"],
            "seq": members["seq"],
            "position": members["position"],
            "cursor": members["cursor"],
            "time_ms": members["time_ms"],
            "kind": kind,
            "value": value,
            "key": text_or_bytes(members, "key"),
            "id": text_or_bytes(members, "id"),
            "ttl_ms": members.get("ttl_ms"),
            "headers": headers_of(members),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"this is not a message: {error!r}", UNKNOWN) from error


def _values(value: HeaderValue | Sequence[HeaderValue]) -> Sequence[HeaderValue]:
    return [value] if isinstance(value, (str, bytes)) else value


def _text_or_base64(name: str, value: str | bytes | None) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {name: value}
    return {f"{name}_base64": base64.b64encode(value).decode()}


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
