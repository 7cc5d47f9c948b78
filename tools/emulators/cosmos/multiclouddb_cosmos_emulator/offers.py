"""Models provisioned throughput: the offers, and the number of partitions that a throughput needs."""

from __future__ import annotations

from typing import Any, Final

import attrs
import orjson

from multiclouddb_cosmos_emulator.errors import bad_request
from multiclouddb_cosmos_emulator.ids import new_etag, offer_rid

__all__ = ["DEFAULT_THROUGHPUT", "Offer", "Throughput"]

_MOST_UNITS: Final = 10_000
_NEW_UNITS: Final = 6_000

DEFAULT_THROUGHPUT: Final = 400
_LEAST_AUTOSCALE: Final = 1_000


@attrs.frozen
class Throughput:
    """A provisioned throughput.

    Attributes:
        units: The request units per second; with autoscale, the maximum of the request units per second.
        autoscale: The client's autoscale settings; None for a fixed throughput.
    """

    units: int
    autoscale: dict[str, Any] | None = None

    @classmethod
    def of_headers(cls, fixed: str | None, autoscale: str | None) -> Throughput | None:
        """Return the throughput in the headers of a create request, or None if the headers contain none."""
        if autoscale is not None:
            return cls.of_content({"offerAutopilotSettings": _parsed(autoscale)})
        return None if fixed is None else cls.of_content({"offerThroughput": _parsed(fixed)})

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> Throughput:
        """Return the throughput in the content of an offer."""
        settings = content.get("offerAutopilotSettings")
        if isinstance(settings, dict):
            return cls(_least(settings.get("maxThroughput"), _LEAST_AUTOSCALE), settings)
        return cls(_least(content.get("offerThroughput"), DEFAULT_THROUGHPUT))

    @property
    def partitions(self) -> int:
        """Return the number of physical partitions that this throughput needs: 10,000 units are the most."""
        return -(-self.units // _MOST_UNITS)

    @property
    def new_partitions(self) -> int:
        """Return the number of partitions of a new container, which begin with at most 6,000 units each."""
        return 1 if self.units <= _MOST_UNITS else -(-self.units // _NEW_UNITS)


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise bad_request(f"The throughput {text!r} is not JSON.") from None


def _least(units: Any, least: int) -> int:
    if isinstance(units, int) and units < least:
        raise bad_request(f"Requested throughput {units} is less than required minimum throughput {least}.")
    if not isinstance(units, int) or isinstance(units, bool) or units % 100:
        raise bad_request(
            f"The throughput has to be a multiple of 100 and at least {least}, and {units!r} is not."
        )
    return units


class Offer:
    """The throughput of a database or a container.

    Args:
        resource: The `_self` of the resource to which the offer belongs.
        resource_rid: The resource id of this resource.
        throughput: The provisioned throughput.
    """

    def __init__(self, resource: str, resource_rid: str, throughput: Throughput) -> None:
        self.rid = offer_rid()
        self._resource, self._resource_rid = resource, resource_rid
        self.throughput = throughput
        self.etag = new_etag()

    def set(self, throughput: Throughput) -> None:
        """Provision a different throughput."""
        self.throughput, self.etag = throughput, new_etag()

    def document(self, ts: int) -> dict[str, Any]:
        """Return the offer as a JSON document."""
        content: dict[str, Any] = {
            "offerThroughput": self.throughput.units,
            "offerIsRUPerMinuteThroughputEnabled": False,
        }
        if self.throughput.autoscale is not None:
            # Autoscale always provisions at least this fraction of the maximum.
            content["offerThroughput"] = self.throughput.units // 10
            content["offerAutopilotSettings"] = self.throughput.autoscale
        return {
            "id": self.rid,
            "_rid": self.rid,
            "_self": f"offers/{self.rid}/",
            "_etag": self.etag,
            "_ts": ts,
            "offerVersion": "V2",
            "offerType": "Invalid",
            "resource": self._resource,
            "offerResourceId": self._resource_rid,
            "content": content,
        }
