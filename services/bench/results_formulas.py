"""What each measured figure means: the head of the results page.

Invariant: every column of a table on the page is defined here, with the formula by which it is computed.
"""

HEAD = """# Measured results

Made by `make results` from the JSON documents in this folder; do not edit. A document holds the machine, the
commit and all settings of its rows. Times are those of the slowest rank. p50 is the median and p95 the 95th
percentile over the repetitions that the row states. T ranks, L layers, B requests, S cached tokens of each.

## What the figures mean

"""

PRIMITIVES = """### Primitives

One layer's state is moved with inference paused, as a switch moves it: gather kernel, exchange (or copies out
of peers' memory), scatter.

    GB/s       = bytes that a rank received from the others / p50 time / 10⁹, of the rank that received most
    best GB/s  = the same bytes between the same ranks out of contiguous buffers, by whichever of grouped
                 send/receive, all-to-all and all-gather, over either communicator, was fastest then
    limited    = the same over the transfer communicator only, whose thread blocks are limited
    of best    = GB/s / best GB/s
    of limited = GB/s / limited: the same thread blocks on both sides
    chunks     = that the layer takes; read + write: p50 of each half alone, in ms, all in turn. A read
                 is the gather, a write all that follows; a chunk is read while the one before is written

On GPUs times lie between events on the computing stream, repetitions follow each other without a pause, and
each takes another layer. A layer may take several chunks of the staging size; the contiguous transfer is
always one.
"""

SWITCH = """### Switches

A *switching* step executes a switch and then its rows in the new layout; *ready* is the same rows in the same
layout with the state in place. Each repetition r measures one ready step and one switching step a mode from
the same state; modes take turns in going first. In prefill an ordinary step in the old layout goes before
each switching step, and the first switching step before the ready step, as in service. A GPU that works at
its power limit computes slower after a harder step, so a layout that works it harder makes its ready steps
slower than the switching step before them: differences of less than some 4 % of a step are within that.

    step       = p50 of the switching steps
    exposed    = p50 (p95) over r of (switching_r − ready_r)
    first      = p50 of what the step waits before layer 0 computes: moves at the boundary, layer 0's state
    later      = p50 of Σ_{i ≥ 1} (time that the step waits for layer i's state)
    interf.    = p50 of (exposed_r − first_r − later_r): slower computation beside transfers, and all else
    layer      = p50 of the blocking mode's moves / L: τ, one layer's state when nothing computes
    transfer   = p50 of one layer's moves while earlier layers compute
    (7)        = τ + Σ_{i ≥ 1} max(0, τ − c_{i−1}), the model's prediction of exposed (docs/model.md §5);
                 c_i from layer i's state being in place to layer i + 1's being wanted, p50 of ready steps
    of ready   = exposed / ready
    bytes      = received from other ranks, by the rank that received most
    reps       = repetitions; directions take turns, so that short of time all have some
    plan       = p50 of the leader's time to plan the manifest; the step before hides it

With `backend alone` (see Sweeps) moves are copied on the device instead of sent: such a table tells what a
rank's host and its own gathers and scatters take, in `first` above all, and nothing of links.

Differences are not floored: noise shows as small negative figures. In prefill the rows of a step are spread
evenly over all B requests, each over S cached tokens to which it is taken back afterwards. In decode each
request runs one row, and

    ITL        = time from the end of a step to the end of the next
    ready      = p50 of the ITL of the ordinary steps in the new layout right after the switch
    before     = p50 of the ITL of the ordinary steps in the old layout right before it
    exposed    = p50 (p95) of (ITL of the switching step − ready of the same window)
    ahead      = bytes that a rank received ahead of the switching step, beside so many ordinary steps, and
                 p50 of (p50 of their ITL / before of the same window − 1)

"n launched" after a mode's exposed time: the switching step of so many repetitions was launched kernel by
kernel, though ordinary steps were replayed.

*Churn* is the mode precopied while requests come and go: before every `churn_every`-th ordinary step one is
cancelled, one admitted with its history in place, one finished, one admitted, and so on, the oldest leaving.

    events      = of the last repetition, until the switching step
    copied      = received by all ranks ahead of the switching step
    invalidated = the part of it that is not part of the state after the switch: pages of requests that left,
                  copies that lost their slots, weights under which pages came to lie
    again       = received for a page and rank for which a copy had been received before
    committed   = repetitions whose switching step was precopied; the others were overlapped, for the reason
"""

