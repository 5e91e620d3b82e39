"""Settings: what an operator can say, by command.

`resolve` fills a settings class from flags, then `SPLASH_*`, then a TOML file, then defaults.
Invariant: a settings object is complete and checked when it exists, and nobody changes it later.
"""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from splash_core import environment
from splash_core.errors import ConfigError
from splash_core.settings_base import (
    COUNT,
    PORT,
    POSITIVE,
    RANKS,
    a_url,
    addresses,
    an_address,
    checked,
    converted,
    gpu_numbers,
    setting,
)
from splash_core.settings_devices import DeviceSettings
from splash_core.settings_file import read_settings_file
from splash_core.settings_model import ModelSettings
from splash_core.units import LAYERS_AHEAD, MIB, STAGING_BYTES, TRANSFER_CTAS

S = TypeVar("S")

LAYOUTS = ("TP", "CP", "DP", "DOP", "DOP-P")
STANDARD_LAYOUTS = ("TP", "CP", "DP", "DOP")
"""Names of `layout.layout.Layout`, which stands above settings, and of those that are offered by default."""
_CANARY = (
    "Time between two checks that fixed prompts are still answered as at first, which are also made after "
    "each switch; where they are not, the switch is undone and its group pinned. 0: none."
)
_REGISTRIES = {"redis": "only memory is served so far; leave --registry out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(DeviceSettings):
    """What prefill and decode groups have in common."""

    policy: str = setting(
        "auto", "Who chooses layouts: off, auto, or a policy file; a router that has a policy overrides it."
    )
    profile: str = setting(
        "", "File that `splash calibrate` wrote: what predicts step times; default: the device's own figures."
    )
    layouts: str = setting(
        ",".join(STANDARD_LAYOUTS),
        f"Layouts that a group may run, separated by commas; of {', '.join(LAYOUTS)}.",
    )
    page_size: int = setting(64, "Size of a KV page.", unit="tokens", within=COUNT)
    kv_bytes: int = setting(
        0,
        "KV room of a rank in every layout, beside its weights; 0: from free memory. It may exceed what is "
        "free, not what the host (or GPU) has, shared among its ranks.",
        unit="bytes",
    )
    max_model_len: int = setting(
        0, "Longest prompt plus output; 0: what model and pool allow.", unit="tokens"
    )
    chunk_tokens: int = setting(512, "Most prompt tokens in one step.", unit="tokens", within=COUNT)
    max_running: int = setting(64, "Most sequences that run at once in a group.", within=COUNT)
    admission_overcommit: float = setting(
        1.0,
        "KV tokens that a decode group admits per token of its pool, where a request counts with all output "
        "that it allows; above 1 more requests run at once, and some may have to be computed again.",
        within=COUNT,
    )
    staging_bytes: int = setting(
        STAGING_BYTES, "Staging of a layout switch, per rank.", unit="bytes", within=COUNT
    )
    transfer_max_ctas: int = setting(
        TRANSFER_CTAS,
        "GPU thread blocks that transfers take: more are faster and slow what runs beside.",
        within=COUNT,
    )
    switch_layers_ahead: int = setting(
        LAYERS_AHEAD, "Layers whose transfers are enqueued before the layer that computes.", within=COUNT
    )
    precopy_bytes_per_step: int = setting(
        STAGING_BYTES,
        "Received in each ordinary step while a switch copies ahead; at least a page or a layer's weights.",
        unit="bytes",
        within=COUNT,
    )
    queue_requests: int = setting(
        256, "Most requests that wait in a group before new ones get 429.", within=COUNT
    )
    queue_tokens: int = setting(
        1 << 20, "Most prompt tokens that wait in a group.", unit="tokens", within=COUNT
    )
    start_timeout_s: float = setting(
        600.0, "A group that is not ready by then ends with the cause.", unit="s", within=POSITIVE
    )
    step_timeout_s: float = setting(
        60.0, "A rank that misses this deadline ends its group.", unit="s", within=POSITIVE
    )
    push_timeout_s: float = setting(
        30.0,
        "Longest time of one push, which carries the pages that a step has filled.",
        unit="s",
        within=POSITIVE,
    )
    push_range_bytes: int = setting(
        MIB,
        "A page leaves in layer ranges of at least so many bytes, while later layers of it are computed.",
        unit="bytes",
        within=COUNT,
    )
    drain_timeout_s: float = setting(30.0, "Longest time to finish running requests at exit.", unit="s")
    engine: str = setting(
        "torch", "What computes; fake needs no weights.", choices=("torch", "fake"), hidden=True
    )
    fake_step_s: float = setting(0.0, "Time of a fake engine's step.", unit="s", hidden=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(WorkerSettings):
    """One worker group: `splash prefill` or `splash decode`."""

    group: str = setting(
        "", "Name of the group, which no other one of its router has; default: its phase and -0."
    )
    ranks: int = setting(2, "Ranks of the group, over all its nodes.", within=RANKS)
    layout: str = setting(
        "", "Layout at start; default TP for prefill, DP for decode.", choices=("", *LAYOUTS)
    )
    gpus: str = setting(
        "",
        "GPUs of the ranks on cuda, in their order, such as 2,3; default: 0 to ranks - 1.",
        form=gpu_numbers,
    )
    port: int = setting(0, "gRPC port; 0 takes a free one.", within=PORT)
    advertise: str = setting(
        "",
        "HOST:PORT at which other groups reach this one; default: host (its name if any) and port.",
        form=an_address,
    )
    transport_host: str = setting(
        "", "Address at which other groups' ranks reach this host's; default: host, or its name."
    )
    nnodes: int = setting(
        1, "Hosts that the group's ranks are spread over; only 1 is served so far.", within=COUNT
    )
    node_rank: int = setting(0, "Which of those hosts this is; 0 runs the leader.")
    rendezvous: str = setting(
        "", "HOST:PORT of node 0's leader, for groups over several hosts.", form=an_address
    )
    parent_pid: int = setting(0, "Process that this one must not outlive; 0: none.", hidden=True)
    host_ranks: int = setting(
        0, "Ranks of all groups on this host, which share its cores and memory; 0: this group's.", hidden=True
    )
    listen: str = setting("", "gRPC address instead of host and port, for example unix:PATH.", hidden=True)
    socket_dir: str = setting("", "Folder for Unix sockets; default: in the run's folder.", hidden=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings(WorkerSettings):
    """One host: router with gateway, one prefill group, one decode group (`splash up`)."""

    prefill_ranks: int = setting(2, "Ranks of the prefill group.", within=RANKS)
    decode_ranks: int = setting(2, "Ranks of the decode group.", within=RANKS)
    prefill_layout: str = setting(
        "", "Layout of the prefill group at start; default TP, or what is feasible.", choices=("", *LAYOUTS)
    )
    decode_layout: str = setting(
        "", "Layout of the decode group at start; default DP.", choices=("", *LAYOUTS)
    )
    prefill_gpus: str = setting(
        "",
        "GPUs of the prefill group on cuda; default: the first that decode does not have.",
        form=gpu_numbers,
    )
    decode_gpus: str = setting(
        "",
        "GPUs of the decode group; default: the next ones. Both may have the same, each with its part of "
        "memory_fraction.",
        form=gpu_numbers,
    )
    port: int = setting(8000, "Gateway port; 0 takes a free one.", within=PORT)
    admin_port: int = setting(8001, "Admin port; 0 takes a free one.", within=PORT)
    admin_key_file: str = setting("", "File with the admin key; without a key admin is loopback only.")
    api_key_file: str = setting("", "File with the key that gateway requests must carry; default: none.")
    registry: str = setting(
        "memory", "Where workers are registered.", choices=("memory",), planned=_REGISTRIES
    )
    canary_every_s: float = setting(600.0, _CANARY, unit="s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings(ModelSettings):
    """The router with its gateway (`splash router`)."""

    prefill: str = setting("", "gRPC addresses of the prefill leaders, separated by commas.", form=addresses)
    decode: str = setting("", "gRPC addresses of the decode leaders, separated by commas.", form=addresses)
    port: int = setting(8000, "Gateway port; 0 takes a free one.", within=PORT)
    admin_port: int = setting(8001, "Admin port; 0 takes a free one.", within=PORT)
    admin_host: str = setting("127.0.0.1", "Address of the admin port; others than loopback need a key.")
    admin_key_file: str = setting("", "File with the admin key; without a key admin is loopback only.")
    api_key_file: str = setting("", "File with the key that gateway requests must carry; default: none.")
    registry: str = setting(
        "memory", "Where workers are registered.", choices=("memory",), planned=_REGISTRIES
    )
    policy: str = setting(
        "",
        "First version of all groups' layout policy: off, auto, or a file that is watched for changes; "
        "default: groups keep their own until one is put through the admin port.",
    )
    canary_every_s: float = setting(600.0, _CANARY, unit="s")
    drain_timeout_s: float = setting(30.0, "Longest time to finish running requests at exit.", unit="s")
    parent_pid: int = setting(0, "Process that this one must not outlive; 0: none.", hidden=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """What client commands need to reach the admin port."""

    admin: str = setting("http://127.0.0.1:8001", "URL of the admin port.", form=a_url)
    admin_key_file: str = setting("", "File with the admin key.")


def resolve(
    kind: type[S],
    *,
    flags: Mapping[str, object],
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> S:
    """Fill a settings class: flags, then `SPLASH_*`, then the TOML file, then defaults.

    Args:
        kind: the settings class.
        flags: values from the command line; None means "not given".
        config: TOML file with field names as keys; those of other commands are allowed.
        environ: the environment; default: this process's.

    Raises:
        ConfigError: a value has the wrong type or is not allowed; names its source and the remedy.
    """
    environ = environment.current() if environ is None else environ
    commands = (UpSettings, GroupSettings, RouterSettings, AdminSettings)
    file = read_settings_file(config, (*commands, kind)) if config is not None else {}
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = field.name
        variable = f"SPLASH_{name.upper()}"
        if flags.get(name) is not None:
            value, source = flags[name], f"--{name.replace('_', '-')}"
        elif environ.get(variable, "") != "" and not field.metadata["hidden"]:
            value, source = environ[variable], variable
        elif name in file:
            values[name] = file[name]
            continue
        else:
            continue
        values[name] = checked(converted(value, hints[name], source), field, source)
    return kind(**values)


def admin_key(settings: AdminSettings | RouterSettings, environ: Mapping[str, str] | None = None) -> str:
    """The admin key from `SPLASH_ADMIN_KEY` or the key file; empty when none is configured."""
    return _key("SPLASH_ADMIN_KEY", settings.admin_key_file, environ)


def api_key(settings: RouterSettings, environ: Mapping[str, str] | None = None) -> str:
    """The gateway's key from `SPLASH_API_KEY` or the key file; empty when none is configured."""
    return _key("SPLASH_API_KEY", settings.api_key_file, environ)


def _key(variable: str, file: str, environ: Mapping[str, str] | None) -> str:
    environ = environment.current() if environ is None else environ
    if environ.get(variable):
        return environ[variable]
    if not file:
        return ""
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"key file {file}: {getattr(error, 'strerror', None) or error}") from None
