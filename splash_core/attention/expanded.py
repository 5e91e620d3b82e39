"""Expanded prefill over any history: keys and values of each head are made from latent rows first.

What is expanded at once is bounded by taking as many sequences as fit, or of one long sequence as many heads
as fit. Heads are independent, so nothing needs merging and each (row, key) pair is computed once.

Legend: N query rows, H heads, D = n + p, X = n + v, C = r + p, r latent rank, K keys, M pages.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splash_core.attention.runs import Runs
from splash_core.kernels.base import Kernels

EXPANDED_BYTES = 1 << 30
"""Expanded keys and values held at once."""

Prefill = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q_NHD, k_KHD, v_KHv) → out_NHv, causal and aligned at the end."""


@dataclass(frozen=True, slots=True)
class _KeyRun:
    rows: slice
    keys: slice
    """Among the rows that the group's pages hold."""


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """Sequences whose keys are expanded together."""

    slots_M: Tensor
    runs: tuple[_KeyRun, ...]


def key_groups(runs: Runs, kernels: Kernels, *, max_keys: int) -> list[KeyGroup]:
    """Groups of the runs with more than one row, of at most `max_keys` keys or of one sequence.

    Args:
        runs: of the step.
        kernels: whose `upload` places indices.
        max_keys: keys whose expansion for all heads fits.
    """
    groups: list[KeyGroup] = []
    slots: list[np.ndarray] = []
    members: list[_KeyRun] = []
    num_keys = 0

    def close() -> None:
        groups.append(KeyGroup(kernels.upload(np.concatenate(slots)), tuple(members)))
        slots.clear()
        members.clear()

    chunk_R = runs.count_R > 1
    for page in np.unique(runs.page_R[chunk_R]):
        own = np.nonzero(chunk_R & (runs.page_R == page))[0]
        pages = -(-int(runs.num_keys_R[own].max()) // runs.page_size)
        if slots and num_keys + pages * runs.page_size > max_keys:
            close()
            num_keys = 0
        for run in own:
            first, end = int(runs.first_R[run]), int(runs.first_R[run] + runs.count_R[run])
            members.append(_KeyRun(slice(first, end), slice(num_keys, num_keys + int(runs.num_keys_R[run]))))
        slots.append(runs.slots_M[page : page + pages])
        num_keys += pages * runs.page_size
    if slots:
        close()
    return groups


def bytes_per_key(kv_b_HXr: Tensor, rope: int) -> int:
    """Of one head: its key, rope part included, and its value."""
    return (kv_b_HXr.shape[1] + rope) * kv_b_HXr.element_size()


def attend_group(
    q_NHD: Tensor,
    kv_KC: Tensor,
    kv_b_HXr: Tensor,
    group: KeyGroup,
    *,
    nope: int,
    prefill: Prefill,
    out_NHv: Tensor,
) -> None:
    """Attention of a group's rows, written into `out_NHv`.

    Args:
        q_NHD: queries of all rows.
        kv_KC: latent rows of the group's pages.
        kv_b_HXr: W_UK rows then W_UV rows of each head.
        group: the sequences.
        nope: n.
        prefill: the kernel.
        out_NHv: outputs of all rows; only the group's are written.
    """
    num_keys, heads = kv_KC.shape[0], kv_b_HXr.shape[0]
    rope = kv_KC.shape[1] - kv_b_HXr.shape[2]
    at_once = EXPANDED_BYTES // (num_keys * bytes_per_key(kv_b_HXr, rope))
    at_once = min(max(at_once, 1), heads)
    for first in range(0, heads, at_once):
        some = slice(first, first + at_once)
        k_KHD, v_KHv = expand_keys(kv_KC, kv_b_HXr[some], nope=nope)
        for run in group.runs:
            out_NHv[run.rows, some] = prefill(q_NHD[run.rows, some], k_KHD[run.keys], v_KHv[run.keys])


def expand_keys(kv_KC: Tensor, kv_b_HXr: Tensor, *, nope: int) -> tuple[Tensor, Tensor]:
    """`[K, H, n+p]` keys and `[K, H, v]` values, each contiguous."""
    heads, width, latent = kv_b_HXr.shape
    num_keys = kv_KC.shape[0]
    k_KHD = kv_KC.new_empty(num_keys, heads, nope + kv_KC.shape[1] - latent)
    v_KHv = kv_KC.new_empty(num_keys, heads, width - nope)
    latent_HKr = kv_KC[:, :latent].expand(heads, -1, -1)
    # Products land in place: a batched product may write rows that are any stride apart.
    torch.bmm(latent_HKr, kv_b_HXr[:, :nope].mT, out=k_KHD[..., :nope].transpose(0, 1))
    torch.bmm(latent_HKr, kv_b_HXr[:, nope:].mT, out=v_KHv.transpose(0, 1))
    k_KHD[..., nope:] = kv_KC[:, None, latent:]
    return k_KHD, v_KHv
