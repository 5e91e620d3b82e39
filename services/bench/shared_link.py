"""`splash bench shared-link`: switches and handoffs on one limited link, with and without the arbiter.

Conditions, for each arm (arbiter on, off), each with fresh background streams and the same arrivals:

    idle       switches, no handoffs           what a switch exposes on an idle link
    handoffs   handoffs, no switches           first tokens without switches
    both       switches while requests arrive
    full       many requests at once           what the link carries when it is full
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from services.bench.clock import median, percentile
from services.bench.document import BenchDocument, fresh_path, measured_here
from services.bench.settings import modes_of, words
from services.bench.shared_link_load import GatewayLoad, Probe, Probes, until_quiet
from services.bench.shared_link_rows import with_ratios
from services.bench.shared_link_settings import SharedLinkSettings
from services.bench.shared_link_stack import SharedLinkStack, write_model
from services.bench.shared_link_stages import Answered, first_texts, meets, stages_of
from services.bench.two_hosts import TwoHosts
from splash_core.switch.manifest import SwitchMode

_HTTP_S = 120.0
_SAMPLE_S = 0.25
_NOWHERE = ("out", "commit", "run_dir")
"""Settings that no result depends on."""
_BYTES = "splash_traffic_bytes_total"


@dataclass(slots=True)
class _Window:
    """What one condition gave."""

    probes: Probes = field(default_factory=Probes)
    answered: Sequence[Answered] = ()
    gaps_s: Sequence[float] = ()
    """Between two texts of the background streams."""
    switched: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    switching: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When switches, to either side, began and ended, in monotonic seconds."""
    link_s: float = 0.0
    link_bytes: tuple[int, int] = (0, 0)
    by_class: Mapping[str, int] = field(default_factory=dict[str, int])


