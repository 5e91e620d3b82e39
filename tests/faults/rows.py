"""What is done to a handoff: the rows of the matrix, as data.

A repetition of a row is a `Case`: one of the row's points, and a generator of its own for what is random
about it. Invariant: the same row, seed and number give the same case, on any machine.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.demo.circuit import directed_circuit
from splash_core.layout.layout import Layout

SWITCHED = (Layout.TP, Layout.CP, Layout.DP, Layout.DOP)


def _switches(start: Layout) -> tuple[str, ...]:
    """All directions as one closed walk, so that each repetition begins where the one before ended."""
    return tuple(f"{a}>{b}" for a, b in directed_circuit(SWITCHED, start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of fault."""

    name: str
    what: str
    """In a sentence, for the page of results."""
    points: Sequence[str]
    """Where it strikes; repetitions take them in turn, in an order of the seed unless `in_order`."""
    in_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One repetition."""

    row: Row
    seed: int
    number: int
    point: str

    @property
    def name(self) -> str:
        """Unique in a run; requests are named after it."""
        return f"{self.row.name} {self.number}"

    def draw(self) -> random.Random:
        """What is random about it."""
        return random.Random(f"{self.row.name} {self.seed} {self.number}")


CANCEL = Row(
    name="cancel",
    what="the client leaves after a random part of the time that its request takes",
    points=("anywhere",),
)
GONE = Row(
    name="gone",
    what="the client leaves at a phase boundary",
    points=("queued", "claim sent", "claimed", "chunk", "pushing", "completion sent", "completed", "token"),
)
SLOW = Row(
    name="slow writer",
    what="the writer stands still while it writes, its client leaves, and its pages are used again",
    points=("left alone", "used again"),
)
WRITER_KILLED = Row(
    name="prefill killed",
    what="the prefill group dies between reservation and last chunk",
    points=("leader, reserved", "rank, claimed", "leader, chunk", "rank, pushing", "leader, pushing"),
)
READER_KILLED = Row(
    name="decode killed",
    what="the decode group dies while it is written to",
    points=("rank", "leader"),
)
STOPPED_FIRST = Row(
    name="stopped first",
    what="the decode group stands still before its ranks are first spoken to",
    points=("until the call ends", "for others' requests"),
)
STOPPED = Row(
    name="stopped",
    what="the decode group stands still while it is written to",
    points=("ranks", "all", "ranks, client leaves", "all, client leaves"),
)
WRITER_SILENT = Row(
    name="writer silent",
    what="the whole prefill group stands still while it writes, for longer than decode waits for a sign",
    points=("its request waits", "its client leaves"),
)
MESSAGES = Row(
    name="messages",
    what="claims, completions and abandons come twice, late, or in another order",
    points=(
        "claim twice",
        "completion twice",
        "abandon twice",
        "late claim",
        "late completion",
        "late abandon",
        "claim behind its abandon",
        "completion unanswered",
    ),
)
PREFILL_SWITCHES = Row(
    name="prefill switches",
    what="the prefill group switches with a chunk half done, a lease open and a push in flight",
    points=_switches(Layout.TP),
    in_order=True,
)
DECODE_SWITCHES = Row(
    name="decode switches",
    what="the decode group switches while a lease is open and a push is in flight to it",
    points=_switches(Layout.DP),
    in_order=True,
)

TURNS = (
    (CANCEL,),
    (GONE,),
    (SLOW,),
    (MESSAGES,),
    (STOPPED,),
    (WRITER_SILENT,),
    (PREFILL_SWITCHES,),
    (DECODE_SWITCHES,),
    (WRITER_KILLED,),
    # Alternating: what one starts anew, the other needs new.
    (READER_KILLED, STOPPED_FIRST),
)
"""Rows in the order in which they are played; those of a turn alternate."""
MATRIX = tuple(row for turn in TURNS for row in turn)


def cases(row: Row, *, seed: int, repetitions: int) -> Iterator[Case]:
    """The repetitions of a row; a row that goes in order has at least one of each point.

    Args:
        row: of the matrix.
        seed: chooses points and everything else.
        repetitions: how many, at least.
    """
    size = len(row.points)
    count = -(-max(repetitions, size) // size) * size if row.in_order else repetitions
    order = list(row.points)
    for number in range(count):
        if number % size == 0 and not row.in_order:
            random.Random(f"{row.name} {seed} {number}").shuffle(order)
        yield Case(row=row, seed=seed, number=number, point=order[number % size])


def turn_cases(turn: Sequence[Row], *, seed: int, repetitions: int) -> Iterator[Case]:
    """The repetitions of the rows of a turn, alternating; the arguments are those of `cases`."""
    for together in zip(*(cases(row, seed=seed, repetitions=repetitions) for row in turn), strict=True):
        yield from together
