"""From settings to the parts of a leader: model, arena, feasible layouts, scheduler, cost model.

Invariant: whatever cannot work is refused here, before any process is started, with the remedy.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splash_core.config import GroupSettings
from splash_core.cost.model import CostModel
from splash_core.cost.precision import named_precision
from splash_core.cost.profile import HardwareProfile, analytical_profile
from splash_core.environment import cache_home
from splash_core.errors import ConfigError, Infeasible
from splash_core.ids import GroupId, Incarnation
from splash_core.layout.catalog import InfeasibleLayout, catalog_of_arena, named_layouts
from splash_core.layout.forms import attention_library
from splash_core.layout.layout import Layout, shown_layouts
from splash_core.layout.slots import ArenaMap
from splash_core.leader.checks import check_group
from splash_core.leader.fingerprint import served_fingerprint
from splash_core.leader.profile_file import read_profile
from splash_core.leader.reaching import transport_options
from splash_core.leader.room import computes_on, draw_arena, element_type
from splash_core.policy.config import load_document
from splash_core.policy.in_force import PolicyInForce, why_not
from splash_core.policy.snapshot import Phase
from splash_core.rpc.abi import kv_abi
from splash_core.scheduling.attention_choice import Fastest
from splash_core.scheduling.buckets import decode_buckets
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.group import GroupScheduler
from splash_core.scheduling.limits import max_request_tokens
from splash_core.scheduling.roles import Role
from splash_core.spec.model import ModelSpec
from splash_core.switch.chunks import chunk_bytes
from splash_core.transport.abi import KvAbi
from splash_core.transport.options import MOONCAKE, TransportOptions

DEFAULT_LAYOUT = {Phase.PREFILL: Layout.TP, Phase.DECODE: Layout.DP}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBlueprint:
    """Everything that is fixed before a group's first process starts."""

    phase: Phase
    settings: GroupSettings
    checkpoint: Path
    spec: ModelSpec
    fingerprint: str
    """Of the checkpoint."""
    dtype: str
    arena: ArenaMap
    layout: Layout
    infeasible: Mapping[Layout, str]
    """Why each layout that the settings name and the group cannot run is out of the question."""
    incarnation: Incarnation
    scheduling: SchedulerConfig
    policy: PolicyInForce
    """What holds until a router brings another version."""
    profile: HardwareProfile
    """What step times are predicted with."""

    @property
    def group(self) -> str:
        """The group's name."""
        return self.scheduling.group

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        return self.settings.served_model_name or self.checkpoint.name

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output that model and settings allow, tokens; the pool is not asked."""
        return min(self.spec.max_positions, self.settings.max_model_len or self.spec.max_positions)

    @property
    def abi(self) -> KvAbi:
        """What a partner group must agree on."""
        return kv_abi(
            self.spec,
            dtype=self.dtype,
            page_size=self.settings.page_size,
            fingerprint=self.fingerprint,
            transport=self.transport.speaks,
        )

    @property
    def transport(self) -> TransportOptions:
        """How its ranks reach other groups."""
        return replace(transport_options(self.settings), writer=self.incarnation)

    @property
    def sign_within_s(self) -> float:
        """How long a writer may be silent before its writes are ended; 0 where only its death ends them."""
        fences = self.phase is Phase.DECODE and self.transport.name == MOONCAKE
        return self.settings.transport_silence_s if fences else 0.0

    @property
    def shown_layouts(self) -> tuple[Layout, ...]:
        """Layouts that operators are told about."""
        return shown_layouts((*self.scheduling.layouts, *self.infeasible))

    @property
    def recorded_layouts(self) -> tuple[Layout, ...]:
        """Layouts whose decode steps the ranks record: of a prefill group none."""
        return self.scheduling.layouts if self.recorded_buckets else ()

    @property
    def recorded_buckets(self) -> tuple[int, ...]:
        """Home rows per rank of the steps that they record, ascending; the policy prices by the largest."""
        return _buckets(self.settings, self.phase)

    def refusal(self, layout: Layout) -> str:
        """Why the group never runs a layout, or an empty text."""
        if layout in self.scheduling.layouts:
            return ""
        return self.infeasible.get(layout, f"{layout} is not among the group's --layouts")

    @property
    def shared_link_bps(self) -> float:
        """Rate of a rank's link that switches and handoffs share, bytes/s; 0 where they have one each."""
        return self._profile.link_bps if self.settings.device == "cpu" else 0.0

    @property
    def _profile(self) -> HardwareProfile:
        budget = self.settings.link_bytes_per_s
        # On a host's CPUs one link carries everything, so its budget bounds switches too.
        shared = bool(budget) and self.settings.device == "cpu"
        return replace(self.profile, link_bps=min(self.profile.link_bps, budget)) if shared else self.profile

    def cost_model(self) -> CostModel:
        """Predicts step times on the ranks' devices."""
        return CostModel(
            spec=self.spec,
            precision=named_precision(self.dtype),
            profile=self._profile,
            num_ranks=self.settings.ranks,
            library=attention_library(self.spec, dtype=self.dtype, gpu=computes_on(self.settings).name),
        )

    def scheduler(self, clock: Callable[[], float]) -> GroupScheduler:
        """A fresh scheduler in the starting layout."""
        return GroupScheduler(
            spec=self.spec,
            arena=self.arena,
            layout=self.layout,
            config=self.scheduling,
            clock=clock,
            infeasible=self.infeasible,
            chooser=Fastest(self.cost_model()),
        )


