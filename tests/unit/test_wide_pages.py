"""Page ids grow for as long as a group lives: days at high rates take them past 32 bits."""

import pytest

from splash_core.engine.staging import ChunkWork
from splash_core.ids import Epoch, PageId, RankId
from splash_core.layout.layout import RULES, Layout
from splash_core.layout.ownership import PageTable
from splash_core.layout.wanted import wanted_ranks
from splash_core.pb import rank_pb2
from splash_core.rpc.codec import manifest_from_pb, manifest_to_pb
from splash_core.switch.manifest import SwitchManifest
from splash_core.switch.planner import plan_switch
from tests.support.manifest_simulator import LAYER_BYTES, ArenaSimulator, toy_arena

T, PAGES = 4, 10
STAGING = 4 * LAYER_BYTES * 3


@pytest.mark.parametrize("next_page", [2**31 - PAGES // 2, 2**31, 2**45])
@pytest.mark.parametrize(
    ("before", "after"), [(Layout.DP, Layout.TP), (Layout.DP, Layout.CP), (Layout.DOP, Layout.DP)]
)
def test_switches_move_pages_with_ids_past_32_bits(
    next_page: int, before: Layout, after: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PageTable(toy_arena(num_ranks=T, num_layers=3, ordinary=40, borrowed=12))
    monkeypatch.setattr(table, "_next_page", next_page)
    requests: list[list[PageId]] = []
    for owner in range(T):
        placement = RULES[before].placement(num_ranks=T, owner=RankId(owner), rotation=owner)
        pages = [table.new_page(placement.ranks_of_page(at), lent=RULES[before].lends) for at in range(PAGES)]
        requests.append([page for page in pages if page is not None])
    wanted = wanted_ranks(
        (pages, RULES[after].placement(num_ranks=T, owner=RankId(3 - owner), rotation=owner))
        for owner, pages in enumerate(requests)
    )
    arenas = ArenaSimulator(table, before)
    manifest = plan_switch(
        table=table,
        wanted=wanted,
        layout_from=before,
        layout_to=after,
        epoch=Epoch(1),
        staging_bytes=STAGING,
    )
    assert isinstance(manifest, SwitchManifest)
    assert max(move.page for move in manifest.moves) >= 2**31
    wire = manifest_to_pb(manifest).SerializeToString()
    arrived = manifest_from_pb(rank_pb2.Manifest.FromString(wire))
    assert arrived == manifest
    for chunk in arrived.chunks:
        assert sum(ChunkWork(chunk, RankId(rank)).num_rows for rank in range(T)) >= len(chunk)
    table.apply(arrived)
    arenas.execute(arrived, staging_bytes=STAGING)
    arenas.assert_outcome(table, after)
