"""Asks whether a machine has a role whose credentials cannot be had just now.

botocore treats a metadata service of the machine that fails as one that does not exist, and then says that
there are no credentials.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session

_ENDPOINT: Final = "http://169.254.169.254"
_TOKEN: Final = "latest/api/token"
_ROLES: Final = "latest/meta-data/iam/security-credentials/"
_ANSWER_SECONDS: Final = 1.0  # as in botocore
_KEPT_SECONDS: Final = 1.0
_OK: Final = 200
_TOO_MANY: Final = 429
_FAILS: Final = 500


class MachineRole:
    """The metadata service of the machine, with its last answer. Several threads can share one object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: tuple[float, bool] | None = None

    def is_down(self) -> bool:
        """Return True if there is a metadata service, and it fails."""
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "false").lower() == "true":
            return False
        with self._lock:
            if self._asked is None or time.monotonic() - self._asked[0] > _KEPT_SECONDS:
                found = _fails()
                self._asked = (time.monotonic(), found)
            return self._asked[1]


def _fails() -> bool:
    root = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _ENDPOINT).rstrip("/")
    session = URLLib3Session(timeout=_ANSWER_SECONDS, proxies={})
    asked, headers = [("PUT", _TOKEN), ("GET", _ROLES)], {"x-aws-ec2-metadata-token-ttl-seconds": "60"}
    try:
        for method, path in asked:
            answer = session.send(AWSRequest(method, f"{root}/{path}", headers=headers).prepare())
            status, text = answer.status_code, answer.text.strip()
            if status == _TOO_MANY or status >= _FAILS:
                return True
            if path == _TOKEN and status == _OK:
                headers = {"x-aws-ec2-metadata-token": text}
            if path == _ROLES and status == _OK and text:
                asked.append(("GET", f"{_ROLES}{text.splitlines()[0]}"))
    except BotoCoreError:  # nobody answers at this address
        return False
    finally:
        session.close()
    return False
