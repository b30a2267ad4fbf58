"""A client for gapless: publish, follow, and work in groups, with asyncio and nothing else."""

from .client import Client
from .consumer import Consumer, ConsumerOptions, GiveUp, Handler, Report, RetryLater
from .errors import (
    BatchError,
    Fate,
    FollowEndedError,
    GaplessError,
    Problem,
    ProtocolError,
    RefusedError,
    TimedOutError,
    TransportError,
)
from .follow import Event, Follower
from .groups import DeadLetter, Fetched, Letters, Member, Redriven, Settled
from .messages import (
    Ack,
    Durability,
    Gap,
    GapReason,
    LeasedMessage,
    Live,
    Message,
    NewMessage,
    Range,
    Recovering,
    Scheduled,
    Skipped,
)
from .settings import Group, GroupSettings, Topic, TopicSettings

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "BatchError",
    "Client",
    "Consumer",
    "ConsumerOptions",
    "DeadLetter",
    "Durability",
    "Event",
    "Fate",
    "Fetched",
    "FollowEndedError",
    "Follower",
    "Gap",
    "GapReason",
    "GaplessError",
    "GiveUp",
    "Group",
    "GroupSettings",
    "Handler",
    "LeasedMessage",
    "Letters",
    "Live",
    "Member",
    "Message",
    "NewMessage",
    "Problem",
    "ProtocolError",
    "Range",
    "Recovering",
    "Redriven",
    "RefusedError",
    "Report",
    "RetryLater",
    "Scheduled",
    "Settled",
    "Skipped",
    "TimedOutError",
    "Topic",
    "TopicSettings",
    "TransportError",
]
