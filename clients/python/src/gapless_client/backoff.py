"""How long to wait before the next attempt."""

from __future__ import annotations

import random

#: Seconds before the second attempt, about.
FIRST_SECS = 0.05
#: Seconds between attempts, at most, unless the server asks for more.
MOST_SECS = 2.0


class Backoff:
    """Waits that double, each between a half and the whole of it, so that clients spread."""

    def __init__(self) -> None:
        self._next = FIRST_SECS

    def reset(self) -> None:
        self._next = FIRST_SECS

    def secs(self, retry_after: float | None = None) -> float:
        wait, self._next = self._next, min(self._next * 2, MOST_SECS)
        return max(wait * random.uniform(0.5, 1.0), retry_after or 0.0)