CAPACITY = """### Capacity

    pool       = tokens that one rank's page pool takes
    distinct   = tokens of different histories that the pools of all ranks take together: pages are handed
                 out by the layout's rule until none is left
    account    = the same by equations (1) and (6) of docs/model.md; M_other is what the budget leaves beside
                 the arena
    peak       = most memory that tensors took while one request ran a step of the largest size
    used       = memory in use on the device after it, with what libraries hold
    budget     = memory fraction × device memory − staging
    recorded   = device memory that the layout's recorded decode steps keep, by home rows per rank, measured
    steps        when they were recorded, and what is set aside for those of all layouts (part of M_other)
"""

SWEEP = """### Sweeps

    prefill tokens/s = B · input / Σ step times, from empty to all prompts complete and a token drawn for
                       each; at most `chunk_tokens` rows a step, an equal share for each owner's requests,
                       oldest first
    decode ms        = p50 of the ITL of ordinary steps, B rows each, over `input` cached tokens; replayed
                       from recorded steps where the settings say `graphs on`
    decode tokens/s  = B / decode time

A floor is what no step on these devices can be faster than: it knows of no launch, small kernel or wait. On
H200 memory reads BW = 4.3 TB/s, attention computes F_a = 600 and matrices F = 780 TFLOP/s (measured for
copies, FlashInfer's MLA and large products: splash_core/spec/hardware.py).

    floor (decode)   = weights + attention + collectives, in this order in the table
      weights        = bytes of weights that the fullest rank reads / BW: projections as the layout holds
                       them, dense, shared and low-rank matrices, the head, and of its routed experts the
                       expected part 1 − (1 − k/E)^B (E experts, k for each row)
      attention      = Σ over layers of max over ranks of max(KV bytes / BW, flops / F_a), absorbed form
      collectives    = p50 of the collectives of such a step alone, one after the other, recorded in a graph
                       where steps are, measured in the same run: no rank waits for another's computing
    floor (prefill)  = (flops of all matrices / F + flops of expanded attention / F_a) / T, of all steps
                       together, beside the time that they took; the same for all layouts, an even share
                       for every rank
    of floor         = floor / decode time; floor / Σ step times

With `backend alone` one rank of T runs on a device without the others (rank 0, which has no fewer rows than
any other): shapes, memory and its computation are those of T ranks, and what others would send is made up on
the device from its own rows. Links are added afterwards, so `together` is an estimate and no measurement of T
devices: at T = 2 −5 to +2 % of what two GPUs took (sweep-t2-one-rank-decode beside sweep-t2-ahead).

    alone    = decode time − time of the stand-ins for collectives (prefill: Σ step times, stand-ins included)
    links    = decode: p50 of the collectives of such a step, as above, of the newest sweep over real links
               with the same layout and B, on as many ranks as is said (small messages: mostly latency);
               prefill: bytes that the rank receives / the device's all-gather rate (304 GB/s), none hidden
    together = alone + links; of its: together / the peer's time for the same cell on T devices
"""

AGREEMENT = """### Agreement

Every variant (a layout, and B sequences side by side) computes the same sequences with given tokens: prompts
from empty, in the variant itself, then a row of each sequence a step. Logits are those from which it would
draw, times the setting `head_scale`. Random weights spread logits by 1 over the vocabulary, which leaves the
next token nearly undecided; times 4 the entropy is like a trained model's. A power of two rounds nothing, and
no factor changes which logit is the largest, nor a margin in units of the deviation.

    agreement    = positions at which both name the same most probable token / positions, ± standard error
    KL           = mean over positions of Σ_v p(v) · (ln p(v) − ln q(v)), nats; p of the first, q the second
    yardstick    = the same of one layout at two numbers of sequences side by side, mean of the pair's layouts
    points below = 100 · (yardstick − agreement); met when at most 0.5
    margin       = best logit − second best; ties: part of the positions where it is 0
    crossed      = the largest margin of the first at a position where the second names another token
    entropy      = p50 of −Σ_v p(v) · ln p(v), nats
    deviation    = standard deviation of a position's logits over the vocabulary, mean over positions
"""

