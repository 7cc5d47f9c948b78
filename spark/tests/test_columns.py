"""Tests the columns of `.schema(…)`: what fits a type, what is refused, and what sinks do with them."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from multiclouddb_api import ErrorCategory
from pyspark_multiclouddb import (
    EVENT_COLUMNS,
    error_from_query,
    live_rows,
    merge_into_delta,
    merge_into_table,
)
from pyspark_multiclouddb.errors import SourceError
from pyspark_multiclouddb.readers import ChangeFeedReader, checked_schema, settings_of
from pyspark_multiclouddb.source_columns import ROW_SCHEMA, SPARK_SCHEMA

OPTIONS = {"url": "embedded:///none.db", "collection": "orders"}
STATE = "new_item_state"


def schema_of(**kinds):
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def columns(schema, **options):
    return settings_of({**OPTIONS, **options}, schema, is_stream=True).columns


def events(*texts):
    given = {"key": [f'{{"id":"k{number}"}}' for number in range(len(texts))], STATE: texts}
    nothing = [None] * len(texts)
    arrays = [pa.array(given.get(each.name, nothing), each.type) for each in ROW_SCHEMA]
    return pa.record_batch(arrays, ROW_SCHEMA)


def parsed(kind, *values):
    """Return what a column of this type has for values, given as JSON, or None where one does not fit."""
    schema = schema_of(v=kind, _corrupt_record=StringType())
    texts = [f'{{"v":{value}}}' for value in values]
    rows = columns(schema, mode="permissive").rows(events(*texts)).to_pylist()
    assert [row["_corrupt_record"] for row in rows] == [
        None if row["v"] is not None else text for row, text in zip(rows, texts, strict=True)
    ]
    return [row["v"] for row in rows]


@pytest.mark.parametrize(
    ("kind", "fitting", "unfit"),
    [
        (
            StringType(),
            {'"a"': "a", '{"$decimal":"1.50"}': "1.50", '{"$mongo.objectid":"6f"}': "6f"}
            | {text: text for text in ("1.5", "true", '[1,{"a":2}]', '{"$set":["a"]}', '{"$map":{"$a":1}}')},
            [],
        ),
        (BooleanType(), {"true": True, "false": False}, ["1", '"true"', "{}"]),
        (
            ByteType(),
            {"127": 127, "-128": -128, "5.0": 5, '{"$decimal":"5.00"}': 5},
            ["128", "-129", "5.5", '"5"', "true"],
        ),
        (
            IntegerType(),
            {"2147483647": 2147483647},
            ["2147483648", '{"$decimal":"1E+999999999"}', '{"$decimal":"NaN"}'],
        ),
        (
            LongType(),
            {"9223372036854775807": 2**63 - 1},
            ['{"$int":"9223372036854775808"}', "1e19", '{"$float":"NaN"}'],
        ),
        (
            DoubleType(),
            {"1": 1.0, "2.5": 2.5, '{"$decimal":"0.1"}': 0.1, '{"$float":"-Infinity"}': float("-inf")},
            ['"1"', "false", '{"$decimal":"1E+400"}'],
        ),
        (FloatType(), {"1.5": 1.5, '{"$float":"Infinity"}': float("inf")}, ["1e300", "[1]"]),
        (
            DecimalType(5, 2),
            {"999.99": Decimal("999.99"), "3": Decimal("3.00"), '{"$decimal":"1.500"}': Decimal("1.50")},
            ["1000", "0.125", '{"$decimal":"NaN"}', '{"$decimal":"Infinity"}', '"1.5"'],
        ),
        (
            DateType(),
            {'"2026-01-31"': date(2026, 1, 31), '{"$date":"2026-01-31T00:00:00Z"}': date(2026, 1, 31)},
            ['"soon"', "1", '{"$date":"2026-01-31T12:00:00Z"}'],
        ),
        (
            TimestampType(),
            {
                '{"$date":"2026-01-31T12:00:00.5Z"}': datetime(2026, 1, 31, 12, 0, 0, 500000, UTC),
                '"2026-01-31T12:00:00+02:00"': datetime(2026, 1, 31, 10, tzinfo=UTC),
            },
            ['"2026-01-31T12:00:00"', "1767225600", '"0001-01-01T00:00:00+10:00"'],
        ),
        (
            TimestampNTZType(),
            {'"2026-01-31T12:00:00"': datetime.fromisoformat("2026-01-31T12:00:00")},
            ['"2026-01-31T12:00:00Z"', "1"],
        ),
        (BinaryType(), {'{"$bytes":"aGk="}': b"hi", '"aGk="': b"hi"}, ['"hi!"', "1"]),
        (
            ArrayType(LongType()),
            {"[1,null,3]": [1, None, 3], '{"$set":[2]}': [2], "[]": []},
            ['{"a":1}', "1"],
        ),
        (
            MapType(StringType(), LongType()),
            {'{"a":1,"b":null}': [("a", 1), ("b", None)], '{"$map":{"$a":1}}': [("$a", 1)]},
            ["[1]", '{"$decimal":"1"}'],
        ),
        (
            schema_of(a=LongType(), b=schema_of(c=StringType())),
            {'{"a":1,"b":{"c":"x"},"d":2}': {"a": 1, "b": {"c": "x"}}, "{}": {"a": None, "b": None}},
            ["[1]", '"a"', '{"$decimal":"1"}'],
        ),
    ],
    ids=lambda value: value.simpleString() if hasattr(value, "simpleString") else "",
)
def test_a_value_fits_a_type_or_is_null_and_corrupt(kind, fitting, unfit):
    assert parsed(kind, *fitting) == [*fitting.values()]
    assert parsed(kind, *unfit) == [None] * len(unfit)


def test_what_fits_beside_a_value_that_does_not_is_kept():
    inner = schema_of(a=LongType(), b=StringType())
    schema = schema_of(
        n=LongType(), list=ArrayType(LongType()), map=MapType(StringType(), inner), c=StringType()
    )
    text = '{"n":"x","list":[1,"x"],"map":{"k":{"a":"x","b":"y"}},"other":1}'
    batch = events(text, '{"n":1}', None, '{"$map":{"n":2,"$":3}}', '{"n":null}')
    found = columns(schema, mode="PERMISSIVE", columnNameOfCorruptRecord="c").rows(batch).to_pylist()
    empty = {"n": None, "list": None, "map": None, "c": None}
    assert found == [
        {"n": None, "list": [1, None], "map": [("k", {"a": None, "b": "y"})], "c": text},
        {**empty, "n": 1},
        empty,
        empty | {"n": 2},
        empty,
    ]
    with pytest.raises(Exception, match=r"map<.*map\.k\.a.*sha256:.* a text") as caught:
        columns(schema_of(map=MapType(StringType(), inner))).rows(events("{}", text))
    assert caught.value.category == ErrorCategory.INVALID_REQUEST


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ([("type", LongType())], {}, "column type: is bigint.*type STRING"),
        ([("Key", StringType())], {}, "column Key: is string.*key STRING"),
        # With spark.sql.timestampType=TIMESTAMP_NTZ, this is what TIMESTAMP means.
        (
            [("timestamp", TimestampNTZType())],
            {},
            "column timestamp: is timestamp_ntz.*timestamp TIMESTAMP_LTZ",
        ),
        ([("a", StringType()), ("A", StringType())], {}, "column A: differs from the column a only in"),
        ([("a", StringType()), ("a", StringType())], {}, "column a: is in the schema twice"),
        ([("a", StringType(), False)], {}, "column a: is NOT NULL"),
        ([("key", StringType(), False)], {}, "column key: is NOT NULL"),
        ([("a", ArrayType(LongType(), False))], {}, r"column a\[\]: is NOT NULL"),
        ([("a", NullType())], {}, "column a: is void, which a document cannot give"),
        ([("a", StringType("UTF8_LCASE"))], {}, "column a: is string collate UTF8_LCASE, which"),
        ([("a", schema_of(b=ArrayType(NullType())))], {}, r"column a\.b\[\]: is void, which"),
        ([("a", MapType(LongType(), LongType()))], {}, "column a: has keys of type bigint"),
        ([("a", LongType())], {"newItemState": "omit"}, "newItemState: is omit"),
        ([("key", StringType())], {"mode": "failfast"}, "mode: has no meaning without columns of documents"),
        ([("a", LongType())], {"mode": "DropMalformed"}, "mode: is DropMalformed, which would lose changes"),
        ([("a", LongType())], {"mode": "lax"}, "mode: is 'lax'"),
        ([("a", LongType())], {"columnNameOfCorruptRecord": "c"}, "columnNameOfCorruptRecord: is c, which"),
        ([("_corrupt_record", LongType())], {"mode": "permissive"}, "column _corrupt_record: is bigint"),
        ([("_corrupt_record", StringType())], {}, "column _corrupt_record: has no meaning without mode=PERM"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(fields, options, message):
    schema = StructType([StructField(*field) for field in fields])
    with pytest.raises(SourceError, match=rf"\[MULTICLOUDDB:INVALID_REQUEST\] {message}"):
        columns(schema, **options)


def test_the_schema_of_the_source_needs_no_columns_and_takes_no_mode():
    assert columns(SPARK_SCHEMA) is None
    with pytest.raises(SourceError, match="mode: has no meaning"):
        checked_schema({**OPTIONS, "mode": "FAILFAST"})


TYPED = "n BIGINT, name STRING, price DECIMAL(9, 2), at TIMESTAMP"


def fill(source):
    source.put("a", {"n": 1, "name": "A", "price": Decimal("1.50"), "at": datetime(2026, 1, 31, tzinfo=UTC)})
    source.put("b", {"n": 2, "name": "B"})
    source.put("c", {"n": 3})
    source.delete("c")


def test_tasks_make_the_arrow_types_that_spark_checks(source):
    fill(source)
    simple = [ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, BooleanType, StringType]
    simple += [BinaryType, DateType, TimestampType, TimestampNTZType]
    every = [*(kind() for kind in simple), DecimalType(38, 18), ArrayType(DateType())]
    every += [MapType(StringType(), ArrayType(DoubleType())), schema_of(x=TimestampType())]
    typed = {f"c{number}": kind for number, kind in enumerate(every)}
    schema = schema_of(sequence=LongType(), n=LongType(), key=StringType(), **typed)
    reader = ChangeFeedReader(settings_of(source.options(), schema, is_stream=False))
    batches = [
        batch for task in reader.partitions() for batch in pickle.loads(pickle.dumps(reader)).read(task)
    ]
    assert {to_arrow_schema(schema, timezone="UTC").equals(batch.schema) for batch in batches} == {True}
    rows = [(json.loads(row["key"])["id"], row["n"]) for batch in batches for row in batch.to_pylist()]
    assert sorted(rows, key=str) == [("a", 1), ("b", 2), ("c", 3), ("c", None)]


def load(reader, source, schema, **options):
    return reader.format("multiclouddb").schema(schema).options(**source.options(**options)).load()


def test_a_batch_has_exactly_the_columns_of_its_schema(spark, source):
    fill(source)
    frame = load(
        spark.read, source, "n BIGINT, sequence BIGINT, tags ARRAY<MAP<STRING, STRUCT<x: DATE>>>, type STRING"
    )
    assert frame.columns == ["n", "sequence", "tags", "type"]
    rows = sorted(tuple(row) for row in frame.drop("sequence").collect() if row.type != "DELETE")
    assert rows == [(1, None, "CREATE"), (2, None, "CREATE"), (3, None, "CREATE")]
    assert [tuple(row) for row in frame.where("type = 'DELETE'").select("n", "tags").collect()] == [
        (None, None)
    ]
    snapshot = load(spark.read, source, "backfilled BOOLEAN, n BIGINT", startingPosition="snapshot")
    assert sorted(map(tuple, snapshot.collect())) == [(True, 1), (True, 2)]
    source.put("d", {"n": "many"})
    with pytest.raises(Exception, match=r"column n: is bigint.*sha256:.*a text") as caught:
        load(spark.read, source, "n BIGINT").collect()
    assert error_from_query(caught.value) == ErrorCategory.INVALID_REQUEST


def test_a_stream_fills_a_table_of_every_sink(spark, source, tmp_path):
    fill(source)
    source.put("d", {"n": "x"})
    corrupt = load(
        spark.readStream, source, f"{EVENT_COLUMNS}, {TYPED}, bad STRING",
        mode="PERMISSIVE", columnNameOfCorruptRecord="bad",
    )  # fmt: skip
    lake = f"typed.{tmp_path.name}.items"
    spark.conf.set("spark.sql.catalog.typed", "multiclouddb.test.Catalog")
    spark.conf.set("spark.sql.catalog.typed.root", str(tmp_path / "lake"))

    def merge(batch, number):
        merge_into_delta(batch, number, tmp_path / "table", "typed")
        merge_into_table(batch, number, lake, create_using="test")

    def run():
        writer = corrupt.writeStream.foreachBatch(merge).option("checkpointLocation", str(tmp_path / "point"))
        writer.trigger(availableNow=True).start().awaitTermination()
        names = ["n", "name", "price", "at", "bad"]
        rows = live_rows(tmp_path / "table", ["key", *names]).read_all().to_pylist()
        merged = spark.table(lake).where("_deleted_at IS NULL").select("key", *names)
        assert sorted(merged.toArrow().to_pylist(), key=str) == sorted(rows, key=str)
        gone = spark.table(lake).where("_deleted_at IS NOT NULL").select(*names).collect()
        assert {tuple(row) for row in gone} == {(None,) * len(names)}
        return {json.loads(row["key"])["id"]: tuple(row[name] for name in names) for row in rows}

    first = (1, "A", Decimal("1.50"), datetime(2026, 1, 31, tzinfo=UTC), None)
    corrupt_one = (*[None] * 4, '{"n":"x"}')
    assert run() == {"a": first, "b": (2, "B", None, None, None), "d": corrupt_one}
    source.delete("b")
    source.put("d", {"n": 5})
    source.put("a", {"n": "x", "name": "A2"})
    source.put("c", {"n": 4})
    bad = '{"n":"x","name":"A2"}'
    four, five = ((number, *[None] * 4) for number in (4, 5))
    assert run() == {"a": (None, "A2", None, None, bad), "c": four, "d": five}
