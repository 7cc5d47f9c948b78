"""Reads the options of a provider from `--option NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import typer

from multiclouddb_api import ClientConfig, MulticloudDbError, ProviderOptions, decode_json
from multiclouddb_api.validators import suggestion
from multiclouddb_cli.arguments import to_config
from multiclouddb_spi import open_provider

__all__ = ["option_names", "to_options"]

_HINT = "--option"


def to_options(config: ClientConfig, texts: Sequence[str]) -> ProviderOptions | None:
    """Return the provider's options, or None if there are none.

    Raises:
        MulticloudDbError: Raised if the configuration or a value is wrong.
        typer.BadParameter: Raised if the provider has no such option, or if the option cannot have this
            value.
    """
    if not texts:
        return None
    kind = _kind(config)
    if kind is None:
        raise typer.BadParameter(f"{config.provider} has no options", param_hint=_HINT)
    fields = {field.name: field for field in attrs.fields(kind)}
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=_HINT)
        if name not in fields:
            hint = suggestion(name, fields)
            raise typer.BadParameter(f"{config.provider} has no option {name!r}: {hint}", param_hint=_HINT)
        if name in values:
            raise typer.BadParameter(f"{name} is given twice", param_hint=_HINT)
        values[name] = _value(name, str(fields[name].type), value)
    return kind(**values)


def option_names(url: str) -> list[str]:
    """Return the names of the provider's options, for completion."""
    with suppress(MulticloudDbError):
        kind = _kind(to_config(url))
        return [] if kind is None else [field.name for field in attrs.fields(kind)]
    return []


def _kind(config: ClientConfig) -> type[ProviderOptions] | None:
    provider = open_provider(config)
    try:
        return provider.options_type
    finally:
        provider.close()


def _value(name: str, kind: str, text: str) -> Any:
    """Convert the text to a value for a field whose type annotation is `kind`."""
    if kind.startswith(("str", "Literal")):
        return text
    if kind.startswith("bool"):
        if text not in ("true", "false"):
            raise typer.BadParameter(f"{name} must be true or false, not {text!r}", param_hint=_HINT)
        return text == "true"
    try:
        return decode_json(text)
    except MulticloudDbError as error:
        raise typer.BadParameter(f"the value of {name} is not JSON: {text!r}", param_hint=_HINT) from error
