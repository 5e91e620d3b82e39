"""Devices by name: what one rank computes, reads, exchanges and holds.

Every figure is *attainable*, not peak, and says where it comes from. A deployment's own calibrated
profile replaces them; these only have to be good enough to plan with, and to rank layouts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from splash_core.errors import ConfigError
from splash_core.units import GIB, MIB, Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One rank's device and its link to the other ranks of a group."""

    name: str
    memory_bytes: Bytes
    """Device memory that a process can see, before the memory fraction is applied."""
    flops: Mapping[str, float]
    """Matrix-multiply rate per element type of the weights, FLOP/s."""
    attention_flops: Mapping[str, float]
    """Rate of the attention kernel when it is bound by compute, per element type of the queries, FLOP/s."""
    vector_flops: Mapping[str, float]
    """Rates of types without tensor cores: a group may run in them, to be exact; no plan offers them."""
    weight_read_bps: float
    """Bytes of weights streamed per second."""
    kv_read_bps: float
    """Bytes of paged KV history read per second."""
    link_bps: float
    """Bytes received per second by one rank in a large collective of the group."""
    collective_latency_s: float
    """Time of a collective that carries next to nothing."""
    layer_overhead_s: float
    """Time per layer that neither bytes nor FLOPs explain: launches, small kernels."""
    interference: float
    """Seconds that a step slows down per second of transfer hidden behind it."""
    sparse_head_tile: int
    """Heads that a sparse attention kernel computes at least (FlashMLA's takes 64 at a time)."""
    runtime_bytes: Bytes
    """Device context, libraries, attention workspace and communicators' buffers of one process."""
    provenance: str
    """`measured`, or `analytical` with the rule by which peaks were reduced."""

    def rates(self, dtype: str) -> tuple[float, float] | None:
        """Of matrix products and of attention, FLOP/s; None for a type that it does not compute in."""
        if dtype in self.flops:
            return self.flops[dtype], self.attention_flops[dtype]
        vector = self.vector_flops.get(dtype)
        return None if vector is None else (vector, vector * _ATTENTION_RATIO / _GEMM_RATIO)


_GEMM_RATIO, _ATTENTION_RATIO = 0.78, 0.6
_GPU_RUNTIME = Bytes(2560 * MIB)
_ANALYTICAL = (
    "analytical: 0.78 of the published GEMM peak, 0.6 of it for attention, 0.88 of memory bandwidth for "
    "weights and 0.56 for KV, 0.67 of link bandwidth each way, as measured on H200; collectives 20 us. "
    "Peaks:"
)


def _gpu(
    name: str,
    *,
    memory_gib: float,
    bf16_peak: float,
    vector_peaks: tuple[float, float],
    memory_bps: float,
    link_bps: float,
    source: str,
    has_fp8: bool = True,
) -> GpuSpec:
    """A GPU by its published dense peaks, reduced by the ratios that were measured on H200.

    `link_bps` is one way, as published for the links between the GPUs of a host; `vector_peaks` are of fp32
    and fp64 without tensor cores.
    """
    flops = {"bf16": bf16_peak * _GEMM_RATIO} | ({"fp8": 2 * bf16_peak * _GEMM_RATIO} if has_fp8 else {})
    return GpuSpec(
        name=name,
        memory_bytes=Bytes(int(memory_gib * GIB)),
        flops=MappingProxyType(flops),
        attention_flops=MappingProxyType(dict.fromkeys(flops, bf16_peak * _ATTENTION_RATIO)),
        vector_flops=_vector(*vector_peaks),
        weight_read_bps=memory_bps * 0.88,
        kv_read_bps=memory_bps * 0.56,
        link_bps=link_bps * 0.67,
        collective_latency_s=20e-6,
        layer_overhead_s=25e-6,
        interference=0.5,
        sparse_head_tile=64,
        runtime_bytes=_GPU_RUNTIME,
        provenance=f"{_ANALYTICAL} {source}",
    )


def _vector(fp32_peak: float, fp64_peak: float) -> Mapping[str, float]:
    return MappingProxyType({"fp32": fp32_peak * _GEMM_RATIO, "fp64": fp64_peak * _GEMM_RATIO})


