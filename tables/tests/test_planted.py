"""Plants faults in what declared columns rest on, and expects the kit for tables to find each of them."""

from decimal import Context, Decimal

import attrs
import pytest

from multiclouddb_api import MulticloudDbError
from multiclouddb_conformance.targets import declared, merges
from multiclouddb_tables import changes, conversion, mark, merging
from multiclouddb_verify.own_columns import DeclaredColumns

from . import memory_table
from .test_targets import MemorySink

DECIMAL = next(at for at, each in enumerate(declared.MISFITS) if each == ("decimal(12,2)", Decimal("1.005")))
TIME = next(at for at, (_, value) in enumerate(declared.MISFITS) if value == "2026-01-31T12:00:00.123456789Z")


def rounds(patch):
    patch.setattr(conversion, "_converter_of", conversion._converter_of.__wrapped__)  # which keeps none
    patch.setattr(
        conversion, "_decimal",
        lambda precision, scale: lambda value: conversion._number(value).quantize(
            Decimal(1).scaleb(-scale), context=Context(prec=precision)
        ),
    )  # fmt: skip


def cuts(patch):
    moment = conversion._moment
    patch.setattr(conversion, "_moment", lambda value, *, zoned: moment(f"{value[:26]}Z", zoned=zoned))


def null_for_a_misfit(patch):
    converted = conversion._converted
    patch.setattr(conversion, "_converted", lambda *given: (converted(*given)[0], []))


def keeps_after_a_delete(patch):
    patch.setattr(memory_table, "emptied", lambda *_: [])


def empties_the_key(patch):
    found = mark.emptied
    patch.setattr(
        memory_table, "emptied",
        lambda of, names, *more: found(attrs.evolve(of, declared=None), names, *more),
    )  # fmt: skip


def empties_columns_of_others(patch):
    for name in ("emptied", "lacked"):
        patch.setattr(memory_table, name, lambda of, names, *more: mark.emptied(None, names, *more))


def keeps_an_old_value(patch):
    patch.setattr(memory_table, "lacked", lambda *_: [])


def judges_after_the_cut(patch):
    lacks = changes.lacks_state
    patch.setattr(changes, "lacks_state", lambda rows: lacks(rows.drop_columns("new_item_state")))


def converts(patch):
    def redeclare(self, schema, names, mark):
        with self._commit() as changed:
            changed.columns |= {each.name: each.type for each in schema if each.name in names}
            changed.rows = [dict.fromkeys(changed.columns) | row for row in changed.rows]

    patch.setattr(memory_table.MemoryTable, "redeclare", redeclare)


def forgets_a_refill(patch):
    ready = merging.MergeRules._redeclared

    def forgetting(self, stored, wanted):
        stored, wanted = ready(self, stored, wanted)
        return stored, None if wanted is None else attrs.evolve(wanted, unfilled=())

    patch.setattr(merging.MergeRules, "_redeclared", forgetting)


def compares_too_little(patch):
    patch.setattr(DeclaredColumns, "names", ("n", "new_item_state"))


def compares_no_rescued(patch):
    values = conversion.values
    patch.setattr(conversion, "values", lambda *given: {**values(*given), "_rescued": None})


def compares_no_tombstone(patch):
    patch.setattr(DeclaredColumns, "is_empty", lambda *_: True)


MISFIT = "test_a_misfit_is_refused_or_rescued"
TOMBSTONE = "test_a_tombstone_keeps_its_key_and_nothing_else"
LACKED = "test_a_column_that_a_batch_lacks_is_null_after_a_change_and_after_a_delete"
OTHERS = "test_columns_of_others_are_left_alone"
DAMAGE = "test_each_damage_is_found_and_repaired"
FAULTS = {
    rounds: (declared.TestDeclared, MISFIT, DECIMAL),
    cuts: (declared.TestDeclared, MISFIT, TIME),
    null_for_a_misfit: (declared.TestDeclared, MISFIT, 0),
    keeps_after_a_delete: (declared.TestDeclared, TOMBSTONE),
    empties_the_key: (declared.TestDeclared, TOMBSTONE),
    empties_columns_of_others: (declared.TestDeclaredAgain, OTHERS),
    keeps_an_old_value: (merges.TestMerged, LACKED),
    judges_after_the_cut: (declared.TestDeclared, "test_the_document_is_judged_before_it_is_left_out"),
    converts: (declared.TestDeclaredAgain, "test_another_declaration_fills_the_columns", "a column less"),
    forgets_a_refill: (
        declared.TestDeclaredAgain, "test_a_snapshot_that_began_before_a_refill_does_not_end_it",
    ),
    compares_too_little: (declared.TestDeclaredVerified, DAMAGE, "folder"),
    compares_no_rescued: (declared.TestDeclaredVerified, DAMAGE, "folder"),
    compares_no_tombstone: (declared.TestDeclaredVerified, DAMAGE, "folder"),
}  # fmt: skip
"""The test of the kit that finds each fault, with its arguments after the sink."""


@pytest.mark.parametrize("plant", FAULTS, ids=lambda each: each.__name__)
def test_a_planted_fault_is_found(plant, monkeypatch, tmp_path):
    kit, name, *given = FAULTS[plant]
    monkeypatch.setattr("multiclouddb_verify.source._CLOCK_ERROR", 0.0)

    def run(folder):
        more = (tmp_path / folder if each == "folder" else each for each in given)
        getattr(kit(), name)(MemorySink(), *more)

    run("right")
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, MulticloudDbError)):
        run("wrong")
