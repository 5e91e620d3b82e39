"""Requests that come and go while a switch copies ahead: what is done, what is undone, and what is told."""

from dataclasses import replace
from typing import Any

import pytest

from services.bench import switch
from services.bench.churn import AheadBooks, Churn
from services.bench.decode_group import DecodeGroup, SwitchPlans
from services.bench.settings import INPROCESS, SwitchSettings
from services.bench.shapes import bench_spec
from services.bench.spmd import resolved, run_spmd
from splash_core.ids import Epoch, PageId, RankId, SlotId, StepId
from splash_core.layout.layout import Layout
from splash_core.layout.ownership import PageCopy
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.roles import Role
from splash_core.scheduling.step import StepPlan
from splash_core.switch.manifest import Chunk, PageMove, SwitchMode
from splash_core.switch.precopy import PrecopyBatch
from tests.support.group import arena_with

SPEC = bench_spec("tiny")
ARENA = arena_with(SPEC, num_ranks=2, page_size=4, elem_bytes=4, ordinary=300)
BATCH, CONTEXT, OUTPUT = 4, 64, 200

CHURN = SwitchSettings(
    device="cpu",
    model="tiny",
    ranks=2,
    backend=INPROCESS,
    phase="decode",
    batch="4",
    context="48",
    reps=1,
    warmup=0,
    ordinary=2,
    precopy_bytes_per_step=8 << 10,
    churn_every=2,
    graphs="on",
)


def group(layout: Layout) -> DecodeGroup:
    config = SchedulerConfig(
        role=Role.DECODE,
        layouts=tuple(Layout),
        max_running=BATCH,
        staging_bytes=1 << 20,
        precopy_bytes_per_step=4 * ARENA.slot_bytes,
    )
    placed = DecodeGroup(SPEC, ARENA, layout, config)
    placed.place(BATCH, CONTEXT, output=OUTPUT)
    return placed


def churned(source: Layout, destination: Layout, *, every: int) -> tuple[DecodeGroup, Churn, SwitchPlans]:
    placed = group(source)
    churn = Churn(group=placed, every=every, most=BATCH, context=CONTEXT, output=OUTPUT)
    return placed, churn, placed.switch(destination, SwitchMode.PRECOPIED, churn)


@pytest.mark.parametrize(
    ("source", "destination"),
    [(Layout.CP, Layout.TP), (Layout.DP, Layout.CP), (Layout.DOP, Layout.CP), (Layout.TP, Layout.DP)],
)
def test_requests_come_and_go_until_the_switch_is_made(source: Layout, destination: Layout) -> None:
    placed, churn, plans = churned(source, destination, every=2)
    events = (len(plans.ahead)) // 2
    done = [churn.cancelled, churn.admitted + churn.turned_away, churn.finished]
    assert sum(done) in (events, events - 1), "at every second step, but not before the first"
    assert churn.cancelled - churn.finished in (0, 1)
    assert placed.layout is destination
    assert len(placed.seqs) == BATCH - churn.cancelled - churn.finished + churn.admitted
    placed.steps(3)
    placed.clear()
    assert placed.live_pages == {}


def test_books_of_a_churned_switch_add_up() -> None:
    placed, _, plans = churned(Layout.CP, Layout.TP, every=2)
    books = AheadBooks.of(plans, ARENA, placed.live_pages)
    crossing = [m for plan in plans.ahead if plan.precopy for m in plan.precopy.moves if m.src != m.dst]
    assert books.copied_bytes == len(crossing) * ARENA.slot_bytes
    assert 0 < books.invalidated_bytes < books.copied_bytes
    undisturbed = group(Layout.CP)
    calm = undisturbed.switch(Layout.TP, SwitchMode.PRECOPIED)
    books = AheadBooks.of(calm, ARENA, undisturbed.live_pages)
    assert (books.invalidated_bytes, books.recopied_bytes) == (0, 0)
    assert len(calm.ahead) < len(plans.ahead)


def test_weights_count_where_they_are_gathered_ahead() -> None:
    placed = group(Layout.TP)
    plans = placed.switch(Layout.DP, SwitchMode.PRECOPIED)
    books = AheadBooks.of(plans, ARENA, placed.live_pages)
    projections = 8 * ((16 + 8) * 24 + (16 + 16) * 32 + 16 * 64) * 4
    # Half of every layer's projections, on each of two ranks.
    assert books.copied_bytes == SPEC.layers * projections
    assert books.invalidated_bytes == 0


def _plan(step: int, **fields: Any) -> StepPlan:
    return StepPlan(step=StepId(step), epoch=Epoch(0), layout=Layout.DP, **fields)


def _move(page: int, dst_slot: int) -> PageMove:
    return PageMove(PageId(page), RankId(0), SlotId(page), RankId(1), SlotId(dst_slot))


def test_copies_that_were_lost_and_made_again_are_told_apart() -> None:
    first = PrecopyBatch(chunks=(Chunk.of([_move(1, 10), _move(2, 11), _move(3, 12)]),))
    second = PrecopyBatch(chunks=(Chunk.of([_move(2, 13)]),))
    plans = SwitchPlans(
        ahead=(_plan(1, precopy=first), _plan(2), _plan(3, precopy=second)), switching=_plan(4), fallback=""
    )

    def at(page: int, slot: int) -> tuple[PageCopy, ...]:
        return (PageCopy(RankId(0), SlotId(page), 0), PageCopy(RankId(1), SlotId(slot), 0))

    # Page 1 lies where it was copied to, page 2 where its second copy went, page 3 has gone with its request,
    # and a new page has taken its slot.
    live = {PageId(1): at(1, 10), PageId(2): at(2, 13), PageId(4): at(4, 12)}
    books = AheadBooks.of(plans, ARENA, live)
    slots = [size // ARENA.slot_bytes for size in (books.copied_bytes, books.invalidated_bytes)]
    assert slots == [4, 2]
    assert books.recopied_bytes == ARENA.slot_bytes


def test_a_row_tells_what_happened() -> None:
    asked = replace(CHURN, directions="CP:TP", modes="precopied")
    rows = {row["mode"]: row for row in run_spmd(switch.run, resolved(asked))["rows"]}
    assert set(rows) == {"precopied", "churn"}
    assert "cancelled" not in rows["precopied"]
    churn = rows["churn"]
    assert churn["cancelled"] >= 1
    assert churn["admitted"] >= 1
    assert (churn["committed"], churn["fallback"], churn["executed_as"]) == (1, "", "precopied")
    assert 0 < churn["invalidated_bytes"] < churn["copied_bytes"]
    assert churn["ahead_steps"] > rows["precopied"]["ahead_steps"]
    assert churn["ahead_ms_p95"] >= churn["ahead_ms_p50"] > 0


def test_no_step_of_any_direction_is_launched_where_steps_are_recorded() -> None:
    asked = replace(CHURN, modes="overlapped,precopied", staging_bytes=64 << 10)
    rows = run_spmd(switch.run, resolved(asked))["rows"]
    assert len(rows) == 12 * 3
    for row in rows:
        what = f"{row['mode']} {row['from']} → {row['to']}"
        assert (row["launched"], row["switching_launched"]) == (0, 0), what
        # Those on either side, one in front, what copied ahead, and the switching step.
        assert row["replayed"] == 2 * 2 + 1 + row.get("ahead_steps", 0) + 1, what
    assert any(row["admitted"] for row in rows if row["mode"] == "churn")
