"""How long one request may be, so that no layout that the group may ever run strands it."""

from splash_core.errors import ContextTooLong, Infeasible
from splash_core.ids import RankId
from splash_core.layout.layout import RULES, Layout
from splash_core.layout.slots import ArenaMap
from splash_core.scheduling.config import SchedulerConfig
from splash_core.scheduling.roles import RULES_OF_ROLE
from splash_core.spec.model import ModelSpec


def pool_pages(arena: ArenaMap, layout: Layout) -> int:
    """Pages that one rank can hold in a layout."""
    return len(arena.ordinary) + (len(arena.borrowed) if RULES[layout].borrows else 0)


def distinct_tokens(arena: ArenaMap, layout: Layout) -> int:
    """Tokens of distinct history that the group can hold in a layout."""
    placement = RULES[layout].placement(num_ranks=arena.num_ranks, owner=RankId(0), rotation=0)
    copies = len(placement.ranks_of_page(0))
    return pool_pages(arena, layout) * arena.num_ranks // copies * arena.page_size


def longest_request(arena: ArenaMap, layout: Layout) -> int:
    """Tokens that one sequence alone can hold in a layout, whatever its owner and rotation."""
    placement = RULES[layout].placement(num_ranks=arena.num_ranks, owner=RankId(0), rotation=0)
    copies = len(placement.ranks_of_page(0))
    return pool_pages(arena, layout) * len(placement.owners) // copies * arena.page_size


def longest_landing(arena: ArenaMap, layout: Layout) -> int:
    """Tokens of one sequence that can land in a layout: one copy of each page, in ordinary slots."""
    placement = RULES[layout].placement(num_ranks=arena.num_ranks, owner=RankId(0), rotation=0)
    return len(arena.ordinary) * len(placement.owners) * arena.page_size


def max_request_tokens(spec: ModelSpec, arena: ArenaMap, config: SchedulerConfig) -> int:
    """Most tokens, prompt and output, of one request: the least over model, setting and every layout.

    Raises:
        Infeasible: not even one token fits.
    """
    limits = [spec.max_positions, *(longest_request(arena, layout) for layout in config.layouts)]
    if not RULES_OF_ROLE[config.role].takes_prompts:
        limits.extend(longest_landing(arena, layout) for layout in config.layouts)
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
