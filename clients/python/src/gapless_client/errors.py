"""What can go wrong, and what became of the request.

Every error is a `GaplessError` and says in `fate` whether the request had an effect: `"did not
happen"` or `"unknown"`. After `"unknown"` only a message id makes it safe to send again; `publish`
does that by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, Sequence, Union

Fate = Literal["did not happen", "unknown"]

DID_NOT_HAPPEN: Fate = "did not happen"
UNKNOWN: Fate = "unknown"


@dataclass(frozen=True)
class Problem:
    """A problem document (RFC 9457) as the server sent it."""

    status: int
    code: int
    name: str
    title: str
    detail: str
    fate: Fate
    #: Further members, such as `actual` of `ExpectedSeq`.
    facts: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(status: int, members: Mapping[str, Any]) -> "Problem":
        known = {"type", "status", "code", "name", "title", "detail", "fate"}
        return Problem(
            status=int(members.get("status", status)),
            code=int(members.get("code", 0)),
            name=str(members.get("name", "Unknown")),
            title=str(members.get("title", "")),
            detail=str(members.get("detail", "")),
            # A document without a fate comes from a proxy, which knows nothing of it.
            fate=DID_NOT_HAPPEN if members.get("fate") == DID_NOT_HAPPEN else UNKNOWN,
            facts={name: value for name, value in members.items() if name not in known},
        )


class GaplessError(Exception):
    """The base of all errors of this package."""

    def __init__(self, message: str, fate: Fate) -> None:
        super().__init__(message)
        self.fate: Fate = fate


class RefusedError(GaplessError):
    """The server refused the request; `problem` says why, `problem.name` is the kind."""

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        super().__init__(f"{problem.name}: {problem.detail or problem.title}", problem.fate)
        self.problem = problem
        #: Seconds after which the server says a second attempt makes sense.
        self.retry_after = retry_after


class TransportError(GaplessError):
    """No connection, or the connection ended before the answer was complete."""


class TimedOutError(TransportError):
    """No answer in time."""


class ProtocolError(GaplessError):
    """The answer is not what the protocol says; the other side may not be gapless."""


class FollowEndedError(GaplessError):
    """A follower cannot go on: its topic was deleted."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail or f"the stream ended with error {code}", DID_NOT_HAPPEN)
        self.code = code


class BatchError(GaplessError):
    """Some messages of a batch were not acknowledged; `outcomes` has an entry for each message.

    An entry is the acknowledgement, or the error of that message.
    """

    def __init__(self, outcomes: Sequence[Union["object", GaplessError]]) -> None:
        failed = [each for each in outcomes if isinstance(each, GaplessError)]
        unknown = any(each.fate == UNKNOWN for each in failed)
        super().__init__(
            f"{len(failed)} of {len(outcomes)} messages were not acknowledged; first: {failed[0]}",
            UNKNOWN if unknown else DID_NOT_HAPPEN,
        )
        self.outcomes = outcomes