_H200 = GpuSpec(
    name="h200",
    memory_bytes=Bytes(int(139.8 * GIB)),
    flops=MappingProxyType({"bf16": 780e12, "fp8": 1540e12}),
    attention_flops=MappingProxyType({"bf16": 600e12, "fp8": 600e12}),
    vector_flops=_vector(67e12, 34e12),
    weight_read_bps=4.3e12,
    kv_read_bps=2.7e12,
    link_bps=304e9,
    collective_latency_s=20e-6,
    layer_overhead_s=25e-6,
    interference=0.5,
    sparse_head_tile=64,
    runtime_bytes=_GPU_RUNTIME,
    provenance=(
        "measured on 4 GPUs over NVLink: bf16 GEMM 770–800 TFLOP/s, copy 4.3 TB/s, paged MLA decode "
        "2.4–3.0 TB/s, MLA prefill 615 TFLOP/s, all-gather of 64 MiB 304 GB/s, collectives in a graph "
        "16–25 us; analytical: fp8, fp32 and fp64 rates (peak times the bf16 ratio), layer overhead, "
        "interference"
    ),
)

_CPU = GpuSpec(
    name="cpu",
    memory_bytes=Bytes(4 * GIB),
    flops=MappingProxyType({"fp64": 20e9, "fp32": 40e9, "bf16": 20e9}),
    attention_flops=MappingProxyType({"fp64": 15e9, "fp32": 30e9, "bf16": 15e9}),
    vector_flops=MappingProxyType({}),
    weight_read_bps=8e9,
    kv_read_bps=4e9,
    link_bps=1e9,
    collective_latency_s=0.3e-3,
    layer_overhead_s=0.2e-3,
    interference=1.0,
    sparse_head_tile=1,
    runtime_bytes=Bytes(0),
    provenance=(
        "analytical: one core a rank on a small cloud machine, shared-memory collectives; "
        "nothing hides behind computation where cores are shared, hence interference 1"
    ),
)

GPUS: Mapping[str, GpuSpec] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            _H200,
            _gpu(
                "h100",
                memory_gib=79.1,
                bf16_peak=989e12,
                vector_peaks=(67e12, 34e12),
                memory_bps=3.35e12,
                link_bps=450e9,
                source="NVIDIA's H100 data sheet (SXM5)",
            ),
            _gpu(
                "h20",
                memory_gib=95.6,
                bf16_peak=148e12,
                vector_peaks=(44e12, 1e12),
                memory_bps=4.0e12,
                link_bps=450e9,
                source="NVIDIA's H20 product brief",
            ),
            _gpu(
                "a100",
                memory_gib=79.1,
                bf16_peak=312e12,
                vector_peaks=(19.5e12, 9.7e12),
                memory_bps=2.04e12,
                link_bps=300e9,
                source="NVIDIA's A100 data sheet (SXM4, 80 GB)",
                has_fp8=False,
            ),
            _gpu(
                "b200",
                memory_gib=178.4,
                bf16_peak=2250e12,
                vector_peaks=(75e12, 37e12),
                memory_bps=8.0e12,
                link_bps=900e9,
                source="NVIDIA's DGX B200 data sheet (its sparse peaks halved)",
            ),
            _gpu(
                "gb200",
                memory_gib=184.0,
                bf16_peak=2500e12,
                vector_peaks=(80e12, 40e12),
                memory_bps=8.0e12,
                link_bps=900e9,
                source="NVIDIA's GB200 NVL72 data sheet (one of its GPUs, sparse peaks halved)",
            ),
            _gpu(
                "mi300x",
                memory_gib=191.9,
                bf16_peak=1307e12,
                vector_peaks=(163.4e12, 81.7e12),
                memory_bps=5.3e12,
                link_bps=448e9,
                source="AMD's Instinct MI300X data sheet (for plans only: the engine's kernels are NVIDIA's)",
            ),
            _CPU,
        )
    }
)
"""Known devices by name in lower case."""


def named_gpu(name: str) -> GpuSpec:
    """The device called `name`, in upper or lower case.

    Raises:
        ConfigError: the name is unknown; lists the known ones.
    """
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise ConfigError(f"device {name!r} is not known; name one of {', '.join(GPUS)}")
    return gpu
