"""An attention library in plain torch: what FlashInfer's calls mean, for tests without a GPU."""

import torch
from torch import Tensor

from splash_core.attention.flashinfer_library import GraphBuffers
from splash_core.attention.runs import Runs
from splash_core.kernels.reference import attend_absorbed


class TorchLibrary:
    """See the module. `plans` counts plans that were made."""

    def __init__(self, *, scale: float, latent: int) -> None:
        self.scale, self.latent = scale, latent
        self.plans: list[TorchPlan] = []

    def mla_plan(self) -> "TorchPlan":
        self.plans.append(TorchPlan(self, None))
        return self.plans[-1]

    def graph_plan(self, buffers: GraphBuffers) -> "TorchPlan":
        self.plans.append(TorchPlan(self, buffers))
        return self.plans[-1]

    def prefill(self, q_NHD: Tensor, k_KHD: Tensor, v_KHv: Tensor) -> Tensor:
        num_rows, num_keys = q_NHD.shape[0], k_KHD.shape[0]
        assert num_keys >= num_rows > 1
        visible_NK = torch.ones(num_rows, num_keys, dtype=torch.bool, device=q_NHD.device).tril(
            num_keys - num_rows
        )
        scores_HNK = torch.einsum("nhd,khd->hnk", q_NHD, k_KHD) * self.scale
        weights_HNK = scores_HNK.masked_fill(~visible_NK, float("-inf")).softmax(dim=-1)
        return torch.einsum("hnk,khv->nhv", weights_HNK, v_KHv)


class TorchPlan:
    def __init__(self, library: TorchLibrary, buffers: GraphBuffers | None) -> None:
        self._library, self._buffers = library, buffers
        self.runs: Runs | None = None
        self.heads = 0

    def plan(self, runs: Runs, *, heads: int) -> None:
        if self._buffers is not None:
            assert runs.are_single_rows
            assert (runs.num_rows, heads) == (self._buffers.rows, self._buffers.heads)
            assert len(runs.slots_M) <= self._buffers.max_pages
        self.runs, self.heads = runs, heads

    def run(self, q_NHC: Tensor, pages_SPC: Tensor, out_NHr: Tensor, lse_NH: Tensor) -> None:
        runs = self.runs
        assert runs is not None
        assert q_NHC.shape[:2] == (runs.num_rows, self.heads)
        assert pages_SPC.shape[1] == runs.page_size
        out_NHr.fill_(float("nan"))
        for first, count, num_keys, page in zip(
            runs.first_R.tolist(),
            runs.count_R.tolist(),
            runs.num_keys_R.tolist(),
            runs.page_R.tolist(),
            strict=True,
        ):
            pages = -(-num_keys // runs.page_size)
            slots_M = torch.from_numpy(runs.slots_M[page : page + pages]).to(pages_SPC.device)
            kv_KC = pages_SPC[slots_M].flatten(0, 1)[:num_keys]
            visible_NK = torch.ones(count, num_keys, dtype=torch.bool, device=q_NHC.device).tril(
                num_keys - count
            )
            rows = slice(first, first + count)
            out, lse = attend_absorbed(
                q_NHC[rows], kv_KC, visible_NK, scale=self._library.scale, latent=self._library.latent
            )
            out_NHr[rows], lse_NH[rows] = out, lse.float()


def _visible(num_rows: int, num_keys: int, device: torch.device) -> Tensor:
    return torch.ones(num_rows, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_rows)
