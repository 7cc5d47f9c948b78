"""Splits shards by writing the splits into the file of DynamoDB Local, which cannot split shards itself.

The tables `ss` (shards) and `us` (records) belong to the server. The server puts every record of a stream
into the first open shard. The trigger that this module adds moves the record to the open shard that contains
the record's key.
"""

import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path

# A split shard and its descendants have a range of hashes; the child of a rollover gets its parent's range. A
# hash is a number from 0 to 63 that is made from the key's last characters, so keys that end in a number are
# distributed over all hashes.
SCHEMA = """
CREATE TABLE IF NOT EXISTS shard_range (ShardID TEXT PRIMARY KEY, Low INTEGER, High INTEGER);
CREATE TRIGGER IF NOT EXISTS inherit_range AFTER INSERT ON ss BEGIN
    INSERT INTO shard_range SELECT NEW.ShardID, Low, High FROM shard_range WHERE ShardID = NEW.ParentShardID;
END;
CREATE TRIGGER IF NOT EXISTS route_record AFTER INSERT ON us BEGIN
    UPDATE us SET ShardID = coalesce((
        SELECT ss.ShardID FROM ss JOIN shard_range USING (ShardID), (
            SELECT (37 * unicode(substr(keys, -3)) + 23 * unicode(substr(keys, -4))) % 64 AS hash FROM (
                SELECT substr(tail, 1, instr(tail, '}}')) AS keys FROM (
                    SELECT substr(record, instr(record, '"Keys":')) AS tail FROM (
                        SELECT CAST(NEW.StreamRecord AS TEXT) AS record))))
        WHERE ss.StreamID = NEW.StreamID AND ss.DeletionDateTime IS NULL AND hash BETWEEN Low AND High
    ), ShardID) WHERE SequenceNumber = NEW.SequenceNumber;
END;
"""
OPEN = """SELECT StreamID, CreationDateTime, InitialSequenceNumberStart FROM ss
    WHERE ShardID = ? AND DeletionDateTime IS NULL"""
CLOSE = """UPDATE ss SET CreationDateTime = min(?1, CreationDateTime), DeletionDateTime = ?1,
    SequenceNumberEnd = max(InitialSequenceNumberStart,
        coalesce((SELECT max(SequenceNumber) FROM us WHERE ShardID = ?2), 0)) WHERE ShardID = ?2"""
NEXT_NUMBER = "SELECT coalesce(max(SequenceNumber), 0) + 1 FROM us"
RANGE = "SELECT Low, High FROM shard_range WHERE ShardID = ?"
# The server refuses to roll over a stream in which two open shards are old enough. A shard with a birthday in
# the far future is never old enough but works normally, so all open shards except one get such a birthday.
UNBORN = 1 << 53
LONG_UNBORN = 1 << 52  # the remaining part after any change of the clock
BUSY_SECONDS = 60.0  # longer than any write takes on a slow disk


def split_shard(database: Path, shard_id: str, into: int) -> list[str]:
    """Close an open shard and open children that share its keys. Return the ids of the children.

    Raises:
        ValueError: Raised if the shard is not open.
    """
    with closing(sqlite3.connect(database, BUSY_SECONDS, isolation_level=None)) as sql:
        # The data need not survive a crash, and the server waits while the file is locked.
        sql.execute("PRAGMA synchronous = OFF")
        sql.executescript(SCHEMA)
        with sql:
            sql.execute("BEGIN IMMEDIATE")
            row = sql.execute(OPEN, [shard_id]).fetchone()
            if row is None:
                raise ValueError(f"{shard_id} is not an open shard")
            stream, created, start = row
            sql.execute("INSERT OR IGNORE INTO shard_range VALUES (?, 0, 63)", [shard_id])
            low, high = sql.execute(RANGE, [shard_id]).fetchone()
            bounds = [low + (high + 1 - low) * part // into for part in range(into + 1)]
            first = max(start, sql.execute(NEXT_NUMBER).fetchone()[0])
            now = time.time_ns() // 1_000_000
            sql.execute(CLOSE, [now, shard_id])
            children = [f"shardId-{now:020}-{secrets.token_hex(4)}" for _ in range(into)]
            for part, child in enumerate(children):
                birth = now if part == 0 and created < LONG_UNBORN else UNBORN
                shard = [stream, child, birth, first, shard_id]
                sql.execute("INSERT INTO ss VALUES (?, ?, ?, NULL, ?, NULL, ?)", shard)
                own = [bounds[part], bounds[part + 1] - 1, child]
                sql.execute("UPDATE shard_range SET Low = ?, High = ? WHERE ShardID = ?", own)
    return children
