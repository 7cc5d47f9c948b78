"""Says which keys are compared: all, one of N, those of a list, or those of one partition key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from multiclouddb_api import MulticloudDbKey, encode_json, invalid_request
from multiclouddb_verify.texts import digests_of

__all__ = ["Chosen", "chosen_by"]

_ENDS: Final = (",", "}")


@attrs.define
class Chosen:
    """The keys that are compared.

    Attributes:
        sample: N to compare one of N keys; None for all.
        keys: The keys to compare; None for all.
        partition_key: The partition key, or its first components, whose keys are compared; None for all.
        texts: The texts of `keys` as a sink writes them. Only the source knows them, so `Sides.read_keys`
            replaces what the caller has spelled otherwise.
        prefix: The beginning of the texts of the keys with `partition_key`, as a sink writes them.
    """

    sample: int | None = None
    keys: Sequence[MulticloudDbKey] | None = None
    partition_key: MulticloudDbKey | None = None
    texts: frozenset[str] = frozenset()
    prefix: str = ""

    def __attrs_post_init__(self) -> None:
        if self.keys is not None:
            self.texts = frozenset(text_of(key.components) for key in self.keys)
        if self.partition_key is not None:
            self.prefix = text_of(self.partition_key.components)[:-1]

    @property
    def is_part(self) -> bool:
        """Return whether only the keys of a list or of a partition key are compared."""
        return self.keys is not None or self.partition_key is not None

    @property
    def is_all(self) -> bool:
        """Return whether every key of the table is compared."""
        return self.sample is None and not self.is_part

    def of(self, texts: Sequence[str], hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each key whether it is compared.

        Args:
            texts: The texts of the keys; they are only looked at with `keys` or `partition_key`.
            hashes: Their hashes.
        """
        if self.keys is not None:
            return np.isin(hashes, digests_of([text.encode() for text in self.texts]))
        if self.partition_key is not None:
            return np.fromiter(map(self._has_prefix, texts), np.bool_, len(hashes))
        return np.ones(len(hashes), np.bool_) if self.sample is None else hashes % self.sample == 0

    def _has_prefix(self, text: str) -> bool:
        return text.startswith(self.prefix) and text[len(self.prefix) :].startswith(_ENDS)

    def spell(self, key: MulticloudDbKey) -> None:
        """Take the spelling of the partition key from a key that the source has delivered."""
        assert self.partition_key is not None
        names = self.partition_key.components
        self.prefix = text_of({name: key.components[name] for name in names})[:-1]

    def told(self, scanned: int, absent: int) -> str | None:
        """Return what was compared, for the report; None if it was everything.

        Args:
            scanned: The number of keys that the source has.
            absent: The number of `keys` that neither side has.
        """
        if self.keys is not None:
            nowhere = f"; neither side has {absent:,} of them, so check their spelling" if absent else ""
            count = "1 key was" if len(self.texts) == 1 else f"{len(self.texts):,} keys were"
            return f"{count} compared, and no others{nowhere}"
        if self.partition_key is not None:
            nowhere = "" if scanned else "; the source has none, so check the spelling"
            return f"only the keys of one partition key were compared{nowhere}"
        if self.sample is not None:
            return (
                f"1/{self.sample} of the keys were compared; a difference in one key alone is found with a "
                f"probability of 1/{self.sample}"
            )
        return None

    @property
    def identity(self) -> str | None:
        """A text that is another one for other keys or another partition key, and shows none of them."""
        if not self.is_part:
            return None
        return f"{sorted(digests_of([each.encode() for each in (*self.texts, self.prefix)]).tolist())}"


def text_of(components: Mapping[str, Any]) -> str:
    """Return the text of a key."""
    return encode_json(components).decode()


def chosen_by(settings: Mapping[str, Any]) -> Chosen:
    """Return the keys that the settings of a comparison choose.

    Args:
        settings: The settings.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if they contradict each other.
    """
    given = [name for name in ("sample", "keys", "partition_key") if settings.get(name) is not None]
    if len(given) > 1:
        raise invalid_request(given[1], f"is given together with {given[0]}", "give one of them")
    sample, keys = settings.get("sample"), settings.get("keys")
    if sample is not None and sample < 2:
        raise invalid_request("sample", f"is {sample}", "give a number N from 2 on, to compare one of N keys")
    if keys is not None and not keys:
        raise invalid_request("keys", "are no keys", "give one or more MulticloudDbKey, such as event.key")
    for name in ("resume", "record") if given and given[0] != "sample" else ():
        if settings.get(name):
            raise invalid_request(
                name, f"is given together with {given[0]}", "leave it out: it is for the whole table"
            )
    return Chosen(sample, keys, settings.get("partition_key"))
