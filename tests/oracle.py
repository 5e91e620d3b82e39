"""transformers as the oracle: logits and greedy tokens of a checkpoint, one process, eager attention.

Imported by tests only; transformers itself is imported on first use.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@lru_cache(maxsize=8)
def hf_model(checkpoint_dir: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The reference model, loaded strictly: no weight unused, none initialised at random."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    auto: Any = transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(
        checkpoint_dir,
        dtype=dtype,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    problems = {kind: names for kind, names in info.items() if names}
    assert not problems, f"{checkpoint_dir}: {problems}"
    # from_pretrained keeps some tensors in fp32; in fp64 runs everything is fp64.
    return model.to(dtype).eval() if dtype is torch.float64 else model.eval()


@torch.inference_mode()
def hf_logits(checkpoint_dir: Path, token_ids: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits `[N, V]` of one sequence: one full forward without a cache."""
    model = hf_model(Path(checkpoint_dir), dtype)
    return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]


@torch.inference_mode()
def hf_decode_logits(
    checkpoint_dir: Path, token_ids: list[int], num_prefill: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Logits `[N, V]`: `num_prefill` tokens in one forward, the rest one at a time over the cache."""
    model = hf_model(Path(checkpoint_dir), dtype)
    output = model(input_ids=torch.tensor([token_ids[:num_prefill]]), use_cache=True)
    cache, parts = output.past_key_values, [output.logits[0]]
    for token in token_ids[num_prefill:]:
        parts.append(model(input_ids=torch.tensor([[token]]), past_key_values=cache).logits[0])
    return torch.cat(parts)


@torch.inference_mode()
def hf_generate_greedy(
    checkpoint_dir: Path,
    prompt: list[int],
    max_tokens: int,
    *,
    eos_token_ids: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> list[int]:
    """Greedy continuation; stops after an EOS token, which is included."""
    model = hf_model(Path(checkpoint_dir), dtype)
    output = model(input_ids=torch.tensor([prompt]), use_cache=True)
    tokens: list[int] = []
    while True:
        tokens.append(int(output.logits[0, -1].argmax()))
        if len(tokens) == max_tokens or tokens[-1] in eos_token_ids:
            return tokens
        output = model(input_ids=torch.tensor([tokens[-1:]]), past_key_values=output.past_key_values)
