"""How one call behaves, and what a provider adds to a request."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from multiclouddb_api.capability import Capability
from multiclouddb_api.check import at_least, is_a
from multiclouddb_api.codec import encode_json

__all__ = ["OperationOptions", "ProviderOptions"]


@attrs.frozen
class OperationOptions:
    """Time limits of one call.

    Attributes:
        timeout_seconds: For the whole call, retries included; more than 0, 30 by default. A call
            that made progress by then returns its page, one that made none raises
            `TRANSIENT_FAILURE`.
        wait_seconds: How long to wait for a first event before an empty page is returned (long
            poll); 0 by default: answer at once. Not more than `timeout_seconds` is waited.
    """

    timeout_seconds: float = attrs.field(
        default=30.0,
        validator=[is_a(int, float), at_least(0.001, "give the seconds that the whole call may take")],
    )
    wait_seconds: float = attrs.field(
        default=0.0, validator=[is_a(int, float), at_least(0, "use 0 to be answered at once")]
    )


@attrs.frozen
class ProviderOptions:
    """Base of the options that one provider understands; each provider has a frozen subclass.

    Fields whose metadata has `positions=True` change which changes a token stands for: a token
    made with one value is refused with another.
    """

    def position_digest(self) -> str:
        """A short text that differs when an option that changes positions does; empty for none."""
        values: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in attrs.fields(type(self))
            if field.metadata.get("positions") and getattr(self, field.name) != field.default
        }
        if not values:
            return ""
        return hashlib.sha256(encode_json(values)).hexdigest()[:12]

    def opts_into(self, capability: Capability) -> bool:
        """True when the caller has asked for this `EMULATED` capability; False by default.

        Args:
            capability: Which one.
        """
        del capability
        return False
