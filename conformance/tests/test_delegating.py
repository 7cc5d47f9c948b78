"""Checks by introspection that a wrapper forwards every member of the contract to the wrapped object.

If the contract gets a new member, a test fails here until the wrapper forwards the member.
"""

import inspect
from typing import Protocol

import pytest

from multiclouddb_conformance.delegating import (
    WrappedFeed,
    WrappedMapper,
    WrappedPlugin,
    WrappedProvider,
    WrappedReader,
)
from multiclouddb_spi import Feed, Mapper, Provider, ProviderPlugin, Reader, abilities
from multiclouddb_spi.scan import contract as scan

CONTRACT = (Mapper, Reader, Feed, Provider, ProviderPlugin)
PROTOCOLS = [
    each
    for module in (abilities, scan)
    for _, each in inspect.getmembers(module, inspect.isclass)
    if vars(each).get("_is_protocol") and each is not Protocol
]
# The wrapper's `open` calls its `connect`; the wrapped plugin's `open` would return an unwrapped provider.
MADE_OF_OTHERS = {(ProviderPlugin, "open")}


class Answer(str):
    """A text that stands for an argument or answer of a call, or for a wrapped feed or provider."""

    spec = identity = provider_id = options_type = page_records = segment_id = cursor = None


def methods(of):
    """Return the public methods of a contract that can be overridden."""
    return [
        name
        for name, member in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_") and not getattr(member, "__final__", False)
        if (of, name) not in MADE_OF_OTHERS
    ]


def telling(name):
    """Make a method that returns its own name and its arguments."""

    def method(self, *args, **kwargs):
        self.asked.append((name, *args, *kwargs.values()))
        return self.made.setdefault(name, Answer(name))

    return method


def inside(of, *abilities):
    """Make an object of a contract class with these protocols; each member returns a recognizable value."""
    members = {name: telling(name) for each in (of, *abilities) for name in methods(each)}
    made = type(f"Inside{of.__name__}", (of,), members)()
    attributes = {name: Answer(name) for name in inspect.get_annotations(of)}
    vars(made).update(attributes, asked=[], made={})
    return made


def wrapped(inner):
    """Put the kit's wrapper around the object."""
    match inner:
        case Mapper():
            return WrappedMapper(inner)
        case Reader():
            return WrappedReader(inner, WrappedFeed(inside(Feed), WrappedProvider(inside(Provider))), "p", 0)
        case Feed():
            return WrappedFeed(inner, WrappedProvider(inside(Provider)))
        case Provider():
            return WrappedProvider(inner)
        case ProviderPlugin():
            return WrappedPlugin(inner)


def check_passed_on(outer, inner, of, name):
    """Check that the wrapper calls the wrapped object with the same arguments and returns its answer."""
    signature = inspect.signature(getattr(of, name))
    parameters = list(signature.parameters.values())[1:]
    args = [Answer(each.name) for each in parameters]
    named = {
        str(arg): arg for arg, each in zip(args, parameters, strict=True) if each.kind is each.KEYWORD_ONLY
    }
    inner.asked.clear()
    answer = getattr(outer, name)(*args[: len(args) - len(named)], **named)
    assert inner.asked == [(name, *args)], f"{type(outer).__name__}.{name} does not call the wrapped object"
    assert all(given is arg for given, arg in zip(inner.asked[0][1:], args, strict=True))
    # The result is a wrapper around the answer, or the answer itself.
    expected = None if signature.return_annotation == "None" else inner.made[name]
    assert getattr(answer, "inner", answer) is expected


@pytest.mark.parametrize("of", CONTRACT, ids=lambda each: each.__name__)
def test_every_method_and_attribute_is_passed_on(of):
    inner = inside(of)
    outer = wrapped(inner)
    for name in methods(of):
        check_passed_on(outer, inner, of, name)
    for name in inspect.get_annotations(of):
        assert getattr(outer, name) is getattr(inner, name), name


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.__name__)
def test_a_wrapper_can_do_what_the_one_inside_can(protocol):
    pairs = [(wrapped(inner), inner) for inner in (inside(of, protocol) for of in CONTRACT)]
    # A protocol belongs either to feeds or to providers.
    ((outer, inner),) = [pair for pair in pairs if isinstance(pair[0], protocol)]
    for name in methods(protocol):
        check_passed_on(outer, inner, protocol, name)
    assert isinstance(wrapped(outer), protocol)
    assert not any(isinstance(wrapped(inside(of)), protocol) for of in CONTRACT)


def test_what_a_wrapper_overrides_is_asked():
    class Late(WrappedProvider):
        def find_heads(self, feed, cursors, max_records, deadline):
            return {"late": super().find_heads(feed, cursors, max_records, deadline)}

    class Marked(WrappedPlugin):
        def wrap(self, provider):
            return WrappedProvider(provider)

    outer = WrappedFeed(inside(Feed, abilities.SupportsHeads), Late(inside(Provider)))
    assert outer.heads({}, None, None) == {"late": "heads"}
    assert isinstance(Marked(inside(ProviderPlugin)).connect(None, None), WrappedProvider)
