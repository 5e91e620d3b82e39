"""transformers' `generate` on the same checkpoint: the rates that serving is compared with."""

import time
from pathlib import Path
from typing import Any

import torch
import transformers

from services.bench.workload import BenchSizes, median_of, prompt_ids


class Baseline:
    """The checkpoint in transformers, fp32, on a fixed number of threads."""

    def __init__(self, model: Path, *, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32
        ).eval()

    def decode_rate(self, workload: BenchSizes, batch: int) -> float:
        """Tokens per second of one static batch, its prefill taken out."""

        def measure(rep: int) -> float:
            prompts = [prompt_ids(workload.decode_prompt, seed=rep * 100 + row) for row in range(batch)]
            first_s = self._generate_s(prompts, 1)
            all_s = self._generate_s(prompts, workload.decode_tokens)
            return batch * (workload.decode_tokens - 1) / (all_s - first_s)

        return median_of(workload.reps, measure)

    def prefill_rate(self, workload: BenchSizes) -> float:
        """Prompt tokens per second to the first token."""

        def measure(rep: int) -> float:
            prompt = prompt_ids(workload.prefill_prompt, seed=5000 + rep)
            return workload.prefill_prompt / self._generate_s([prompt], 1)

        return median_of(workload.reps, measure)

    @torch.inference_mode()
    def _generate_s(self, prompts: list[list[int]], num_tokens: int) -> float:
        ids_BN = torch.tensor(prompts)
        begin = time.perf_counter()
        self._model.generate(
            ids_BN,
            attention_mask=torch.ones_like(ids_BN),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
        )
        return time.perf_counter() - begin
