"""What crosses ranks in attention, byte for byte as docs/model.md §4 says: none gathers everything."""

from pathlib import Path

import pytest
import torch

from splash_core.cost.exchange import attention_messages
from splash_core.cost.load import Load, Rows
from splash_core.cost.precision import named_precision
from splash_core.cost.shares import Shares
from splash_core.ids import SeqId
from splash_core.layout.forms import CpStorage
from splash_core.layout.layout import RULES, Layout
from splash_core.spec.model import ModelSpec
from tests.support.group import arena_with
from tests.support.logit_engine import run_plans
from tests.support.plans import PlanBuilder

T = 4
B = 8
CONTEXT = 37
"""Ten pages of 4: every rank holds pages of every sequence in CP."""
FLOAT = 4


class Step:
    """Traffic of one decode step (or one chunk) of B sequences with equal contexts."""

    def __init__(
        self, checkpoint: Path, layout: Layout, *, chunk: int = 1, storage: CpStorage = CpStorage.PASS_Q
    ) -> None:
        self.spec = ModelSpec.from_checkpoint(checkpoint)
        arena = arena_with(self.spec, num_ranks=T, page_size=4, elem_bytes=FLOAT, ordinary=160)
        builder = PlanBuilder(arena, layout)
        tokens = [list(range(3 + seq, 3 + seq + CONTEXT + chunk)) for seq in range(B)]
        seqs = [builder.start(each) for each in tokens]
        plans = [builder.step(dict.fromkeys(seqs, CONTEXT))]
        plans.append(builder.step(dict.fromkeys(seqs, chunk), cp_storage=storage))
        self.ranks = []
        rows = run_plans(checkpoint, self.spec, arena, layout, plans, torch.float32, traffic=self.ranks)
        assert (SeqId(B - 1), CONTEXT + chunk - 1) in rows
        self._layout, self._storage = layout, storage
        items = [Rows(chunk, CONTEXT, seq % T) for seq in range(B)]
        self._load = Load.of(items, num_ranks=T)

    def bytes(self, tag: str) -> list[int]:
        """Received per layer on each rank under a tag."""
        received = [rank[tag].received_bytes if tag in rank else 0 for rank in self.ranks]
        assert all(each % self.spec.layers == 0 for each in received)
        return [each // self.spec.layers for each in received]

    def received(self) -> list[int]:
        """By attention, per layer on each rank."""
        return [sum(each) for each in zip(*map(self.bytes, self.attention_tags()), strict=True)]

    def predicted(self) -> float:
        """By the cost model, on the fullest rank."""
        shares = Shares.of(RULES[self._layout], self._load, storage=self._storage)
        messages = attention_messages(self.spec, named_precision("fp32"), shares)
        return sum(message.received_bytes for message in messages)

    def attention_tags(self) -> set[str]:
        tags = {tag for rank in self.ranks for tag, traffic in rank.items() if traffic.received_bytes}
        return {tag for tag in tags if not tag.startswith(("ffn.", "embed.", "head."))}


def test_tp_gathers_latent_rows_and_scatters_the_output(tiny_v3: Path) -> None:
    step = Step(tiny_v3, Layout.TP)
    spec, others = step.spec, B - B // T
    row = (spec.q_lora_rank or spec.hidden) + spec.kv_lora_rank + spec.rope_dim
    assert step.attention_tags() == {"tp.gather_rows", "tp.scatter_out"}
    assert step.bytes("tp.gather_rows") == [others * row * FLOAT] * T
    assert step.bytes("tp.scatter_out") == [(B // T) * (T - 1) * spec.hidden * FLOAT] * T
    assert step.received() == [step.predicted()] * T


def test_dp_moves_nothing(tiny_v3: Path) -> None:
    assert Step(tiny_v3, Layout.DP).attention_tags() == set()


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize(("layout", "tag"), [(Layout.DOP, "dop"), (Layout.DOP_P, "dop_p")])
def test_an_exchange_with_owners_is_equation_4(layout: Layout, tag: str, chunk: int, tiny_v3: Path) -> None:
    step = Step(tiny_v3, layout, chunk=chunk)
    spec, rows, owned = step.spec, B * chunk, B * chunk // T
    others = owned * spec.heads * (T - 1) // T * FLOAT
    if layout is Layout.DOP:
        query, answer = spec.kv_lora_rank + spec.rope_dim, spec.kv_lora_rank
    else:
        query, answer = spec.nope_dim + spec.rope_dim, spec.v_dim
    assert step.bytes(f"{tag}.q_to_owners") == [others * query] * T
    assert step.bytes(f"{tag}.out_from_owners") == [others * answer] * T
    gathered = (rows - owned) * (spec.q_lora_rank or spec.hidden) * FLOAT
    assert step.bytes(f"{tag}.gather_q") == [gathered] * T
    assert step.bytes(f"{tag}.scatter_out") == [owned * (T - 1) * spec.hidden * FLOAT] * T
    assert step.received() == [step.predicted()] * T
    assert step.attention_tags() == {
        f"{tag}.gather_q",
        f"{tag}.q_to_owners",
        f"{tag}.out_from_owners",
        f"{tag}.scatter_out",
    }


def test_cp_decode_moves_queries_and_no_kv_row(tiny_v3: Path) -> None:
    step = Step(tiny_v3, Layout.CP)
    spec = step.spec
    assert step.attention_tags() == {"cp.q_to_owners", "cp.out_from_owners"}
    assert sum(step.bytes("cp.route_kv_rows")) == 0
    # Every rank holds pages of every sequence: each row goes to the T-1 ranks that are not its home.
    query = (spec.q_lora_rank or spec.hidden) * FLOAT
    answer = spec.heads * (spec.v_dim + 1) * FLOAT
    assert sum(step.bytes("cp.q_to_owners")) == B * (T - 1) * query
    assert sum(step.bytes("cp.out_from_owners")) == B * (T - 1) * answer


def test_cp_pass_kv_gathers_the_history_once(tiny_v3: Path) -> None:
    chunk = 8
    step = Step(tiny_v3, Layout.CP, chunk=chunk, storage=CpStorage.PASS_KV)
    spec = step.spec
    row = (spec.kv_lora_rank + spec.rope_dim) * FLOAT
    pages = -(-CONTEXT // 4)
    assert step.attention_tags() == {"cp.gather_kv_rows", "cp.gather_history"}
    assert sum(step.bytes("cp.gather_kv_rows")) == B * chunk * (T - 1) * row
    assert sum(step.bytes("cp.gather_history")) == B * pages * 4 * (T - 1) * row


@pytest.mark.parametrize("layout", Layout)
def test_ffn_gathers_rows_and_scatters_home_in_every_layout(layout: Layout, tiny_v3: Path) -> None:
    step = Step(tiny_v3, layout)
    hidden = step.spec.hidden * FLOAT
    assert sum(step.bytes("ffn.gather_rows")) == B * (T - 1) * hidden
    assert sum(step.bytes("ffn.scatter_out")) == B * (T - 1) * hidden