def resolve_model(model: str) -> Path:
    """The checkpoint folder that `--model` names: a folder, or a model in the cache.

    Raises:
        ConfigError: there is neither; says how to get one.
    """
    if not model:
        raise ConfigError("--model is required: a checkpoint folder or a fetched model's name")
    found = _checkpoint_at(Path(model)) or fetched_model(model)
    if found is not None:
        return found
    raise ConfigError(
        f"model {model!r} is neither a folder with a config.json nor fetched; "
        f"try `splash model fetch {model}` or give the folder of a checkpoint"
    )


def fetched_model(name: str) -> Path | None:
    """The folder of a fetched model, if there is one of that name."""
    return _checkpoint_at(cache_home() / "models" / name)


def _checkpoint_at(path: Path) -> Path | None:
    return path.resolve() if (path / "config.json").is_file() else None


def draw_blueprint(settings: GroupSettings, phase: Phase) -> GroupBlueprint:
    """Check settings against the model and this host.

    Raises:
        ConfigError: a setting or the checkpoint is wrong.
        Infeasible: nothing fits; carries the nearest setting that does.
    """
    checkpoint = resolve_model(settings.model)
    spec = ModelSpec.from_checkpoint(checkpoint, name=checkpoint.name)
    spec.check_servable()
    dtype = element_type(settings)
    check_group(settings, checkpoint)
    arena = draw_arena(settings, spec, checkpoint, dtype, graph_bytes=_graph_bytes(settings, phase))
    offered = named_layouts(settings.layouts)
    infeasible = _infeasible(spec, arena, offered)
    layout = _starting_layout(settings, phase, offered, infeasible)
    scheduling = SchedulerConfig(
        role=Role(phase.value),
        group=GroupId(settings.group or f"{phase.value}-0"),
        incarnation=Incarnation(secrets.token_hex(6)),
        layouts=tuple(layout for layout in offered if layout not in infeasible),
        chunk_tokens=settings.chunk_tokens,
        max_running=settings.max_running,
        max_model_len=settings.max_model_len or None,
        staging_bytes=chunk_bytes(settings.staging_bytes),
        precopy_bytes_per_step=settings.precopy_bytes_per_step,
        recorded_rows=max(_buckets(settings, phase), default=0),
        # Prefill holds no more than the prompts that it has, so there is no growth to overcommit.
        admission_overcommit=settings.admission_overcommit if phase is Phase.DECODE else 1.0,
    )
    _check_length(settings, spec, arena, scheduling)
    return GroupBlueprint(
        phase=phase,
        settings=settings,
        checkpoint=checkpoint,
        spec=spec,
        fingerprint=served_fingerprint(settings, checkpoint),
        dtype=dtype,
        arena=arena,
        layout=layout,
        infeasible=infeasible,
        incarnation=scheduling.incarnation,
        scheduling=scheduling,
        policy=_own_policy(settings, phase, scheduling),
        profile=_profile(settings, dtype),
    )


