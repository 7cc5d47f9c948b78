"""Defines the time limits of one call, and the base class of a provider's options."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from multiclouddb_api.capability import Capability
from multiclouddb_api.codec import encode_json
from multiclouddb_api.validators import at_least, check_type, is_a

__all__ = ["OperationOptions", "ProviderOptions"]


@attrs.frozen
class OperationOptions:
    """Defines the time limits of one call."""

    timeout_seconds: float = attrs.field(
        default=30.0,
        validator=[is_a(int, float), at_least(0.001, "give the seconds that the whole call may take")],
    )
    """The time limit of the whole call in seconds, including retries. The limit must be greater than 0; the
    default is 30. When this time has passed, a call that has made progress returns its page. A call without
    progress raises `TRANSIENT_FAILURE`."""
    wait_seconds: float = attrs.field(
        default=0.0, validator=[is_a(int, float), at_least(0, "use 0 to get an answer at once")]
    )
    """How long to wait for a first event before returning an empty page (long poll), in seconds. With 0, the
    default, the call does not wait. The wait is never longer than `timeout_seconds`."""


@attrs.frozen
class ProviderOptions:
    """The base class of a provider's options; each provider has a frozen subclass.

    A field whose metadata contains `positions=True` changes what a position means. A token is
    refused if it was made with a different value of a field with `positions=True`.
    """

    def position_digest(self) -> str:
        """Return a digest of the options that change positions.

        The digest is empty if all of these options have their default values.
        """
        values: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in attrs.fields(type(self))
            if field.metadata.get("positions") and getattr(self, field.name) != field.default
        }
        if not values:
            return ""
        return hashlib.sha256(encode_json(values)).hexdigest()[:12]

    def opts_into(self, capability: Capability) -> bool:
        """Return whether the caller has opted into this `EMULATED` capability; False by default.

        Args:
            capability: The capability.
        """
        check_type("capability", capability, Capability)
        return False
