"""What steps and switches take, by the cost model that policies use too."""

from collections.abc import Sequence
from dataclasses import dataclass

from splash_core.cost.load import Load, OwnerLoad, Rows
from splash_core.cost.model import CostModel
from splash_core.cost.precopy import copying_s, rest_cost
from splash_core.cost.step_kind import StepKind, decode_kind
from splash_core.cost.switch import SwitchBytes, SwitchCost, switch_bytes, switch_cost
from splash_core.layout.layout import RULES, Layout
from splash_core.simulate.machine import BatchRow, StepRun
from splash_core.switch.manifest import SwitchMode
from splash_core.units import STAGING_BYTES

_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class _Owned:
    """Decode rows of one owner, summed: keys after the first step, and those of rows below top-k."""

    rows: int = 0
    keys: int = 0
    near: int = 0
    near_keys: int = 0

    def at(self, step: int, limit: int) -> OwnerLoad:
        """The sums in a later step, each row having one key more a step."""
        keys = float(self.keys + self.rows * step)
        chosen = float(self.near_keys + self.near * step + (self.rows - self.near) * limit)
        return OwnerLoad(float(self.rows), keys, chosen, keys, chosen, float(self.rows))


class DecodeLoads:
    """Loads of decode rows, step after step, without summing their rows anew."""

    def __init__(self, rows: Sequence[BatchRow], *, num_ranks: int, top_k: int | None) -> None:
        self._limit = _NO_LIMIT if top_k is None else top_k
        self._owned = [_Owned() for _ in range(num_ranks)]
        for row in rows:
            owned, keys = self._owned[row.owner % num_ranks], row.context + 1
            owned.rows += 1
            owned.keys += keys
            if keys <= self._limit:
                owned.near += 1
                owned.near_keys += keys

    def at(self, step: int) -> Load:
        """The load of step `step`, from 0."""
        return Load(owners=tuple(owned.at(step, self._limit) for owned in self._owned))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """The clock of a fleet."""

    model: CostModel
    recorded_rows: int = 0
    """As in the snapshots of the group that is priced."""
    staging_bytes: int = STAGING_BYTES
    """The same."""

    def step_s(self, batch: StepRun, layout: Layout) -> float:
        """Time of the batch's first step."""
        if batch.decodes:
            return self.decode_s(self.decode_loads(batch).at(0), layout)
        rows = (Rows(row.num_rows, row.context, row.owner, samples=row.samples) for row in batch.rows)
        load = Load.of(rows, num_ranks=self.model.num_ranks, top_k=self.model.top_k)
        return self.model.predict(RULES[layout], load, kind=StepKind.PROMPTS).step_s

    def decode_loads(self, batch: StepRun) -> DecodeLoads:
        """Loads of the batch's rows, which all are decode rows."""
        return DecodeLoads(batch.rows, num_ranks=self.model.num_ranks, top_k=self.model.top_k)

    def decode_s(self, load: Load, layout: Layout) -> float:
        """Time of a step of decode rows."""
        kind = decode_kind(RULES[layout], load, recorded_rows=self.recorded_rows)
        return self.model.predict(RULES[layout], load, kind=kind).step_s

    def kind(self, batch: StepRun, layout: Layout) -> StepKind:
        """How a batch's first step runs."""
        if not batch.decodes:
            return StepKind.PROMPTS
        load = self.decode_loads(batch).at(0)
        return decode_kind(RULES[layout], load, recorded_rows=self.recorded_rows)

    def switch(
        self,
        layout_from: Layout,
        layout_to: Layout,
        batch: StepRun,
        *,
        owner_tokens: Sequence[int],
        step_s: float,
    ) -> SwitchCost:
        """By what a switch makes its step, which computes a batch in the destination, longer."""
        kind = self.kind(batch, layout_to)
        if batch.rest is not None and batch.rest.mode is SwitchMode.PRECOPIED:
            return rest_cost(
                self.model.profile,
                batch.rest.moved,
                layers=self.model.spec.num_mla_layers,
                kind=kind,
                step_s=step_s,
                whole_bytes=self.staging_bytes,
            )
        if batch.rest is not None:
            return self._cost(batch.rest.moved, kind, step_s)
        rules = RULES[layout_from], RULES[layout_to]
        moved = switch_bytes(self.model.spec, self.model.precision, *rules, owner_tokens=owner_tokens)
        return self._cost(moved, kind, step_s)

    def relocation_s(self, batch: StepRun, layout: Layout, page_size: int, *, step_s: float) -> float:
        """By what landed prompts that are brought to their places make a step longer."""
        spec, precision = self.model.spec, self.model.precision
        row = precision.kv_token_bytes(spec) / spec.num_mla_layers
        size = round(batch.relocated_pages * page_size * row)
        return self._cost(SwitchBytes(weights=0, kv=size), self.kind(batch, layout), step_s).total_s

    def ahead_s(self, size: int, *, step_s: float) -> float:
        """By what copies ahead of a switch make an ordinary step longer."""
        return copying_s(self.model.profile, size, ordinary_s=step_s)

    def prompt_bytes(self, tokens: int) -> int:
        """KV of so many tokens."""
        return tokens * self.model.precision.kv_token_bytes(self.model.spec)

    def _cost(self, moved: SwitchBytes, kind: StepKind, step_s: float) -> SwitchCost:
        layers = self.model.spec.num_mla_layers
        return switch_cost(self.model.profile, moved, layers=layers, step_s=step_s, mode=kind.mode)
