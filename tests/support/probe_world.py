"""Probes over groups without a wire: a test says what they answer, and moves the clock."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from services.router.correctness_check import Checker
from services.router.correctness_hold import Holder
from services.router.correctness_memory import MemoryInGroups
from services.router.correctness_prompts import PromptBook, Prompts
from services.router.correctness_round import Asking, Questioner
from services.router.correctness_watch import ProbeWatch
from services.router.metrics import Metrics
from services.router.registry import Registry
from services.router.weights import RoutedModel
from splash_core.dispatch.placement import Pair
from splash_core.policy.correctness import Answer, Said
from tests.support.stub_worker import StubWorker

EVERY_S = 600.0


def said(*tokens: int) -> tuple[Answer, ...]:
    """One clear answer."""
    return (tuple(Said(token=token, logprob=-1.0, margin=1.0) for token in tokens),)


RIGHT, WRONG = said(5, 6), said(5, 7)


class World:
    """Probes of some prefill and decode groups, p0 and d0 the first."""

    def __init__(
        self,
        prefills: int = 1,
        decodes: int = 1,
        *,
        pin_timeout_s: float = 0.01,
        served: RoutedModel | None = None,
    ) -> None:
        self.now = 1000.0
        self.groups = {
            f"{phase[0]}{index}": StubWorker(f"{phase[0]}{index}", phase)
            for phase, count in (("prefill", prefills), ("decode", decodes))
            for index in range(count)
        }
        self.answers: Callable[[Pair], tuple[Answer, ...]] = lambda _: RIGHT
        self.obstacles: dict[tuple[str, str], str] = {}
        self.asked: list[tuple[str, str]] = []
        self.made = 0
        """Prompts."""
        self.book_error: Exception | None = None
        self.metrics = Metrics()
        self._served, self._pin_timeout_s = served, pin_timeout_s
        self.registry, self.watch = self._router()

    def restart_router(self) -> None:
        """A router that knows nothing takes the place of the one before."""
        self.registry, self.watch = self._router()

    def _router(self) -> tuple[Registry, ProbeWatch]:
        workers = {
            phase: [group for group in self.groups.values() if group.phase == phase]
            for phase in ("prefill", "decode")
        }
        registry = Registry(
            workers,
            clock=lambda: self.now,
            poll_interval_s=0.001,
            poll_timeout_s=1.0,
            served=self._served,
        )
        checker = Checker(
            registry=registry,
            questioner=cast("Questioner", self),
            book=cast("PromptBook", self),
            deadline_s=60.0,
            wall=lambda: self.now,
        )
        watch = ProbeWatch(
            registry=registry,
            checker=checker,
            holder=Holder(registry=registry, clock=lambda: self.now, timeout_s=self._pin_timeout_s),
            memory=MemoryInGroups(registry=registry, clock=lambda: self.now, wall=lambda: self.now),
            metrics=self.metrics,
            every_s=EVERY_S,
            clock=lambda: self.now,
        )
        return registry, watch

    def prompts(self, *, ranks: int, page_size: int, longest: int) -> Prompts:
        """As a book of prompts."""
        del ranks, page_size, longest
        self.made += 1
        if self.book_error is not None:
            raise self.book_error
        return ((1, 2),)

    def obstacle(self, pair: Pair, prompts: Prompts, asking: Asking | None = None) -> str | None:
        """As a questioner."""
        del prompts, asking
        return self.obstacles.get(pair.names)

    async def ask(self, pair: Pair, prompts: Prompts, asking: Asking) -> tuple[Answer, ...]:
        """As a questioner."""
        del prompts, asking
        self.asked.append(pair.names)
        return self.answers(pair)

    async def look(self, times: int = 1) -> None:
        """The router looks so often, a second after each other."""
        for _ in range(times):
            self.now += 1.0
            for address in self.groups:
                await self.registry.refresh(address)
            await self.watch.look()

    def wrong_in(self, *layouts: str) -> None:
        """Decode groups say wrong things in some layouts from now on."""
        self.answers = lambda pair: WRONG if self.groups[pair.decode.address].layout in layouts else RIGHT

    def told(self, prefill: str = "p0", decode: str = "d0") -> dict[str, Any]:
        """What the admin port would tell of a pair."""
        pairs = self.watch.to_json()["pairs"]
        (found,) = [pair for pair in pairs if (pair["prefill"], pair["decode"]) == (prefill, decode)]
        return found

    @property
    def pinned(self) -> dict[str, str]:
        """Where groups are held."""
        return {name: group.pinned for name, group in self.groups.items() if group.pinned}

    @property
    def page(self) -> Sequence[str]:
        """Samples of the probes' metrics."""
        lines = self.metrics.render(()).splitlines()
        return [line for line in lines if line.startswith("splash_probe_")]
