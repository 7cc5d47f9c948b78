"""Maps each failure of azure-cosmos or of the service to its category. The functions are pure."""

from __future__ import annotations

import re
from typing import Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.cosmos.exceptions import CosmosClientTimeoutError, CosmosHttpResponseError

from multiclouddb_api import ErrorCategory, ErrorReason, ResourceAddress
from multiclouddb_api.errors import DOCS_URL
from multiclouddb_spi import Fault, ProviderFault
from multiclouddb_spi.faults import (
    REPORT,
    START_ANEW,
    UNAVAILABLE,
    FaultRule,
    one_line,
    row_of_connection,
    row_of_status,
    unexpected,
)

PROVIDER_ID: Final = "cosmos"

BAD_REQUEST: Final = 400
GONE: Final = 410
TOO_MANY: Final = 429
_IDENTITY: Final = (401, 403)
_OF_TOKENS: Final = range(5300, 5400)
"""The substatuses with which the service refuses a request because of its Entra ID token."""
RECREATED: Final = 1024
"""The substatus of a 400 answer to a request that names an earlier container with the same name."""

_ENABLE: Final = (
    "enable continuous backup and then the account's setting enableAllVersionsAndDeletesChangeFeed; or, if "
    "you can do without deletes, intermediate versions and the difference between CREATE and UPDATE, read "
    "the latest versions with CosmosOptions(mode='latest') or with cosmos://…?mode=latest; for both, see "
    f"{DOCS_URL}databases/cosmos/#which-feed"
)
_WHO: Final = "check AZURE_COSMOS_KEY, or what azure-identity finds (az login, managed identity)"
_DENIED: Final = (
    f"grant the roles in {DOCS_URL}databases/cosmos/ to the identity, and check the account's firewall"
)
_RENEW: Final = (
    "a new token did not help, or there is none: compare the clock of this machine with the service's clock, "
    "and check what azure-identity finds; azure-core keeps an expired token, so if the CosmosClient is the "
    "application's own, make a new one"
)
_KEYLESS: Final = "Local Authorization is disabled"
"""What the service says if it accepts no keys, with the substatus 5202 or without one.

Azure/data-api-builder issue 1939, Azure/azure-cosmosdb-ads-extension issue 120.
"""
_METADATA: Final = "metadata requests"
_TRANSIENT: Final = "transient service error"
"""What the service says if it answers 429 for another reason than used-up request units.

https://learn.microsoft.com/azure/cosmos-db/troubleshoot-request-rate-too-large
"""
_MERGED: Final = "more than two children"
_SMALLER: Final = "Reduce page size"
_EXPIRED: Final = re.compile(r"token has (?:been )?expired")
_UNTIMELY: Final = "not valid at the current time"
_UNPROVEN: Final = "407 Proxy Authentication Required"

_NOT_FOUND: Final = FaultRule(ErrorCategory.NOT_FOUND, "check the account, the database and the container")
_DENIED_ROW: Final = FaultRule(ErrorCategory.AUTHORIZATION_FAILED, _DENIED)
# The service refuses an expired token, and an identity without the role, with the same substatuses.
_DENIED_TOKEN: Final = FaultRule(ErrorCategory.AUTHORIZATION_FAILED, _DENIED, renewable=True)
_EXPIRED_TOKEN: Final = FaultRule(ErrorCategory.AUTHENTICATION_FAILED, _RENEW, renewable=True)
_MOVED: Final = FaultRule(ErrorCategory.TRANSIENT_FAILURE, "a partition is being split or moved; try again")
_REFUSED: Final = FaultRule(
    ErrorCategory.INVALID_REQUEST,
    "if the request has a token or a partition id, pass it unchanged; if it does not help, report this",
)
_NETWORK: Final = FaultRule(
    ErrorCategory.TRANSIENT_FAILURE, "check the account's address and the network (proxy, private endpoint)"
)
_CLOCK: Final = FaultRule(
    ErrorCategory.AUTHENTICATION_FAILED,
    "set the clock of this machine, which differs too much from the service's clock",
    confidential=True,
)
_NO_KEYS: Final = FaultRule(
    ErrorCategory.AUTHENTICATION_FAILED,
    "the account accepts no keys: unset AZURE_COSMOS_KEY so that azure-identity finds an identity, or pass a "
    f"credential; and grant the roles in {DOCS_URL}databases/cosmos/ to the identity",
    confidential=True,
)
_PROXY: Final = FaultRule(
    ErrorCategory.AUTHENTICATION_FAILED,
    "a proxy asks for a user and a password; check the environment variables HTTPS_PROXY and NO_PROXY",
)
_MERGE_ROW: Final = FaultRule(
    ErrorCategory.PERMANENT_FAILURE,
    "the service cannot read all versions after partitions were merged; use a container without merges, or "
    "read the latest versions with CosmosOptions(mode='latest')",
)
_METADATA_ROW: Final = FaultRule(
    ErrorCategory.THROTTLED,
    "reads of definitions and of lists have a limit of their own, which more request units do not raise: "
    "keep clients open instead of making new ones, and list less often",
)
_TRANSIENT_ROW: Final = FaultRule(ErrorCategory.THROTTLED, "more request units do not help; try again")
_TOO_LARGE: Final = FaultRule(
    ErrorCategory.PROVIDER_ERROR,
    "the service cannot return one transaction even if a page of one item is asked for; " + REPORT,
)

