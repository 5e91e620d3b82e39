"""The rollout's requests: the same for every arm, and for the simulator.

Invariant: lengths and prompts follow from the settings alone.
"""

import random
from collections.abc import Sequence

import numpy as np

from services.bench.rollout_settings import RolloutSettings
from services.bench.streams import Prompt, random_tokens
from splash_core.simulate.generators import Size, generate
from splash_core.simulate.workload import Request, Scale, Workload


def rollout_workload(settings: RolloutSettings) -> Workload:
    """The simulator's rl-rollout in small; every length is known beforehand, as the client asks for it."""
    size = Size(requests=settings.requests, scale=Scale(lengths=settings.lengths))
    return generate("rl-rollout", random.Random(settings.seed), size).foreseen()


def prompts_of(requests: Sequence[Request], *, seed: int, vocab: int) -> tuple[Prompt, ...]:
    """Prompts of ordinary random tokens, as long as the workload says."""
    dice = np.random.default_rng(seed)
    return tuple(
        Prompt(tokens=random_tokens(dice, request.prompt_tokens, vocab=vocab), output=request.output_tokens)
        for request in requests
    )