SERVE = """### Serving

    decode tokens/s  = tokens of all streams inside the window in which all of them decode / its length
    prefill tokens/s = prompt tokens / time to the first token
    ratio            = tokens/s / tokens/s of transformers' `generate` on the same checkpoint and machine
"""

ROLLOUT = """### Rollout

One stack serves the same requests again and again: all at once, greedy, outputs with a long tail, so that the
batch shrinks to one. An *arm* is a fixed layout, pinned in both phases, or the policy, which begins where
services start (prefill TP, decode DP). No probes between (`canary_every_s`). After an arm that warms up
and is not counted, each run has every arm once, in an order rotated by run.

    makespan    = from the moment at which all requests begin, at the client, to the last token
    best        = the fixed layout with the least mean makespan over the runs
    x_r         = ln(makespan of the policy in run r / makespan of best in run r)
    ratio       = exp(mean of x)
    upper bound = exp(mean of x + t · s / √n), one-sided 95 %: n runs, s the standard deviation of x, t of
                  Student's distribution with n − 1 degrees of freedom; target: at most 1.05
    of best     = mean makespan / mean makespan of best
    ITL         = gaps between two tokens of a request, all requests; means of the runs' percentiles
    switches    = executed, of both phases, mean of the runs
    service     = CPU seconds of leaders, router and client in an arm; others: of what is not the stack, noise
    differing   = requests, over all runs, of which any token differs from the arm that warmed up; target: 0
    error       = simulated makespan / mean of the measured ones − 1; target: within ± 15 %

The simulation (docs/simulator.md) has the same requests, group sizes, pools and limits, and takes time from
the profile that is named; nothing that an arm measured enters.
"""

HANDOFF = """### Handoffs

All bytes of a handoff go from one process to another on this host, in pages that lie scattered on both sides.
The reference moves as many bytes in large blocks: the library's own synchronous writes into the same memory
for Mooncake, a copy inside one process (`memcpy`) for shared memory. They are measured in pairs, either first
in turn.

    GB/s         = bytes / p50 time / 10⁹
    of reference = p50 over the pairs of (time of the reference / time of the handoff)
"""

FAULTS = """### Faults

The fault matrix of the handoff (`make faults`, `tests/faults`): real groups with real engines, disturbed from
outside at chosen moments. A repetition *held* if all tokens were those of an undisturbed run, requests of
healthy groups finished meanwhile, every living group then held no page, lease or push without waiting for a
timeout, and the survivors served the next request. Points are the moments that repetitions take in turn.
"""

SHARED_LINK = """### The shared link

Two hosts (network namespaces) on one link of limited rate (`tc tbf`), each way. Host A holds the prefill rank
and decode's rank 0, host B decode's rank 1; decode's collectives are gloo over TCP, handoffs are Mooncake
over TCP. Background streams decode all the time; other requests arrive at exponentially distributed
intervals, the same in every condition, and are handed over. *idle*: switches to the other layout and back
without such requests; *handoffs*: requests without switches; *both*; *full*: many requests at once. Without
the arbiter nobody waits for a turn, and no budget or pause holds.

    TTFT           = time from a request's start at the client to its first text, ms
    stages         = means, ms: lease / prefill / transfer / told, which add up to the mean of TTFT. lease:
                     until decode has granted pages and the prompt's turn has come; transfer: what is left of
                     the handoff once the prompt is computed; told: the first token's way to the client.
                     Waiting for a switching step shows as lease, for the link as transfer
    met            = requests during whose TTFT a switch was under way (asked for and not answered)
    gap            = time between two texts of a background stream, ms
    exposed        = time of the switching step − median of recent steps of its shape, at least 0: p50 (most)
    per MB         = median over the switches of exposed / bytes that all ranks received in the step / 10⁶:
                     histories grow while they are measured
    of idle        = per MB / per MB of the same arm and mode on the idle link; target: at most 1.3
    of no switch   = TTFT p95 / TTFT p95 of the same arm's *handoffs*; target: at most 1.3
    of link        = bytes from A to B, headers included / time / the link's rate; target in *full*: 90 %
    bytes          = by class, all ranks of all groups: switch and ahead received, handoff sent
"""

