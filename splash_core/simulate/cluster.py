"""A simulated deployment: router, groups and handoffs, from the first arrival to the last token.

Requests are placed first come first served by the router's own arithmetic (`splash_core.dispatch`). The
router's view of the groups is never old here, and messages take no time.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from splash_core.dispatch.admission import Demand, QueueLoad, pair_limits, project, refuse_entry
from splash_core.dispatch.placement import NoRoom, choose_decode, choose_prefill
from splash_core.errors import InvariantBroken
from splash_core.layout.layout import Layout
from splash_core.scheduling.roles import Role
from splash_core.simulate.agenda import Agenda, EventOrder
from splash_core.simulate.cores import Cores
from splash_core.simulate.counted import CountedMachine
from splash_core.simulate.fleet import Fleet
from splash_core.simulate.ledger import TOO_LONG, Ledger, Times
from splash_core.simulate.machine import Machine
from splash_core.simulate.pilots import Pilot
from splash_core.simulate.pricing import Pricing
from splash_core.simulate.scheduled import ScheduledMachine
from splash_core.simulate.station import Station
from splash_core.simulate.workload import Request, Workload
from splash_core.simulate.world import ANY_STEPS, Told, World


class Detail(Enum):
    """How closely groups are simulated. All three take the same decisions; tests hold them together."""

    FAST = auto()
    """Counted pages, steps of one shape at once."""
    STEPS = auto()
    """Counted pages, one step at a time."""
    PAGES = auto()
    """The product's scheduler: page by page, one step at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How the groups of a run choose their layouts."""

    start: Mapping[Role, Layout]
    pilot: Callable[[Role, str], Pilot]
    """Makes the pilot of a group with a role and a name."""


@dataclass(slots=True)
class _Open:
    """A request between arrival and end."""

    request: Request
    demand: Demand
    times: Times
    prefill: Station | None = None
    decode: Station | None = None


