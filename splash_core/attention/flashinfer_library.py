"""FlashInfer's kernels for Hopper, as `LibraryAttention` calls them: the only file that imports flashinfer.

Read off version 0.6.12 (`BatchMLAPagedAttentionWrapper`, backend fa3):

* A plan looks only at where a run's pages begin and at its number of keys, so runs may share page lists.
* It has room for 16,384 tiles of query rows and does not check that they suffice.
* A causal limit is exact only where heads divide the 64 or 128 (row, head) pairs of a tile.
* Planning copies from one pinned buffer per wrapper, so it must not start before the last copy has ended.

Legend: N query rows, R runs, H heads, C = r + p, r latent rank, D = n + p, v width of a value, S slots,
P page size, K keys, M pages.
"""
# pyright: reportMissingImports=false

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splash_core.attention.runs import Runs
from splash_core.errors import ConfigError, InvariantBroken
from splash_core.layout.forms import HOPPER, KernelLibrary, attention_library
from splash_core.model.rope import softmax_scale
from splash_core.spec.model import ModelSpec

WORKSPACE_BYTES = 64 << 20
"""For partial outputs of split histories; an H200 needs 18 MB."""

TILES_PER_PLAN = 16384 - 256
"""A plan's room, less what splitting long histories adds (at most one tile per pair of multiprocessors)."""

TILE_ROWS = 64
"""(row, head) pairs of the smallest tile."""

_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBuffers:
    """Sizes of a plan that is remade in place before each replay of a CUDA graph."""

    rows: int
    """Query rows on a rank, padding included."""
    heads: int
    """Heads with which a rank attends in the captured layout."""
    max_pages: int
    """Pages that all rows of a step may refer to, a page of two rows counted twice."""


class MlaPlan(Protocol):
    """A plan of absorbed attention: made for a step, used in every layer."""

    def plan(self, runs: Runs, *, heads: int) -> None:
        """Plan for some runs; replaces the plan made before."""
        ...

    def run(self, q_NHC: Tensor, pages_SPC: Tensor, out_NHr: Tensor, lse_NH: Tensor) -> None:
        """Write outputs and natural log-sum-exps (fp32); 0 and -inf for a row without keys."""
        ...


class AttentionLibrary(Protocol):
    """What `LibraryAttention` needs: FlashInfer, or a stand-in in tests."""

    def mla_plan(self) -> MlaPlan:
        """A plan for steps that are launched kernel by kernel."""
        ...

    def graph_plan(self, buffers: GraphBuffers) -> MlaPlan:
        """A plan whose addresses never change."""
        ...

    def prefill(self, q_NHD: Tensor, k_KHD: Tensor, v_KHv: Tensor) -> Tensor:
        """out_NHv of rows that see the first `K - (N - 1 - i)` keys each; tensors may be strided."""
        ...


def serves(spec: ModelSpec, dtype: torch.dtype) -> bool:
    """Whether FlashInfer has kernels for the model's head widths in `dtype`."""
    library = attention_library(spec, dtype=_DTYPES.get(dtype, ""), gpu=HOPPER[0])
    return library is KernelLibrary.FLASHINFER


