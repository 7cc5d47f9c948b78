"""The log of the changes, which a server cuts when it has grown too long."""

import time
from collections.abc import Callable
from typing import Final

_LOOKS: Final = 15
_PAUSE: Final = 0.01
_SECONDS: Final = 180


def wait_uncut(beginning: Callable[[], object]) -> None:
    """Wait until a server that has begun to cut its log has come to the end of that.

    It cuts an entry every few milliseconds. Looks are counted, not seconds: while a server has no time for
    its log, it has none for them either.

    Args:
        beginning: Asks the server what the log begins with.

    Raises:
        TimeoutError: It is cut without end.
    """
    found, looks, until = beginning(), 0, time.monotonic() + _SECONDS
    while looks < _LOOKS:
        if time.monotonic() > until:
            raise TimeoutError(f"the log is still cut after {_SECONDS} s")
        time.sleep(_PAUSE)
        before, found = found, beginning()
        looks = looks + 1 if found == before else 0
