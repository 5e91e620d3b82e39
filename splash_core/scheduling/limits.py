"""How long one request may be, so that no layout that the group may ever run strands it."""

from splash_core.errors import ContextTooLong, Infeasible
from splash_core.layout.capacity import Capacity
from splash_core.layout.layout import RULES
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.roles import RULES_OF_ROLE
from splash_core.spec.model import ModelSpec


def longest_landing(arena: ArenaMap, capacity: Capacity) -> int:
    """Tokens of one sequence that can land in a layout: one copy of each page, in ordinary slots."""
    return arena.num_ordinary * capacity.num_owners * arena.page_size


def max_request_tokens(spec: ModelSpec, arena: ArenaMap, config: SchedulerConfig) -> int:
    """Most tokens, prompt and output, of one request: the least over model, setting and every layout.

    Raises:
        Infeasible: not even one token fits.
    """
    capacities = [Capacity.of(arena, RULES[layout]) for layout in config.layouts]
    limits = [spec.max_positions, *(capacity.longest_request for capacity in capacities)]
    if not RULES_OF_ROLE[config.role].takes_prompts:
        limits.extend(longest_landing(arena, capacity) for capacity in capacities)
    if config.max_model_len is not None:
        limits.append(config.max_model_len)
    limit = min(limits)
    if limit < 1:
        names = ", ".join(config.layouts)
        raise Infeasible(f"not all of {names} can hold a token in an arena of {arena.num_slots} slots")
    return limit


def check_length(num_prompt: int, held_tokens: int, limit: int) -> None:
    """Refuse what could never fit.

    Raises:
        ContextTooLong: names the tokens asked for and the limit.
    """
    if held_tokens > limit:
        output = held_tokens - num_prompt
        wanted = f"{num_prompt} prompt tokens" + (f" and {output} output tokens" if output else "")
        raise ContextTooLong(
            f"{wanted} exceed the longest request of this group, {limit} tokens; shorten the prompt"
            + (" or lower max_tokens" if output else ""),
            param="max_tokens" if output and num_prompt < limit else "prompt",
        )
