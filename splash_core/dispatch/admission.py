"""May a request enter, and does a group have room for it: pure arithmetic over what is known of the load.

Projected KV is what a group's admitted requests will hold when they end: prompt plus expected output. A
request that this router has just sent is *charged* until a state read after its lease includes it.
Invariant: an idle group takes any request that fits its context, so nothing waits forever.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one sequence asks of a deployment, tokens."""

    prompt_tokens: int
    output_tokens: int
    """Expected output: at most what the request allows."""
    required_output_tokens: int
    """Output that there must be room for: all that the request names, 0 for one that only scores."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV history that the sequence is expected to hold at its end."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """How long a request a group can take, tokens."""

    max_model_len: int
    """Prompt plus output, by model and settings."""
    max_request_tokens: int
    """What the pool holds of one request: its prompt in prefill, prompt and output in decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a request two groups can serve together, tokens."""

    max_model_len: int
    """Prompt plus output."""
    max_prompt: int
    """Prompt alone: what the prefill group can hold."""

    def hold(self, demand: Demand) -> bool:
        """True when the request fits with all output that there must be room for."""
        longest = demand.prompt_tokens + demand.required_output_tokens
        return demand.prompt_tokens <= self.max_prompt and longest <= self.max_model_len


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentLimits:
    """What the groups of a deployment can serve, whether or not they are ready now."""

    pairs: tuple[Limits, ...]
    """Of every pair of groups, at least one; they may differ in both lengths."""
    max_scored: int
    """Longest prompt that some prefill group can score, tokens."""

    @property
    def max_model_len(self) -> int:
        """The longest prompt plus output of all pairs."""
        return max(limits.max_model_len for limits in self.pairs)

    @property
    def max_prompt(self) -> int:
        """No prompt with more tokens can be served, or scored, by any group."""
        return max(self.max_scored, *(limits.max_prompt for limits in self.pairs))

    def of_prompt(self, prompt_tokens: int) -> Limits:
        """The longest context among the pairs that hold the prompt; if none does, the longest prompt."""
        holding = [limits for limits in self.pairs if prompt_tokens <= limits.max_prompt]
        if holding:
            return max(holding, key=lambda limits: (limits.max_model_len, limits.max_prompt))
        return max(self.pairs, key=lambda limits: (limits.max_prompt, limits.max_model_len))


def pair_limits(prefill: GroupLimits, decode: GroupLimits) -> Limits:
    """Prefill holds the prompt alone, decode prompt and output."""
    longest = min(prefill.max_model_len, decode.max_model_len, decode.max_request_tokens)
    return Limits(max_model_len=longest, max_prompt=min(longest, prefill.max_request_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLoad:
    """Sequences that have entered and wait for their first token."""

    requests: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How much may wait for its first token."""

    requests: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad:
    """One group as admission and placement see it, charges included."""

    address: str
    group: str
    limits: GroupLimits
    kv_tokens_total: int
    kv_tokens_projected: int
    sequences: int
    """Running, waiting and charged sequences."""
    prompt_tokens_pending: int
    """Prompt tokens sent there whose first token is not back."""


def project(
    *, prompt_tokens: int, max_tokens: int, expected_output: int, required_output: int | None = None
) -> Demand:
    """The demand of a sequence that may generate `max_tokens`, of which `expected_output` are likely.

    Args:
        prompt_tokens: of the sequence.
        max_tokens: the most output.
        expected_output: output that is likely of a sequence that may generate more.
        required_output: output that there must be room for; default: all of it.
    """
    return Demand(
        prompt_tokens=prompt_tokens,
        output_tokens=min(max_tokens, expected_output),
        required_output_tokens=max_tokens if required_output is None else required_output,
    )


def refuse_entry(
    *, sequences: int, prompt_tokens: int, waiting: QueueLoad, limits: QueueLimits
) -> str | None:
    """Why a request may not enter the queue now, or None.

    Args:
        sequences: that the request brings.
        prompt_tokens: of all of them.
        waiting: what waits already.
        limits: how much may wait.
    """
    if waiting.requests == 0:
        return None
    if waiting.requests + sequences > limits.requests:
        return (
            f"{waiting.requests} requests wait for their first token and at most {limits.requests} may; "
            f"this one brings {sequences} more"
        )
    if waiting.prompt_tokens + prompt_tokens > limits.prompt_tokens:
        return (
            f"{waiting.prompt_tokens} prompt tokens wait and at most {limits.prompt_tokens} may; "
            f"this request brings {prompt_tokens} more"
        )
    return None


def has_room(load: GroupLoad, demand: Demand, *, overcommit: float = 1.0) -> bool:
    """True when the group can take the demand next to the projected growth of what it has.

    Args:
        load: of the group.
        demand: of the sequence.
        overcommit: multiple of the pool that may be projected. Above 1, the group queues and preempts what
            exceeds its pool, and its layout policy sees that queue.
    """
    if load.sequences == 0:
        return True
    return load.kv_tokens_projected + demand.kv_tokens <= overcommit * load.kv_tokens_total


def retry_after_s(waiting: QueueLoad, *, seconds_per_request: float) -> float:
    """When trying again makes sense: half of the queue should have drained by then; 1 to 60 seconds."""
    return min(60.0, max(1.0, waiting.requests * seconds_per_request / 2))
