"""A scripted Cloud Spanner server with change streams.

The unmodified google-cloud-spanner works with this server over gRPC.

habits      the server's normal behaviour      clock      its clock
troubles    failures on demand                 journal    the received calls
server      `ScriptedSpanner`, the server      service    its gRPC services
control     its methods for other processes

The emulator imports no code from other packages of multiclouddb. If the emulator and a provider
shared code, both could have the same error, and the tests would not find this error.
"""

from multiclouddb_spanner_emulator.database import Write
from multiclouddb_spanner_emulator.habits import Habits
from multiclouddb_spanner_emulator.journal import Call, Journal
from multiclouddb_spanner_emulator.reading import StreamQuery
from multiclouddb_spanner_emulator.server import PartitionState, ScriptedSpanner
from multiclouddb_spanner_emulator.troubles import Trouble, Troubles

__all__ = [
    "Call",
    "Habits",
    "Journal",
    "PartitionState",
    "ScriptedSpanner",
    "StreamQuery",
    "Trouble",
    "Troubles",
    "Write",
]
