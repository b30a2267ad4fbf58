"""Topics and groups as the server describes them, by the names of the HTTP API."""

from __future__ import annotations

from typing import Literal, Optional, Sequence, TypedDict, Union

from .messages import Durability, GapReason


class Retention(TypedDict, total=False):
    age_ms: Optional[int]
    bytes: Optional[int]
    count: Optional[int]


class Compaction(TypedDict):
    tombstone_grace_ms: int


class Dedup(TypedDict, total=False):
    time_ms: int
    count: int


class TopicSettings(TypedDict, total=False):
    """Settings of a topic. What is not named stays as it is; None is the default."""

    storage: Literal["durable", "volatile"]
    durability: Optional[Durability]
    retention: Optional[Retention]
    compaction: Union[Compaction, bool, None]
    dedup: Optional[Dedup]
    delivery: Optional[Literal["at-most-once", "at-least-once"]]
    partition: Optional[Literal["delay-queue", "drop"]]
    require_subscribers: Optional[bool]
    max_message_bytes: Optional[int]


class Topic(TypedDict):
    name: str
    id: int
    #: The first seq that can be read.
    first: int
    #: The next seq.
    next: int
    #: Bytes kept, about.
    bytes: int
    settings: TopicSettings


class Retry(TypedDict, total=False):
    """Waits between attempts: `steps_ms` lists them, or they grow from `first_ms`."""

    steps_ms: Sequence[int]
    first_ms: int
    factor: int
    most_ms: int
    jitter_percent: int


class GroupSettings(TypedDict, total=False):
    """Settings of a group. A new one needs a `source`."""

    source: str
    mode: Literal["shared", "keyed", "ordered"]
    start: str
    lease_ms: Optional[int]
    attempts_max: Optional[int]
    retry: Optional[Retry]
    dead_letters: Optional[bool]
    on_gap: Optional[Literal["stop", "continue"]]
    in_flight_max: Optional[int]
    member_in_flight_max: Optional[int]
    open_max: Optional[int]
    durability: Optional[Durability]


GroupGap = TypedDict(
    "GroupGap",
    {
        "topic": Optional[str],
        "from": Optional[int],
        "to": Optional[int],
        "reason": GapReason,
    },
)


class GroupMember(TypedDict):
    id: int
    name: str
    window: int
    in_flight: int
    active: bool


class GroupTotals(TypedDict):
    """Counts since the server started."""

    delivered: int
    redelivered: int
    acked: int
    nacked: int
    expired: int
    buried: int
    dropped: int
    lost: int


class Group(TypedDict):
    id: int
    name: str
    source: str
    mode: Literal["shared", "keyed", "ordered"]
    #: `stopped`: by a gap, until it is resumed or reset.
    state: Literal["running", "paused", "stopped"]
    #: Why it does not move, or that it does.
    why: str
    lag: int
    lag_exact: bool
    in_flight: int
    ready: int
    waiting: int
    parked: int
    oldest_age_ms: Optional[int]
    next_retry_ms: Optional[int]
    redelivered: int
    dead_letters: int
    member_count: int
    floor: int
    frontier: int
    gap: Optional[GroupGap]
    redriving: bool
    totals: GroupTotals
    members: Sequence[GroupMember]
    settings: GroupSettings
