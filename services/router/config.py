"""Settings of the router process, each with its unit and default.

Invariant: a `RouterConfig` that exists is consistent; in particular an admin port without a key is bound to
loopback only.
"""

from dataclasses import dataclass
from pathlib import Path

from splash_core.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """What `splash router` is told."""

    model: Path
    """Checkpoint folder: its tokenizer, chat template, config.json and generation_config.json are read."""
    fingerprint: str = ""
    """Of that checkpoint: groups with another one are not asked; empty: not compared."""
    prefill: tuple[str, ...]
    """gRPC addresses (`host:port` or `unix:path`) of the prefill leaders."""
    decode: tuple[str, ...]
    """gRPC addresses of the decode leaders."""
    served_names: tuple[str, ...] = ()
    """Names that requests may give as `model`, the first is the one answered; default: the folder's name."""
    host: str = "127.0.0.1"
    """Address that the gateway listens on."""
    port: int = 8000
    """Gateway port; 0 takes a free one."""
    admin_host: str = "127.0.0.1"
    """Address that the admin port listens on; only loopback without `admin_key`."""
    admin_port: int = 8001
    """Admin port; 0 takes a free one."""
    api_key: str | None = None
    """If set, gateway requests need `Authorization: Bearer KEY`."""
    admin_key: str | None = None
    """If set, admin requests need `Authorization: Bearer KEY`."""
    max_body_bytes: int = 8 << 20
    """Largest request body, bytes; larger ones answer 413. Parsing holds the event loop: 0.2 s at most here,
    and the longest contexts served have 1 MiB of text."""
    max_tokenized: int = 1 << 19
    """Most tokens of one call of `/tokenize` or `/detokenize`."""
    max_choices: int = 128
    """Most sequences of one request: prompts times `n`."""
    max_logprobs: int = 20
    """Most `top_logprobs` a request may ask for."""
    max_output_tokens: int | None = None
    """Cap of `max_tokens` where the client gives none; None: the rest of the context."""
    max_queued_requests: int = 512
    """Sequences that may wait for their first token; beyond that 429."""
    max_queued_tokens: int = 1 << 20
    """Prompt tokens that may wait for their first token; beyond that 429."""
    expected_output_tokens: int = 512
    """Output that admission projects for a request that allows more, tokens."""
    kv_overcommit: float = 2.0
    """Multiple of a decode group's pool that may be projected before requests wait here. Above 1 the group
    itself queues and preempts, and its layout policy sees that queue."""
    poll_interval_s: float = 0.25
    """Seconds between two looks at a group's state."""
    poll_timeout_s: float = 5.0
    """Seconds after which an unanswered look at a group's state is given up."""
    stall_s: float = 60.0
    """A group with work and no finished step for this long is not alive, seconds."""
    request_timeout_s: float = 3600.0
    """Longest life of one request, seconds; then 504."""
    drain_hold_s: float = 1.0
    """Seconds between turning unready and closing the port at SIGTERM."""
    drain_timeout_s: float = 60.0
    """Seconds that running requests get to finish at SIGTERM."""
    ports_file: Path | None = None
    """If set, a JSON file that gets `port` and `admin_port` once the router listens."""
    policy: str = ""
    """First version of the layout policy: `off`, `auto`, or a file that is watched. Empty: none, so that
    groups keep their own until one is put through the admin port."""
    probe_every_s: float = 0.0
    """Seconds between two checks of a pair of groups by probes; switches bring more. 0: none
    at all."""
    probe_deadline_s: float = 60.0
    """Seconds after which such a check is given up."""

    def __post_init__(self) -> None:
        if not self.model.is_dir():
            raise ConfigError(f"model folder {self.model} does not exist; give a checkpoint folder")
        if self.admin_key is None and self.admin_host not in _LOOPBACK:
            raise ConfigError(
                f"the admin port may not listen on {self.admin_host} without a key; "
                "set an admin key or use loopback"
            )
        for name in (
            "max_body_bytes",
            "max_choices",
            "max_tokenized",
            "max_queued_requests",
            "max_queued_tokens",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def model_name(self) -> str:
        """The name under which the model is listed."""
        return self.served_names[0] if self.served_names else self.model.name

    @property
    def accepted_names(self) -> tuple[str, ...]:
        """All names that a request's `model` may have."""
        return self.served_names or (self.model.name,)
