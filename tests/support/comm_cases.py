"""Random programs of collectives with naive references: one conformance suite for every communicator.

A script is plain data. Each rank makes its inputs from (seed, call index, rank), so the reference can
compute what any rank must receive without communicating.
"""

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from splash_core.dist.comm import Comm, Transfer
from splash_core.ids import RankId

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)
ROW_SHAPES = ((), (1,), (3,), (2, 5), (0,))


@dataclass(frozen=True)
class Call:
    """One collective. `matrix[src][dst]` counts rows (gather and reduce use column 0 per rank)."""

    kind: str
    dtype: torch.dtype
    row_shape: tuple[int, ...]
    matrix: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> list[int]:
        """Rows per rank of a gather or reduce."""
        return [row[0] for row in self.matrix]


@dataclass(frozen=True)
class Script:
    """A program that all ranks run."""

    num_ranks: int
    seed: int
    calls: tuple[Call, ...]


def scripts(num_ranks: int, *, max_calls: int = 6, big_rows: int = 0) -> st.SearchStrategy[Script]:
    """Programs for `num_ranks`; some counts reach `big_rows`, to cross a backend's chunk size."""
    count = st.one_of(st.integers(0, 4), st.sampled_from([0, 1, 7, big_rows or 9]))
    row = st.tuples(*[count] * num_ranks)
    call = st.builds(
        Call,
        kind=st.sampled_from(["gather", "all_to_all", "reduce", "exchange", "barrier"]),
        dtype=st.sampled_from(DTYPES),
        row_shape=st.sampled_from(ROW_SHAPES),
        matrix=st.tuples(*[row] * num_ranks),
    )
    return st.builds(
        Script,
        num_ranks=st.just(num_ranks),
        seed=st.integers(0, 2**20),
        calls=st.lists(call, min_size=1, max_size=max_calls).map(tuple),
    )


def _rows(script: Script, index: int, rank: int, rows: int) -> Tensor:
    call = script.calls[index]
    generator = torch.Generator().manual_seed(script.seed * 1009 + index * 31 + rank)
    shape = (rows, *call.row_shape)
    if call.dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(call.dtype)
    return torch.randint(0, 100, shape, generator=generator).to(call.dtype)


def _pieces(script: Script, index: int, src: int, dst: int) -> list[Tensor]:
    """What `src` sends `dst` in an exchange: as many messages as rows, of different lengths."""
    num_messages = script.calls[index].matrix[src][dst] % 5
    start = src * script.num_ranks + dst
    return [_rows(script, index, start + 100 * message, message * 3) for message in range(num_messages)]


def run_script(comm: Comm, script: Script, device: torch.device = CPU) -> list[Tensor]:
    """This rank's results on CPU, call by call (an exchange gives its receives in order of peer).

    `device` is where the communicator's tensors live.
    """
    results: list[Tensor] = []
    me = comm.rank
    for index, call in enumerate(script.calls):
        tag = f"{call.kind}.{index}"
        if call.kind == "gather":
            x_NX = _rows(script, index, me, call.counts[me]).to(device)
            results.append(comm.all_gather_rows(x_NX, call.counts, tag=tag))
            if comm.size > 1:
                x_NX.zero_()
        elif call.kind == "all_to_all":
            send_counts = list(call.matrix[me])
            recv_counts = [row[me] for row in call.matrix]
            x_NX = _rows(script, index, me, sum(send_counts)).to(device)
            results.append(comm.all_to_all_rows(x_NX, send_counts, recv_counts, tag=tag))
        elif call.kind == "reduce":
            x_NX = _rows(script, index, me, sum(call.counts)).to(device)
            results.append(comm.reduce_scatter_rows(x_NX, call.counts, tag=tag))
        elif call.kind == "exchange":
            results += _run_exchange(comm, script, index, tag, device)
        else:
            comm.barrier()
    return [result_NX.clone().cpu() for result_NX in results]