PEER = """### Beside a peer

In the table of a sweep, whatever the number of GPUs on either side:

    prefill ratio = our prefill tokens/s / the peer's
    decode ratio  = our decode time / the peer's

In the table of the peer, where a sweep of ours has the same phase, layout, B and input:

    tokens/s per GPU = prefill tokens/s / GPUs; B / decode time / GPUs
    ratio            = ours per GPU / the peer's per GPU
"""

CALIBRATE = """### Calibration

Whole steps of a grid of batches (phase × requests × longest history × rows; equal lengths, mixed lengths,
and mixed lengths of which rank 0 owns three in four), each in every layout, the layouts in turn. A step's
time is that from the end of the step before to its own. Batches come in the order of a hash of (seed, batch);
of each phase every third is held out: the fit of θ (docs/model.md §6) never sees it. Repetitions that warm up
never enter. A CPU host's other processes are noise: layouts are measured in rounds, up to three, until each
has enough repetitions in which no rank stood ready without a CPU for more than 5 % of their time, and the
least disturbed count; a batch of which one waited for more than 15 % is measured again at the end. `left_out`
and `delayed` in the document say how many were left out, and the part of its time that the worst of the
others waited. The time that repetitions took decides nothing.

    error    = median over steps of |predicted / measured − 1|; bias: without the absolute value; measured is
               the median of the repetitions
    spread   = median over steps of (interquartile range of the repetitions / their median)
    of limit = median over steps of error / max(15 %, 2 × spread); it holds at 1 or less
    choice   = the layout whose predicted time for a batch is least. Good if measured to be the best or at
               most 5 % slower; it holds if 90 % are, in each phase
    slowed   = seconds of slow-down per second of a transfer that hides, equation (13) of docs/model.md: of a
               step alone, and beside whole pages to the next rank that take about half of it, in turns; each
               time is the median of four equal steps in a row
    gap      = (time in which all streams of a running stack decode) · streams / tokens told in it, of each
               round. Service adds a step and b a token: least squares of (predicted + a + b · streams) / gap
               to 1, neither below 0, over all layouts together (`--streams`)
"""

BURST = """### Bursts

B equal requests come at one moment through the gateway to one prefill and one decode group (1P1D), and each
generates L_out tokens. Arms are layouts of prefill / decode, pinned, or the policy's, which begins where
services start. All arms run on one stack, one after the other.

    T        = from when the requests are sent to the last token of the last one: queueing, prefill, handoff
               and decode
    tokens/s = B · (L_in + L_out) / T
    resident = most requests that ran at once in a group; the others waited for room
    speed-up = exp(mean over runs of ln(sum of T of a fixed arm / sum of T of the policy's)); at least: its
               one-sided 95 % bound, as of a rollout; the best arm is that of one layout in both phases whose
               mean is least
"""

FORMULAS = {
    "primitives": PRIMITIVES,
    "switch": SWITCH,
    "capacity": CAPACITY,
    "sweep": SWEEP,
    "agreement": AGREEMENT,
    "serve": SERVE,
    "rollout": ROLLOUT,
    "burst": BURST,
    "handoff": HANDOFF,
    "faults": FAULTS,
    "shared-link": SHARED_LINK,
    "peer": PEER,
    "calibrate": CALIBRATE,
}
"""By benchmark, in the order of the page."""
