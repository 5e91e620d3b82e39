"""One round of probes: all fixed prompts, sent to one pair of groups as requests of purpose `PROBE`.

They are charged to their groups like users' requests, wait behind all of them, and are in none of the counts
of requests that the router keeps. Invariant: when a round ends, however it does, both groups hold nothing of
it.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from services.router.attempt import AttemptFailed, AttemptHooks, attempt
from services.router.charge import Charge
from services.router.correctness_prompts import Prompts
from services.router.dispatch import Dispatcher
from services.router.events import SequenceJob, Tokens
from services.router.records import GroupRecord
from services.router.registry import Registry
from splash_core.dispatch.admission import Demand, GroupLoad
from splash_core.dispatch.placement import Pair
from splash_core.errors import Unavailable
from splash_core.policy.correctness import Answer, Said
from splash_core.scheduling.step import TokenLogprobs
from splash_core.spec.request import MOST_PRIORITY, Purpose, SamplingParams

ANSWER_TOKENS = 24
SAMPLING = SamplingParams(
    temperature=0.0,
    max_tokens=ANSWER_TOKENS,
    min_tokens=0,
    logprobs=2,
    purpose=Purpose.PROBE,
    priority=MOST_PRIORITY,
)
"""Greedy, to the full length, and marked as nobody's; the priority is for leaders that know no marks yet."""


@dataclass(slots=True, kw_only=True)
class Asking:
    """A round under way: which of its requests may wait in a group, so that all others there are users'."""

    charges: list[Charge] = field(default_factory=list[Charge])

    def waiting(self, record: GroupRecord) -> int:
        """At most so many of those that a group tells of as waiting."""
        return sum(charge.may_wait(record) for charge in self.charges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questioner:
    """Sends rounds."""

    registry: Registry
    dispatcher: Dispatcher
    new_id: Callable[[], str]

    def obstacle(self, pair: Pair, prompts: Prompts, asking: Asking | None = None) -> str | None:
        """Why the pair may not be asked now, or not any longer; None where it may.

        Args:
            pair: of groups, with their loads.
            prompts: to ask.
            asking: how far that is, where they have been sent already.
        """
        if self.dispatcher.leaving or self.dispatcher.draining:
            return "the router is draining"
        tokens = 0 if asking else sum(len(prompt) + ANSWER_TOKENS for prompt in prompts)
        for load in (pair.prefill, pair.decode):
            record = self.registry.record(load.address)
            if record.trouble is not None:
                return record.told
            if found := _saturation(record, load, own=asking.waiting(record) if asking else 0, tokens=tokens):
                return f"{record.label} is saturated: {found}"
        return None

    async def ask(self, pair: Pair, prompts: Prompts, asking: Asking) -> tuple[Answer, ...]:
        """The answers to all prompts, sent at once and followed in `asking`; raises `SplashError`."""
        name = f"probe-{self.new_id()}"
        jobs = [
            SequenceJob(request_id=f"{name}-{index}", prompt=prompt, sampling=SAMPLING)
            for index, prompt in enumerate(prompts)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._answer(pair, job, asking)) for job in jobs]
        except ExceptionGroup as failed:
            raise self._cause(failed) from failed
        return tuple(task.result() for task in tasks)

    def _cause(self, failed: ExceptionGroup) -> Exception:
        """The first failure, as the error that a client would get."""
        first = failed.exceptions[0]
        if not isinstance(first, AttemptFailed):
            return first
        for address in first.blamed:
            self.registry.suspect(address)
        return first.cause

    async def _answer(self, pair: Pair, job: SequenceJob, asking: Asking) -> Answer:
        prefill, decode = pair.prefill.address, pair.decode.address
        demand = Demand(
            prompt_tokens=len(job.prompt), output_tokens=ANSWER_TOKENS, required_output_tokens=ANSWER_TOKENS
        )
        charge = self.registry.charge(prefill=prefill, decode=decode, demand=demand)
        asking.charges.append(charge)
        hooks = AttemptHooks(
            leased=lambda: self.registry.leased(charge),
            prefilled=lambda _: None,
            first_token=lambda: self.registry.drawn(charge),
            decoded=lambda _: None,
        )
        workers = self.registry.workers
        said: list[Said] = []
        try:
            events = attempt(job, prefill=workers[prefill], decode=workers[decode], hooks=hooks)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Tokens):
                        if len(event.logprobs) != len(event.tokens):
                            raise Unavailable(f"{pair.decode.group} answers without log-probabilities")
                        said += [_said(entry) for entry in event.logprobs]
        finally:
            self.registry.discharge(charge)
        return tuple(said)


def _saturation(record: GroupRecord, load: GroupLoad, *, own: int, tokens: int) -> str | None:
    """Whom a round would delay, in words; at most `own` of its requests wait there themselves."""
    waiting = 0 if record.state is None else record.state.waiting
    if waiting > own:
        return f"{waiting - own} requests wait"
    if tokens and load.sequences and load.kv_tokens_projected + tokens > load.kv_tokens_total:
        return f"{load.kv_tokens_projected} of {load.kv_tokens_total} KV tokens are projected"
    return None


def _said(entry: TokenLogprobs) -> Said:
    others = [logprob for token, logprob in entry.top if token != entry.token]
    margin = entry.logprob - max(others) if others else float("inf")
    return Said(token=entry.token, logprob=entry.logprob, margin=margin)