class Cluster:
    """One run of a workload; to be run once."""

    def __init__(self, fleet: Fleet, course: Course, *, detail: Detail = Detail.FAST) -> None:
        self.ledger = Ledger()
        self.stations: dict[Role, list[Station]] = {role: [] for role in Role}
        self._by_name: dict[str, Station] = {}
        self._fleet = fleet
        self._agenda = Agenda()
        self._pricing = Pricing(model=fleet.model)
        self._cores = Cores(fleet.host_cores, ranks=fleet.model.num_ranks)
        self._waiting: deque[_Open] = deque()
        self._unheard = QueueLoad(requests=0, prompt_tokens=0)
        self._open: dict[int, _Open] = {}
        self._next_turns: dict[int, list[Request]] = {}
        self._placements = 0
        for name, role in fleet.names.items():
            station = self._station(name, role, course, detail)
            self.stations[role].append(station)
            self._by_name[name] = station

    def run(self, workload: Workload) -> Ledger:
        """Serve everything; returns what it was like.

        Raises:
            InvariantBroken: a request did not end, or something is still held.
        """
        for request in workload.requests:
            if request.follows is None:
                self._expect(request, request.arrival_s)
            else:
                self._next_turns.setdefault(request.follows, []).append(request)
        self._agenda.run()
        self._check(len(workload.requests))
        return self.ledger

    def _check(self, num_requests: int) -> None:
        served = len(self.ledger.finished) + self.ledger.refused.total()
        if served != num_requests or self._open:
            raise InvariantBroken(f"{num_requests} requests came, {served} ended, {len(self._open)} are open")
        for station in self._by_name.values():
            if not station.idle or station.machine.pages_held:
                raise InvariantBroken(f"{station.name} still holds {station.machine.pages_held} pages")
            station.machine.check()

    def _station(self, name: str, role: Role, course: Course, detail: Detail) -> Station:
        config, layout = self._fleet.config(role, name), course.start[role]
        machine: Machine
        if detail is Detail.PAGES:
            machine = ScheduledMachine(self._fleet, config, layout, clock=lambda: self._agenda.now)
        else:
            machine = CountedMachine(self._fleet, config, layout)
        world = World(
            fleet=self._fleet,
            agenda=self._agenda,
            ledger=self.ledger,
            cores=self._cores,
            told=Told(leased=self._leased, prefilled=self._prefilled, finished=self._finished),
            most_steps=ANY_STEPS if detail is Detail.FAST else 1,
        )
        return Station(name, role, machine, course.pilot(role, name), world=world)

    # ------------------------------------------------------------------------------- the router

    def _expect(self, request: Request, when: float) -> None:
        self._agenda.at(when, EventOrder.ARRIVAL, lambda: self._arrive(request))

    def _arrive(self, request: Request) -> None:
        demand = project(
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.max_tokens,
            expected_output=self._fleet.expected_output,
        )
        refusal = self._refusal(demand)
        if refusal:
            self.ledger.refused[refusal] += 1
            self._follow(request.key)
            return
        times = Times(
            key=request.key,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            arrived_s=self._agenda.now,
        )
        entry = self._open[request.key] = _Open(request, demand, times)
        self._hear(entry, 1)
        self._waiting.append(entry)
        self._place()

    def _refusal(self, demand: Demand) -> str:
        if not pair_limits(self._fleet.limits, self._fleet.limits).hold(demand):
            return TOO_LONG
        if self._fleet.queue is None:
            return ""
        full = refuse_entry(
            sequences=1, prompt_tokens=demand.prompt_tokens, waiting=self._unheard, limits=self._fleet.queue
        )
        return "" if full is None else "too many wait"

    def _hear(self, entry: _Open, sign: int) -> None:
        """One more (or fewer) waits for its first token."""
        self._unheard = QueueLoad(
            requests=self._unheard.requests + sign,
            prompt_tokens=self._unheard.prompt_tokens + sign * entry.request.prompt_tokens,
        )
        if entry.prefill is not None:
            entry.prefill.note_pending(sign * entry.request.prompt_tokens)

    def _place(self) -> None:
        """Give those who wait to groups, in order, while there is room."""
        while self._waiting:
            entry = self._waiting[0]
            decodes = self.stations[Role.COMBINED if self._fleet.combined else Role.DECODE]
            chosen = choose_decode(
                [station.load for station in decodes],
                entry.demand,
                rotation=self._placements,
                overcommit=self._fleet.kv_overcommit,
            )
            if isinstance(chosen, NoRoom):
                return
            self._waiting.popleft()
            entry.decode = self._by_name[chosen.address]
            if self._fleet.combined:
                entry.times.groups = (chosen.address,)
                entry.decode.add(entry.request)
            else:
                self._place_prompt(entry)
                entry.decode.submit(entry.request, entry.demand)
            self._placements += 1

    def _place_prompt(self, entry: _Open) -> None:
        prefills = self.stations[Role.PREFILL]
        chosen = choose_prefill([station.load for station in prefills], rotation=self._placements)
        entry.prefill = self._by_name[chosen.address]
        entry.prefill.note_pending(entry.request.prompt_tokens)
        assert entry.decode is not None
        entry.times.groups = (chosen.address, entry.decode.name)

    # ------------------------------------------------------------------------- a request's life

    def _leased(self, key: int) -> None:
        entry = self._open[key]
        assert entry.prefill is not None
        entry.prefill.add(entry.request)

    def _prefilled(self, key: int, group: str, pushed_s: float) -> None:
        entry = self._open[key]
        assert entry.decode is not None
        if entry.decode.name == group:
            self._first_token(entry)
            return
        size = self._pricing.prompt_bytes(entry.request.prompt_tokens)
        entry.decode.inbound_bytes += size
        self._agenda.at(pushed_s, EventOrder.LANDING, lambda: self._landed(entry, size))

    def _landed(self, entry: _Open, size: int) -> None:
        assert entry.prefill is not None
        assert entry.decode is not None
        entry.decode.inbound_bytes -= size
        entry.prefill.release(entry.request.key)
        self._first_token(entry)
        if entry.decode.land(entry.request.key):
            self._finished(entry.request.key)

    def _first_token(self, entry: _Open) -> None:
        self._hear(entry, -1)
        entry.times.first_s = self._agenda.now

    def _finished(self, key: int) -> None:
        entry = self._open.pop(key)
        entry.times.finished_s = self._agenda.now
        self.ledger.finished.append(entry.times)
        self._follow(key)
        if self._waiting:
            # After all that this step ends.
            self._agenda.at(self._agenda.now, EventOrder.ARRIVAL, self._place)

    def _follow(self, key: int) -> None:
        for request in self._next_turns.pop(key, ()):
            self._expect(request, self._agenda.now + request.arrival_s)
