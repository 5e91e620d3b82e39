"""t_exchange: bytes and collectives that one layer's attention sends across ranks, docs/model.md §4.

Bytes are what the fullest rank receives; tests hold those that engines send against them.
"""

from splash_core.cost.links import Collective, CollectiveLoad
from splash_core.cost.precision import Precision
from splash_core.cost.profile import HardwareProfile
from splash_core.cost.shares import Shares
from splash_core.layout.forms import CpStorage
from splash_core.layout.layout import KvHistory, Matrix
from splash_core.layout.memory import exchanged_per_head
from splash_core.spec.model import ModelSpec

_LSE_BYTES = 4
_INDEX_CANDIDATE_BYTES = 8
"""A score and a position, per key that a stripe proposes for the top-k."""


Messages = tuple[CollectiveLoad, ...]


def exchange_time(spec: ModelSpec, precision: Precision, profile: HardwareProfile, shares: Shares) -> float:
    """Seconds of one layer's exchange, over all steps of the load."""
    return profile.messages_s(attention_messages(spec, precision, shares))


def attention_messages(spec: ModelSpec, precision: Precision, shares: Shares) -> Messages:
    """The collectives of one layer's attention under the shares' rule."""
    if shares.num_ranks == 1 or shares.total.rows == 0:
        return ()
    if shares.rule.history is KvHistory.STRIPED:
        return _striped(spec, precision, shares)
    if not shares.sharded(Matrix.Q_B):
        return ()
    width = precision.activation_bytes
    scattered = scatter_rows(shares, spec.hidden, width)
    if shares.rule.history is KvHistory.ALL:
        return gather_rows(shares, spec.q_in + spec.kv_row, width), scattered
    queries = gather_rows(shares, spec.q_in, width)
    return queries, _owner_exchange(spec, width, shares), scattered


def gather_received(shares: Shares) -> float:
    """Rows that the emptiest rank receives when all rows are gathered everywhere."""
    return shares.total.rows - shares.home_min


def gather_rows(shares: Shares, numbers: int, width: int) -> CollectiveLoad:
    """All rows everywhere."""
    return CollectiveLoad(Collective.GATHER, shares.steps, gather_received(shares) * numbers * width)


def scatter_rows(shares: Shares, numbers: int, width: int) -> CollectiveLoad:
    """Partial sums of all rows to their homes: the fullest home receives T-1 parts of its rows."""
    received = (shares.num_ranks - 1) * shares.home_rows * numbers * width
    return CollectiveLoad(Collective.SCATTER, shares.steps, received)


def _owner_exchange(spec: ModelSpec, width: int, shares: Shares) -> CollectiveLoad:
    """Heads to owners and back, equation (4): queries in, outputs out, on the fullest owner's link."""
    numbers = exchanged_per_head(spec, shares.rule)
    others = 1 - 1 / shares.num_ranks
    received = shares.home_rows * others * spec.heads * numbers * width
    return CollectiveLoad(Collective.EXCHANGE, 2 * shares.steps, received)


def _striped(spec: ModelSpec, precision: Precision, shares: Shares) -> Messages:
    width = precision.activation_bytes
    if shares.storage is CpStorage.PASS_Q:
        # Every rank attends to its stripe for all rows, and returns per-head values with their LSE.
        out_bytes = spec.heads * (spec.v_dim * width + _LSE_BYTES)
        indexed = _index_layers(spec)
        if spec.indexer is not None:
            out_bytes += indexed * spec.indexer.top_k * _INDEX_CANDIDATE_BYTES
        returned = (shares.num_ranks - 1) * shares.home_rows * out_bytes
        asked = gather_received(shares) * spec.q_in * width
        return (
            CollectiveLoad(Collective.EXCHANGE, shares.steps, asked),
            CollectiveLoad(Collective.EXCHANGE, (1 + indexed) * shares.steps, returned),
        )
    # The history of one layer, and the chunk's own rows with it, into staging.
    row = precision.latent_row_bytes(spec) + _index_layers(spec) * precision.index_row_bytes(spec)
    others = 1 - 1 / shares.num_ranks
    return (CollectiveLoad(Collective.GATHER, 2 * shares.steps, shares.total.keys * others * row),)


def _index_layers(spec: ModelSpec) -> float:
    """The share of attention layers that score keys."""
    return 0.0 if spec.indexer is None else spec.indexer.layers / spec.num_mla_layers