class FlashInferLibrary:
    """FlashInfer for one model on one device.

    Args:
        spec: the model; `serves` must be true.
        dtype: of queries and KV.
        device: the GPU.

    Raises:
        ConfigError: FlashInfer is not installed.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        try:
            import flashinfer
        except ImportError as error:
            raise ConfigError(
                f"{spec.name} in bf16 on a GPU needs FlashInfer: pip install 'splash[gpu]' ({error})"
            ) from error

        self._flashinfer = flashinfer
        self._shape = _MlaShape(
            latent=spec.kv_lora_rank, rope=spec.rope_dim, scale=softmax_scale(spec), dtype=dtype
        )
        # Shared by all plans: partial results live only inside one call.
        self._workspace_B = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._compile(spec)

    def _compile(self, spec: ModelSpec) -> None:
        """Use each kernel once: its first use on a machine compiles it, which takes a minute."""
        device, dtype = self._workspace_B.device, self._shape.dtype
        q_NHD = torch.zeros(2, 1, spec.qk_dim, dtype=dtype, device=device)
        self.prefill(q_NHD, q_NHD, torch.zeros(2, 1, spec.v_dim, dtype=dtype, device=device))
        one = np.ones(1, dtype=np.int64)
        runs = Runs(
            num_rows=1,
            page_size=1,
            first_R=one * 0,
            count_R=one,
            num_keys_R=one,
            page_R=one * 0,
            slots_M=one * 0,
        )
        plan = self.mla_plan()
        plan.plan(runs, heads=spec.heads)
        q_NHC = torch.zeros(1, spec.heads, spec.kv_row, dtype=dtype, device=device)
        plan.run(
            q_NHC,
            torch.zeros(1, 1, spec.kv_row, dtype=dtype, device=device),
            torch.empty_like(q_NHC[..., : spec.kv_lora_rank]),
            torch.empty(1, spec.heads, dtype=torch.float32, device=device),
        )

    def mla_plan(self) -> "FlashInferPlan":
        """As the protocol says."""
        wrapper = self._flashinfer.mla.BatchMLAPagedAttentionWrapper(self._workspace_B, backend="fa3")
        return FlashInferPlan(wrapper, self._shape, buffers=None)

    def graph_plan(self, buffers: GraphBuffers) -> "FlashInferPlan":
        """As the protocol says."""
        device = self._workspace_B.device

        def zeros(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        wrapper = self._flashinfer.mla.BatchMLAPagedAttentionWrapper(
            self._workspace_B,
            use_cuda_graph=True,
            qo_indptr=zeros(buffers.rows + 1),
            kv_indptr=zeros(buffers.rows + 1),
            kv_indices=zeros(buffers.max_pages),
            kv_len_arr=zeros(buffers.rows),
            backend="fa3",
        )
        return FlashInferPlan(wrapper, self._shape, buffers=buffers)

    def prefill(self, q_NHD: Tensor, k_KHD: Tensor, v_KHv: Tensor) -> Tensor:
        """As the protocol says."""
        return self._flashinfer.single_prefill_with_kv_cache(
            q_NHD, k_KHD, v_KHv, causal=True, sm_scale=self._shape.scale, backend="fa3"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MlaShape:
    latent: int
    rope: int
    scale: float
    dtype: torch.dtype


class FlashInferPlan:
    """One wrapper with its workspaces: see `MlaPlan`."""

    def __init__(self, wrapper: Any, shape: _MlaShape, *, buffers: GraphBuffers | None) -> None:
        self._wrapper = wrapper
        self._shape = shape
        self._buffers = buffers
        self._copied = torch.cuda.Event()

    def plan(self, runs: Runs, *, heads: int) -> None:
        """As the protocol says.

        Raises:
            InvariantBroken: a graph's buffers are too small for the step, or it is not a decode step.
        """
        self._check(runs, heads)
        # The pinned buffer may still be read by the copy that the last plan enqueued.
        self._copied.synchronize()
        self._wrapper.plan(
            _pinned(np.append(runs.first_R, runs.num_rows)),
            _pinned(np.append(runs.page_R, len(runs.slots_M))),
            _pinned(runs.slots_M),
            _pinned(runs.num_keys_R),
            heads,
            self._shape.latent,
            self._shape.rope,
            runs.page_size,
            not runs.are_single_rows,
            self._shape.scale,
            self._shape.dtype,
            self._shape.dtype,
        )
        self._copied.record()

    def run(self, q_NHC: Tensor, pages_SPC: Tensor, out_NHr: Tensor, lse_NH: Tensor) -> None:
        """As the protocol says."""
        latent = self._shape.latent
        self._wrapper.run(
            q_NHC[..., :latent],
            q_NHC[..., latent:],
            pages_SPC[..., :latent],
            pages_SPC[..., latent:],
            out=out_NHr,
            lse=lse_NH,
            return_lse=True,
            return_lse_base_on_e=True,
        )

    def _check(self, runs: Runs, heads: int) -> None:
        buffers = self._buffers
        if buffers is None:
            return
        if not runs.are_single_rows or (runs.num_rows, heads) != (buffers.rows, buffers.heads):
            raise InvariantBroken(
                f"{runs.num_rows} rows in {len(runs.first_R)} runs of {heads} heads, "
                f"a graph was captured for {buffers.rows} rows of {buffers.heads} heads"
            )
        if len(runs.slots_M) > buffers.max_pages:
            raise InvariantBroken(
                f"{len(runs.slots_M)} pages, the graph's buffer has room for {buffers.max_pages}"
            )


def _pinned(values: NDArray[Any]) -> Tensor:
    """As int32, from where a copy need not stop the host until the step before has ended."""
    if len(values) == 0:  # rows without any keys: never read, but an address is needed
        values = np.zeros(1)
    return torch.from_numpy(values.astype(np.int32)).pin_memory()