def _run_exchange(comm: Comm, script: Script, index: int, tag: str, device: torch.device) -> list[Tensor]:
    sends, recvs = [], []
    for peer in range(comm.size):
        sends += [Transfer(RankId(peer), x_X.to(device)) for x_X in _pieces(script, index, comm.rank, peer)]
        recvs += [
            Transfer(RankId(peer), torch.empty_like(x_X, device=device))
            for x_X in _pieces(script, index, peer, comm.rank)
        ]
    comm.exchange(sends, recvs, tag=tag)
    return [recv.tensor for recv in recvs]


def expected(script: Script, rank: int) -> list[Tensor]:
    """What `run_script` must return on `rank`, computed naively."""
    results: list[Tensor] = []
    ranks = range(script.num_ranks)
    for index, call in enumerate(script.calls):
        if call.kind == "gather":
            results.append(torch.cat([_rows(script, index, src, call.counts[src]) for src in ranks]))
        elif call.kind == "all_to_all":
            parts = []
            for src in ranks:
                row = call.matrix[src]
                begin = sum(row[:rank])
                parts.append(_rows(script, index, src, sum(row))[begin : begin + row[rank]])
            results.append(torch.cat(parts))
        elif call.kind == "reduce":
            results.append(_expected_reduce(script, index, rank))
        elif call.kind == "exchange":
            results += [x_X for src in ranks for x_X in _pieces(script, index, src, rank)]
    return results


def _expected_reduce(script: Script, index: int, rank: int) -> Tensor:
    call = script.calls[index]
    begin = sum(call.counts[:rank])
    own = slice(begin, begin + call.counts[rank])
    wide = torch.float32 if call.dtype is torch.bfloat16 else call.dtype
    total_NX = torch.zeros((call.counts[rank], *call.row_shape), dtype=wide)
    for src in range(script.num_ranks):
        total_NX = total_NX + _rows(script, index, src, sum(call.counts))[own].to(wide)
    return total_NX.to(call.dtype)


def assert_matches(script: Script, results: list[list[Tensor]], *, exact_sums: bool = True) -> None:
    """Every rank's results equal the reference, bit for bit.

    `exact_sums=False` is for backends that sum in an order of their own: sums may then differ by rounding.
    """
    for rank, got in enumerate(results):
        want = expected(script, rank)
        kinds = _kinds_of_results(script, rank)
        assert len(got) == len(want) == len(kinds)
        for index, (a_NX, b_NX, kind) in enumerate(zip(got, want, kinds, strict=True)):
            where = f"rank {rank}, result {index} ({kind}) of {script}"
            assert a_NX.dtype == b_NX.dtype, where
            assert a_NX.shape == b_NX.shape, where
            if exact_sums or kind != "reduce":
                assert torch.equal(a_NX, b_NX), f"{where}: got {a_NX}, expected {b_NX}"
            else:
                # Half types may be rounded after each addition, which shows where terms cancel.
                rtol, atol = (2e-2, 6e-2) if a_NX.dtype is torch.bfloat16 else (None, None)
                torch.testing.assert_close(
                    a_NX, b_NX, rtol=rtol, atol=atol, msg=lambda text, where=where: f"{where}: {text}"
                )


def _kinds_of_results(script: Script, rank: int) -> list[str]:
    kinds: list[str] = []
    for index, call in enumerate(script.calls):
        if call.kind == "exchange":
            pieces = (_pieces(script, index, src, rank) for src in range(script.num_ranks))
            kinds += ["exchange"] * sum(map(len, pieces))
        elif call.kind != "barrier":
            kinds.append(call.kind)
    return kinds


def evened(script: Script) -> Script:
    """The same program with equal counts in each all-to-all, as in a padded step."""
    calls = []
    for call in script.calls:
        alike = tuple((call.matrix[0][0],) * script.num_ranks for _ in range(script.num_ranks))
        calls.append(replace(call, matrix=alike) if call.kind == "all_to_all" else call)
    return replace(script, calls=tuple(calls))