def run(settings: SharedLinkSettings) -> BenchDocument:
    """Measure all arms; the document is also written, if it has a folder."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="splash-link-") as folder:
        base = Path(settings.run_dir or folder)
        base.mkdir(parents=True, exist_ok=True)
        model = write_model(base, settings)
        for arm in words(settings.arbiter):
            with (
                TwoHosts(link_bps=settings.link_bps) as hosts,
                SharedLinkStack(
                    settings, hosts, model=model, folder=base / arm, arbiter=arm == "on"
                ) as stack,
            ):
                rows += asyncio.run(_Arm(settings, hosts, stack, model.name).measure(arm))
    document = measured_here(
        "shared-link",
        settings={name: value for name, value in asdict(settings).items() if name not in _NOWHERE},
        rows=with_ratios(rows, settings.link_bps),
        commit=settings.commit,
    )
    if settings.out:
        document.write_to(fresh_path(Path(settings.out), document, settings.label))
    return document


class _Arm:
    """One stack under measurement."""

    def __init__(
        self, settings: SharedLinkSettings, hosts: TwoHosts, stack: SharedLinkStack, model: str
    ) -> None:
        self._settings = settings
        self._hosts = hosts
        self._stack = stack
        self._model = model
        self._client: httpx.AsyncClient

    async def measure(self, arm: str) -> list[dict[str, Any]]:
        """All conditions, as rows."""
        rows: list[dict[str, Any]] = []
        modes = modes_of(self._settings.modes)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=_HTTP_S, limits=limits) as self._client:
            await self._load().burst()  # connections, and the first pass over memory
            for mode in modes:
                rows.append(_row(arm, "idle", await self._window(mode, arrivals=False), mode))
            rows.append(_row(arm, "handoffs", await self._window(None, arrivals=True)))
            for mode in modes:
                rows.append(_row(arm, "both", await self._window(mode, arrivals=True), mode))
            rows.append(_row(arm, "full", await self._full()))
        return rows

    def _load(self) -> GatewayLoad:
        return GatewayLoad(self._client, self._stack.url, model=self._model, settings=self._settings)

    async def _window(self, mode: SwitchMode | None, *, arrivals: bool) -> _Window:
        """One condition, from fresh streams on."""
        settings, load, window = self._settings, self._load(), _Window()
        await until_quiet(self._hosts.carried_bytes, idle_bps=settings.link_bps / 20)
        async with load.background() as streams:
            streams.take_gaps_s()
            before, began = self._hosts.carried_bytes(), time.monotonic()
            classes = await self._class_bytes()
            both = [self._switches(mode, window)] if mode is not None else []
            if arrivals:
                both.append(self._arrive(load, window))
            await asyncio.gather(*both)
            window.link_s = time.monotonic() - began
            after = self._hosts.carried_bytes()
            window.gaps_s = streams.take_gaps_s()
            window.link_bytes = (after[0] - before[0], after[1] - before[1])
            now = await self._settled_bytes()
            window.by_class = {name: now[name] - classes.get(name, 0) for name in now}
        window.answered = [await self._answered(probe, window) for probe in window.probes.answered]
        return window

    async def _answered(self, probe: Probe, window: _Window) -> Answered:
        """A request with what the router knows of its stages."""
        response = await self._client.get(f"{self._stack.admin_url}/admin/requests/{probe.name}/timeline")
        known = response.status_code == 200
        return Answered(
            ttft_s=probe.ttft_s,
            stages=stages_of(response.json(), probe.ttft_s) if known else {},
            met=meets(probe.began, probe.ttft_s, window.switching),
        )

    async def _arrive(self, load: GatewayLoad, window: _Window) -> None:
        window.probes = await load.probes()

    async def _switches(self, mode: SwitchMode, window: _Window) -> None:
        """To the other layout and back, evenly spread; those that move histories are kept.

        With one in a minute there are fifteen seconds between the two, as the policy's dwell asks for.
        """
        home, other = words(self._settings.layouts)
        began, pause = time.monotonic(), self._settings.window_s / self._settings.switches
        for number in range(self._settings.switches):
            await asyncio.sleep(max(0.0, began + (number + 0.25) * pause - time.monotonic()))
            await self._switch(other, mode, window)
            await asyncio.sleep(max(0.0, began + (number + 0.5) * pause - time.monotonic()))
            await self._switch(home, mode, window)

    async def _switch(self, layout: str, mode: SwitchMode, window: _Window) -> None:
        body = {"phase": "decode", "layout": layout, "mode": mode.value, "hold_s": 0}
        began = time.monotonic()
        response = await self._client.post(f"{self._stack.admin_url}/admin/layout", json=body)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        window.switching.append((began, time.monotonic()))
        window.switched += [answer] if answer["bytes"] or answer["precopied_bytes"] else []
        sys.stderr.write(f"{answer} after {time.monotonic() - began:.1f} s\n")

    async def _full(self) -> _Window:
        """The link while more is to be handed over than it carries."""
        window = _Window()
        await until_quiet(self._hosts.carried_bytes, idle_bps=self._settings.link_bps / 20)
        burst = asyncio.create_task(self._load().burst(self._settings.burst))
        samples: list[tuple[float, int]] = []
        while not burst.done():
            samples.append((time.monotonic(), self._hosts.carried_bytes()[0]))
            await asyncio.sleep(_SAMPLE_S)
        window.probes = await burst
        window.answered = [await self._answered(probe, window) for probe in window.probes.answered]
        # Its middle: at either end the link waits for prompts.
        first, last = samples[len(samples) // 4], samples[3 * len(samples) // 4]
        window.link_s, window.link_bytes = last[0] - first[0], (last[1] - first[1], 0)
        return window

    async def _settled_bytes(self) -> Mapping[str, int]:
        """As `_class_bytes`, once ranks have reported and the router has asked."""
        await asyncio.sleep(2.0)
        return await self._class_bytes()

    async def _class_bytes(self) -> Mapping[str, int]:
        """Bytes by class, all groups together."""
        page = (await self._client.get(f"{self._stack.url}/metrics")).text
        total: dict[str, int] = {}
        for line in page.splitlines():
            if line.startswith(f"{_BYTES}{{"):
                labels, _, value = line.rpartition(" ")
                name = labels.partition('class="')[2].partition('"')[0]
                total[name] = total.get(name, 0) + int(float(value))
        return total


def _per_mb(switched: Sequence[Mapping[str, Any]]) -> float | None:
    """Histories grow while they are measured, so switches are compared by what they moved."""
    rates = [answer["exposed_ms"] / (answer["bytes"] / 1e6) for answer in switched if answer["bytes"]]
    return round(median(rates), 2) if rates else None


def _row(arm: str, condition: str, window: _Window, mode: SwitchMode | None = None) -> dict[str, Any]:
    exposed = [answer["exposed_ms"] for answer in window.switched]
    seconds, carried, gaps = window.link_s, window.link_bytes, window.gaps_s
    row: dict[str, Any] = {
        "arbiter": arm,
        "condition": condition,
        "mode": mode.value if mode else "",
        **first_texts(window.answered),
        "failed": len(window.probes.failed),
        "gap_ms_p50": round(median(gaps) * 1e3, 1) if gaps else None,
        "gap_ms_p95": round(percentile(gaps, 0.95) * 1e3, 1) if gaps else None,
        "switches": len(exposed),
        "exposed_ms_p50": round(median(exposed), 1) if exposed else None,
        "exposed_ms_max": round(max(exposed), 1) if exposed else None,
        "exposed_ms_per_mb": _per_mb(window.switched),
        "switched_bytes": sum(answer["bytes"] for answer in window.switched),
        "precopied_bytes": sum(answer["precopied_bytes"] for answer in window.switched),
        "executed_as": ", ".join(sorted({answer["mode"] for answer in window.switched})),
        "bytes_by_class": dict(window.by_class),
        "link_bps": [round(count / seconds) for count in carried],
    }
    sys.stderr.write(f"{row}\n")
    return row
