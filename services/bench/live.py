"""A running stack as benchmarks see it: layouts held and let go, requests streamed, idleness awaited.

Layouts are asked for by phase, and no group is named: it is for stacks of one group a phase. Invariant: a
layout that is held stays until the next one, whatever the policy finds.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import openai

from services.admin_client import AdminClient
from services.bench.streams import Prompt, Streamed, stream_all
from services.launch import Stack
from splash_core.config import UpSettings
from splash_core.errors import Unavailable
from splash_core.layout.layout import Layout
from splash_core.leader.build import DEFAULT_LAYOUT, resolve_model
from splash_core.policy.snapshot import Phase
from splash_core.spec.model import ModelSpec

HOLD_S = 3600.0
"""Longer than any benchmark: the policy leaves a layout alone that was asked for."""
_LOOK_S = 0.05
_IDLE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchStack:
    """A stack and the clients that are connected to it; made by `bench_stack`."""

    client: openai.OpenAI
    admin: AdminClient
    admin_url: str
    pids: Mapping[str, int]
    """Of the services, by name."""
    model: str
    """As clients call it."""

    def go(self, layouts: Mapping[Phase, Layout], *, hold_s: float = HOLD_S) -> None:
        """Switch each phase into a layout, which its policy leaves alone for some time, in seconds."""
        for phase, layout in layouts.items():
            self._go(phase, layout, hold_s)

    def hold(self, layouts: Mapping[Phase, Layout]) -> None:
        """Switch each phase into a layout and pin it there, as the simulator's fixed runs are."""
        for phase, layout in layouts.items():
            self.admin.post("/admin/unpin", {"phase": phase.value})
            self._go(phase, layout, HOLD_S)
            self.admin.post("/admin/pin", {"phase": phase.value, "layout": layout.value})

    def let_go(self) -> None:
        """Leave both phases to the policy, from the layouts in which services start."""
        for phase in Phase:
            self.admin.post("/admin/unpin", {"phase": phase.value})
            self._go(phase, DEFAULT_LAYOUT[phase], 0.0)

    def epochs(self) -> Mapping[str, int]:
        """How often each group has switched, by name."""
        groups = self.admin.get("/admin/cluster")["groups"]
        return {group["group"]: group["layout_epoch"] for group in groups}

    def switched_since(self, before: Mapping[str, int]) -> int:
        """Switches of all groups since `epochs` gave that."""
        return sum(after - before[name] for name, after in self.epochs().items())

    def await_idle(self) -> None:
        """Return when no page is held.

        Raises:
            Unavailable: some are, long after the last request.
        """
        end = time.monotonic() + _IDLE_S
        while self.admin.get("/admin/audit")["pages_held"] != 0:
            if time.monotonic() > end:
                raise Unavailable(f"pages are held {_IDLE_S:g} s after the last request; see `splash audit`")
            time.sleep(_LOOK_S)

    def stream_all(self, prompts: Sequence[Prompt]) -> list[Streamed]:
        """Send all requests at one moment and read them to their ends.

        Raises:
            openai.OpenAIError: a request failed.
        """
        return stream_all(self.client, prompts, model=self.model)

    def _go(self, phase: Phase, layout: Layout, hold_s: float) -> None:
        body = {"phase": phase.value, "layout": layout.value, "hold_s": hold_s}
        self.admin.post("/admin/layout", body)


@contextmanager
def bench_stack(settings: UpSettings) -> Iterator[BenchStack]:
    """Start a stack; leaving the block ends all its processes."""
    with Stack(settings) as stack:
        client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)
        with client, AdminClient(stack.admin_url, "") as admin:
            yield BenchStack(
                client=client,
                admin=admin,
                admin_url=stack.admin_url,
                pids=stack.pids,
                model=settings.served_model_name or resolve_model(settings.model).name,
            )


def everywhere(layout: Layout) -> dict[Phase, Layout]:
    """One layout in both phases."""
    return dict.fromkeys(Phase, layout)


def vocab_of(model: str) -> int:
    """Size of a model's vocabulary.

    Args:
        model: as `--model` names it.
    """
    checkpoint = resolve_model(model)
    return ModelSpec.from_checkpoint(checkpoint, name=checkpoint.name).vocab


def accelerators(device: str) -> str:
    """What a document says of the machine's devices beside its CPUs."""
    if device == "cpu":
        return ""
    # Imported here: on CPU nothing else in this process needs it.
    import torch

    return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}"
