"""Which weights router, groups and references are of, where that keeps something from being used: in words.

Invariant: whoever is told that fingerprints differ reads both, whose they are, and what to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.router.pairing import compatible, differences
from services.router.records import GroupRecord
from splash_core.leader.fingerprint import same_checkpoint, short_fingerprint
from splash_core.pb import common_pb2
from splash_core.policy.correctness_notes import PairName, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedModel:
    """The model whose tokenizer this router has; its groups must have the same."""

    name: str
    fingerprint: str
    """Of the checkpoint, as in the groups' KV ABI."""

    def mismatch(self, abi: common_pb2.KvAbi) -> str | None:
        """Why a group may not be asked: its tokens would mean something else."""
        if same_checkpoint(self.fingerprint, abi.model):
            return None
        same_config = self.fingerprint.partition("-")[0] == abi.model.partition("-")[0]
        return (
            f"serves {abi.model_name!r} (fingerprint {short_fingerprint(abi.model)}), but this router "
            f"{self.name!r} (fingerprint {short_fingerprint(self.fingerprint)}): "
            f"{'other weights of one config' if same_config else 'another config'}; restart the group with "
            "the router's --model, or give both the same --model"
        )


def why_out(record: GroupRecord, records: Sequence[GroupRecord]) -> str | None:
    """Why a group is given no requests now, for its own sake or for want of a partner; None when it is."""
    if record.trouble is not None:
        return record.trouble
    partners = [other for other in records if other.phase != record.phase and other.trouble is None]
    if not partners or any(_fit(record, other) for other in partners):
        return None
    return "; ".join(_parted(record, other) for other in partners)


def why_reference_left(
    pair: PairName, records: Sequence[GroupRecord], references: Sequence[Round]
) -> str | None:
    """Why the newest reference that is of other weights than a pair's groups does not apply to them.

    None where another reference is of the weights that all of them serve.

    Args:
        pair: of groups.
        records: all groups.
        references: all that are kept.
    """
    serving = {
        record.label: record.description.abi.model
        for record in records
        if record.label in pair and record.description is not None
    }
    others = [one for one in references if any(one.mark.model != model for model in serving.values())]
    if len(others) < len(references) or not others:
        return None
    was = max(others, key=lambda one: one.time_s).mark.model
    changed = {group: short_fingerprint(model) for group, model in serving.items() if model != was}
    serves = " and ".join(f"{group} serves {fingerprint}" for group, fingerprint in changed.items())
    return (
        f"the reference of fingerprint {short_fingerprint(was)} does not apply: {serves}, and answers of "
        f"other weights cannot be compared. If that was not meant, restart {' and '.join(changed)} with the "
        "--model of before; if it was, give router and all groups the new --model: first answers become a "
        "reference, and `splash canary reset` forgets this one"
    )


def _fit(record: GroupRecord, other: GroupRecord) -> bool:
    return compatible(*_in_order(record, other))


def _parted(record: GroupRecord, other: GroupRecord) -> str:
    """Why two groups cannot serve together."""
    prefill, decode = _in_order(record, other)
    assert record.description is not None, "a group without trouble is described"
    assert other.description is not None, "a group without trouble is described"
    ours, theirs = record.description.abi.model, other.description.abi.model
    if ours == theirs:
        return f"does not fit {other.label}: {'; '.join(differences(prefill, decode))}"
    return (
        f"serves fingerprint {short_fingerprint(ours)}, but {other.label} {short_fingerprint(theirs)}: KV of "
        "other weights means nothing there; restart the one that is wrong with the other's --model"
    )


def _in_order(record: GroupRecord, other: GroupRecord) -> tuple[GroupRecord, GroupRecord]:
    return (record, other) if record.phase == "prefill" else (other, record)