# Maps a status and a substatus to their meaning. An entry without a substatus applies to all substatuses that
# have no entry.
_STATUSES: Final[dict[tuple[int, int | None], FaultRule]] = {
    (400, None): _REFUSED,
    # The text of this error may quote the signed request.
    (401, None): FaultRule(ErrorCategory.AUTHENTICATION_FAILED, _WHO, confidential=True, renewable=True),
    (403, None): _DENIED_ROW,
    (403, 3): UNAVAILABLE,
    (403, 1008): UNAVAILABLE,
    (404, None): _NOT_FOUND,
    (404, 1002): UNAVAILABLE,
    (404, 1013): UNAVAILABLE,
    (405, None): FaultRule(ErrorCategory.INVALID_REQUEST, REPORT),
    (407, None): _PROXY,
    (408, None): UNAVAILABLE,
    (409, None): FaultRule(ErrorCategory.CONFLICT, REPORT),
    (410, None): _MOVED,
    (412, None): FaultRule(ErrorCategory.CONFLICT, REPORT),
    (413, None): FaultRule(ErrorCategory.PROVIDER_ERROR, REPORT),
    (429, None): FaultRule(
        ErrorCategory.THROTTLED, "raise the container's request units, or read with fewer processes"
    ),
    (449, None): UNAVAILABLE,
    (500, None): UNAVAILABLE,
    (503, None): UNAVAILABLE,
}


def code_of(error: CosmosHttpResponseError) -> tuple[int, int]:
    """Return the status and the substatus; a missing number is returned as 0."""
    return int(error.status_code or 0), int(error.sub_status or 0)


def is_disabled(error: CosmosHttpResponseError) -> bool:
    """Return True if the account does not offer the feed with all versions and deletes."""
    text = _text(error)
    return error.status_code == BAD_REQUEST and "must be enabled" in text and "All Versions" in text


def asks_for_less(error: CosmosHttpResponseError) -> bool:
    """Return True if the service cannot keep the items of a transaction together on so large a page."""
    # It has no substatus of its own; the vendor's readers compare the text too.
    return error.status_code == BAD_REQUEST and _SMALLER in _text(error)


def not_enabled() -> ProviderFault:
    """Make the fault for an account that does not offer the feed with all versions and deletes."""
    return ProviderFault.of(
        ErrorCategory.INVALID_REQUEST,
        f"the account has no change feed with all versions and deletes; {_ENABLE}",
        reason=ErrorReason.NOT_PROVISIONED,
    )


def recreated(address: ResourceAddress) -> ProviderFault:
    """Make the fault for a container that was replaced by another container with the same name."""
    return ProviderFault.of(
        ErrorCategory.INVALID_REQUEST,
        f"container {address.collection!r} was deleted and recreated; {START_ANEW}",
        f"{BAD_REQUEST}/{RECREATED}",
        reason=ErrorReason.RECREATED,
    )


def classify(error: Exception, *, vendor_retried: bool = False) -> Fault:
    """Classify a failure."""
    name = type(error).__name__
    match error:
        case CosmosClientTimeoutError():
            row, said = UNAVAILABLE, "azure-cosmos found no answer in time"
        case CosmosHttpResponseError():
            return _answered(error, vendor_retried)
        case ClientAuthenticationError():
            row, said = FaultRule(ErrorCategory.AUTHENTICATION_FAILED, _WHO, confidential=True), name
        case ServiceRequestError() | ServiceResponseError():
            said = one_line(f"{name}: {error}")
            row = _PROXY if _UNPROVEN in said else row_of_connection(error) or _NETWORK
        case DecodeError():
            row, said = UNAVAILABLE, "the service's answer was incomplete or damaged"
        case RecursionError():
            row, said = _MOVED, "azure-cosmos retried without end"
        case OSError() | AzureError():
            row, said = UNAVAILABLE, one_line(f"{name}: {error}")
        case _:
            return unexpected(error)
    return row.fault(said, name, vendor_retried=vendor_retried)


def _answered(error: CosmosHttpResponseError, vendor_retried: bool) -> Fault:
    if is_disabled(error):
        return not_enabled().fault
    status, substatus = code_of(error)
    text = _text(error)
    row = _STATUSES.get((status, substatus)) or _STATUSES.get((status, None)) or row_of_status(status)
    if row is None:  # a status below 400 does not come from Cosmos DB, but for example from a proxy
        row = _NETWORK if status < BAD_REQUEST else FaultRule(ErrorCategory.PERMANENT_FAILURE, REPORT)
    if status >= 500 and _MERGED in text:
        row = _MERGE_ROW
    if asks_for_less(error):
        row = _TOO_LARGE
    if status == TOO_MANY and _METADATA in text:
        row = _METADATA_ROW
    elif status == TOO_MANY and _TRANSIENT in text:
        row = _TRANSIENT_ROW
    if status in _IDENTITY and _UNTIMELY in text:
        row = _CLOCK
    if status in _IDENTITY and _KEYLESS in text:
        row = _NO_KEYS
    if status in _IDENTITY and _EXPIRED.search(text):
        row = _EXPIRED_TOKEN
    elif row is _DENIED_ROW and substatus in _OF_TOKENS:
        row = _DENIED_TOKEN
    said = "" if row.confidential else one_line(text)
    code = f"{status}/{substatus}" if substatus else str(status)
    return row.fault(
        f"Cosmos DB answered {code}" + (f" ({said})" if said else ""),
        code,
        retry_after=retry_after(error),
        vendor_retried=vendor_retried,
    )


def _text(error: CosmosHttpResponseError) -> str:
    return str(getattr(error, "http_error_message", None) or error.message or "")


def retry_after(error: CosmosHttpResponseError) -> float | None:
    """Return the number of seconds that the service asked the client to wait."""
    headers = getattr(error, "headers", None) or {}
    try:
        return max(0.0, float(headers.get("x-ms-retry-after-ms", "")) / 1000)
    except ValueError:
        return None
