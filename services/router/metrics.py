"""Counters and histograms of the gateway in Prometheus' text form.

Invariant: every metric's name, unit and meaning stand in one table here; a name that does not is an error
where it is counted, shown or rendered, never a sample that is missing.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from splash_core.errors import InvariantBroken

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

TRAFFIC: Mapping[str, tuple[str, str]] = {
    "bytes_total": ("counter", "Bytes that a group has moved, by class of traffic and peer."),
    "operations_total": ("counter", "Moves of a group that have ended, well or not."),
    "failures_total": ("counter", "Moves of a group that failed or were cancelled."),
    "in_flight": ("gauge", "Moves of a group that are under way or held back."),
    "held_seconds_total": ("counter", "Time that moves waited for what they carry to be computed."),
    "waits_total": ("counter", "Pieces of moves that waited for their turn on a link."),
    "wait_seconds_total": ("counter", "Time that they waited."),
    "moving_seconds_total": ("counter", "Time from the first byte of a move to its end."),
}
"""By the names of `splash_core.transport.counters.TrafficCount`."""

_PROBES: Mapping[str, tuple[str, str]] = {
    "checks_total": ("counter", "Checks of a pair of groups that have come to an end."),
    "drifts_total": ("counter", "Checks that found other answers than the reference, twice in a row."),
    "odd_total": ("counter", "Checks that found other answers once and not again."),
    "skipped_total": ("counter", "Checks that had to wait or were given up."),
    "gave_up_total": ("counter", "Checks that were given up."),
    "last_delta": ("gauge", "Largest difference of log-probabilities in the newest check."),
    "last_check_timestamp_seconds": ("gauge", "When that was, since the epoch."),
    "alarm": ("gauge", "1 from a drift until answers are as before and nothing is held, or a reset."),
}
"""Of the checks that probes make, by pair of groups."""

_HELP: Mapping[str, tuple[str, str]] = {
    "splash_requests_total": ("counter", "Requests answered, by endpoint and HTTP status."),
    "splash_stream_errors_total": ("counter", "Streams that ended with an error object."),
    "splash_prompt_tokens_total": ("counter", "Prompt tokens of accepted requests."),
    "splash_generated_tokens_total": ("counter", "Tokens generated for clients."),
    "splash_ttft_seconds": ("histogram", "Time from a request's acceptance to its first text."),
    "splash_itl_seconds": ("histogram", "Time between consecutive texts of one choice, per token."),
    "splash_running_sequences": ("gauge", "Sequences between entry and end."),
    "splash_queued_sequences": ("gauge", "Sequences that wait for their first token."),
    "splash_queued_prompt_tokens": ("gauge", "Prompt tokens of sequences that wait for their first token."),
    "splash_group_running": ("gauge", "Sequences that a group runs."),
    "splash_group_waiting": ("gauge", "Sequences that wait in a group."),
    "splash_group_kv_tokens_used": ("gauge", "Tokens of KV history held by a group."),
    "splash_group_kv_tokens_total": ("gauge", "Tokens of KV history that a group can hold."),
    "splash_group_steps_total": ("counter", "Steps a group has finished in its present life."),
    "splash_group_layout_epoch": ("gauge", "Layout epoch of a group: one more for each switch."),
    "splash_step_compared_total": (
        "counter",
        "Steps of a group that were predicted and measured.",
    ),
    "splash_step_predicted_seconds_total": ("counter", "Predicted time of those steps."),
    "splash_step_measured_seconds_total": ("counter", "Measured time of those steps."),
    "splash_step_measured_ratio": ("gauge", "Median of measured over predicted time, of the newest steps."),
    "splash_step_drift": ("gauge", "1 while that ratio is out of the band in which predictions are trusted."),
    "splash_group_policy_version": ("gauge", "Version of the policy that a group decides by; 0: its own."),
    "splash_policy_version": ("gauge", "Active version of the policy."),
    "splash_policy_rejected_total": ("counter", "Edits of the policy that were not valid, by source."),
    **{f"splash_probe_{name}": entry for name, entry in _PROBES.items()},
    **{f"splash_traffic_{name}": entry for name, entry in TRAFFIC.items()},
}

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]


class Histogram:
    """Observations in fixed buckets."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, value_s: float) -> None:
        """Count one observation, seconds."""
        self._counts[bisect_left(_SECONDS, value_s)] += 1
        self._sum += value_s

    def samples(self) -> Iterable[Sample]:
        """Cumulative buckets, sum and count."""
        total = 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f"{self._name}_bucket", (("le", bound),), total
        yield f"{self._name}_sum", (), self._sum
        yield f"{self._name}_count", (), total


class Metrics:
    """What the gateway counts."""

    def __init__(self) -> None:
        self.ttft = Histogram("splash_ttft_seconds")
        self.itl = Histogram("splash_itl_seconds")
        self._counters: Counter[tuple[str, Labels]] = Counter()
        self._shown: dict[tuple[str, Labels], float] = {}

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        self._counters[_series(name, labels)] += amount

    def show(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._shown[_series(name, labels)] = value

    def hide(self, name: str, **labels: str) -> None:
        """End a gauge that has no value any more."""
        self._shown.pop(_series(name, labels), None)

    def forget(self, name: str, **labels: str) -> None:
        """End a series whose subject has gone: gauge or counter."""
        self.hide(name, **labels)
        self._counters.pop(_series(name, labels), None)

    def render(self, gauges: Iterable[Sample]) -> str:
        """The whole page; `gauges` are values of the moment."""
        samples = [(name, labels, float(value)) for (name, labels), value in self._counters.items()]
        samples += [(name, labels, value) for (name, labels), value in self._shown.items()]
        samples += [*self.ttft.samples(), *self.itl.samples(), *gauges]
        families: dict[str, list[str]] = {name: [] for name in _HELP}
        for sample in samples:
            families[_family(sample[0])].append(_line(sample))
        lines: list[str] = []
        for name, (kind, text) in _HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *families[name]]
        return "\n".join(lines) + "\n"


def _series(name: str, labels: Mapping[str, str]) -> tuple[str, Labels]:
    return _declared(name), tuple(sorted(labels.items()))


def _family(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        if name.removesuffix(suffix) in _HELP:
            return name.removesuffix(suffix)
    return _declared(name)


def _declared(name: str) -> str:
    if name not in _HELP:
        raise InvariantBroken(f"metric {name!r} is not declared; add it to services/router/metrics.py")
    return name


def _line(sample: Sample) -> str:
    name, labels, value = sample
    shown = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    number = _number(value)
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    return repr(value) if value != int(value) else str(int(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