def _own_policy(settings: GroupSettings, phase: Phase, scheduling: SchedulerConfig) -> PolicyInForce:
    document = load_document(settings.policy)
    if reason := why_not(document, phase=phase, group=scheduling.group, offered=scheduling.layouts):
        raise ConfigError(f"--policy {settings.policy}: {reason}")
    return PolicyInForce(phase=phase, group=scheduling.group, document=document, digest=document.digest)


def _infeasible(spec: ModelSpec, arena: ArenaMap, offered: Sequence[Layout]) -> dict[Layout, str]:
    """Layouts that cannot run, and why not."""
    return {
        layout: verdict.reason
        for layout, verdict in catalog_of_arena(spec, arena, offered).items()
        if isinstance(verdict, InfeasibleLayout)
    }


def _profile(settings: GroupSettings, dtype: str) -> HardwareProfile:
    if not settings.profile:
        return analytical_profile(computes_on(settings), dtype=dtype)
    profile = read_profile(Path(settings.profile))
    profile.check_group(device=settings.device, dtype=dtype, ranks=settings.ranks)
    return profile


def _records_steps(settings: GroupSettings, phase: Phase) -> bool:
    """Whether ranks record decode steps: auto is on GPUs."""
    on = settings.graphs == "on" or (settings.graphs == "auto" and settings.device == "cuda")
    return on and phase is Phase.DECODE and settings.engine == "torch"


def _buckets(settings: GroupSettings, phase: Phase) -> tuple[int, ...]:
    return decode_buckets(settings.max_running, settings.ranks) if _records_steps(settings, phase) else ()


def _graph_bytes(settings: GroupSettings, phase: Phase) -> int:
    return settings.graph_bytes if _records_steps(settings, phase) else 0


def _starting_layout(
    settings: GroupSettings, phase: Phase, offered: Sequence[Layout], infeasible: Mapping[Layout, str]
) -> Layout:
    layout = Layout(settings.layout) if settings.layout else DEFAULT_LAYOUT[phase]
    feasible = [candidate for candidate in offered if candidate not in infeasible]
    if layout in feasible:
        return layout
    if not feasible:
        raise Infeasible(f"--layouts {settings.layouts}: {'; '.join(infeasible.values())}")
    if settings.layout:
        reason = infeasible.get(layout, f"not among --layouts {settings.layouts}")
        raise Infeasible(f"--layout {layout}: {reason}", nearest=f"--layout {feasible[0]}")
    return feasible[0]


def _check_length(
    settings: GroupSettings, spec: ModelSpec, arena: ArenaMap, scheduling: SchedulerConfig
) -> None:
    limit, wanted = max_request_tokens(spec, arena, scheduling), settings.max_model_len
    most = spec.max_positions  # no pool helps to more
    if scheduling.role is Role.PREFILL and wanted <= most:
        return  # Output never comes here: the pool bounds the prompt alone, which the router is told.
    if wanted > limit:
        pool = f", the pool of a rank holds {limit} tokens in its smallest layout" if limit < most else ""
        larger = ", or a larger --kv-bytes" if wanted <= most else ""
        raise Infeasible(
            f"--max-model-len {wanted} does not fit: the model allows {most} positions{pool}",
            nearest=f"--max-model-len {limit}{larger}",
        )
