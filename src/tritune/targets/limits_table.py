"""The table of `limits.py`: the limits of each architecture, the peaks of its best-known product.

Per core: warps, blocks, registers, shared memory. Per product: cores, clock, memory, cache, and
matrix products in 10^12 operations per second, without sparsity and with sums in fp32. A product
with more or fewer cores than the one named here has the same limits per core.

The bandwidth of the last cache is the vendor's figure for the A100, MI250X, MI300X and RX 7900 XTX.
Where there is none it is 48 bytes per clock and core, as on the A100; for CDNA 4 it is CDNA 3's.

A source is where the figures were looked up, or "vendor's datasheet, not checked" with the figures
that no document was found for. "As quoted" is a document that was read through one that quotes it.
Half of a rate with sparsity, and half of a narrower type's, count as found.
"""

from __future__ import annotations

from typing import Any

from tritune.targets.limits import Limits
from tritune.targets.target import Target

KIB, MIB, GIB = 2**10, 2**20, 2**30
GIGA, TERA = 1e9, 1e12

#: Warps, blocks, registers and shared memory; it has no columns for 10.3 and 12.1.
CUDA = (
    "NVIDIA: CUDA Programming Guide, 5.1 Compute Capabilities, Technical Specifications, "
    "read in a copy, "
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html"
)
#: Granules, parts of a core, blocks and shared memory, by the major number up to 12.
CUDA_OCCUPANCY = "NVIDIA: cuda_occupancy.h of CUDA 13.1, which comes with Triton 3.7.1"
#: Multiply-adds and exponentials.
CUDA_RATES = (
    "NVIDIA: CUDA C++ Best Practices Guide, Throughput of Native Arithmetic Instructions, "
    "as quoted in XLA's cuda_core_info_table.cc; exponentials after 8.6 not checked"
)
BLACKWELL = (
    "NVIDIA: Blackwell Architecture Technical Brief V2.1, Table 3, per GPU of HGX, as quoted, "
    "https://dam-cdn.nvd.orangelogic.com/AssetLink/gl2l4l4812s5fw0p614s6i8bv6mi3vx5.pdf"
)
#: Waves, registers, work-groups and local memory, and all granules but the next one's.
LLVM = "LLVM: AMDGPUBaseInfo.cpp, IsaInfo; User Guide for AMDGPU Backend, granularity of lds-size"
#: What RDNA allocates of local memory, which is twice the unit that the code object counts in.
LLVM_LDS = (
    "LLVM: pull request 224852, LDS encoding granularity, "
    "https://www.mail-archive.com/llvm-branch-commits@lists.llvm.org/msg93239.html"
)
MESA_LDS = "Mesa: the ACO compiler, lds_alloc_granule"
#: Compute units, memory, caches, local memory, register files.
HIP = (
    "AMD: ROCm documentation, AMD GPU specifications, "
    "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
)
CDNA_WHITEPAPERS = (
    "https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/white-papers"
)
CDNA3 = (
    "AMD: CDNA 3 Architecture whitepaper, Table 1 and Memory, read in a copy, "
    f"{CDNA_WHITEPAPERS}/amd-cdna-3-white-paper.pdf"
)
WMMA = (
    "AMD: GPUOpen, Using the Matrix Cores of AMD RDNA 4 architecture GPUs, "
    "https://gpuopen.com/learn/using_matrix_core_amd_rdna4"
)
#: Multiply-adds of a compute unit, without dual issue.
WGP = (
    "AMD: ROCm Compute Profiler, Workgroup processor, https://rocm.docs.amd.com/projects/"
    "rocprofiler-compute/en/docs-7.14.0/conceptual/rdna/wgp.html"
)
UNCHECKED = "vendor's datasheet, not checked"


def _limits(
    target: Target, sources: tuple[str, ...], product: str, *,
    cores: int, mhz: int, gib: int, gb_per_s: float, cache_mib: int, cache_gb_per_s: float,
    matrix: dict[str, float], **per_core: int,
) -> Limits:  # fmt: skip
    """Return the limits of an architecture and its product, in the units of `Limits`."""
    return Limits(
        target=target,
        sources=sources,
        schedulers=4,
        threads_per_block=1024,
        product=product,
        cores=cores,
        clock_hz=mhz * 1e6,
        memory_bytes=gib * GIB,
        memory_bytes_per_second=gb_per_s * GIGA,
        cache_bytes=cache_mib * MIB,
        cache_bytes_per_second=cache_gb_per_s * GIGA,
        matrix_flops={dtype: tera * TERA for dtype, tera in matrix.items()},
        **per_core,
    )


def _nvidia(
    capability: int, product: str, *sources: str, warps: int, blocks: int, shared_kib: int,
    fmas: int, exponentials: int = 16, **of_product: Any,
) -> Limits:  # fmt: skip
    """Return the limits of an NVIDIA architecture.

    A multiprocessor has 65536 registers in four parts, and a thread has at most 255.
    """
    modern = capability >= 80
    return _limits(
        Target("cuda", capability),
        (CUDA, CUDA_OCCUPANCY, CUDA_RATES, *sources),
        product,
        warp_size=32,
        warps_per_core=warps,
        blocks_per_core=blocks,
        registers_per_core=65536,
        registers_per_thread=255,
        register_granule=8,
        shared_per_core=shared_kib * KIB,
        shared_per_block=(shared_kib - modern) * KIB,
        shared_granule=128 if modern else 256,
        shared_reserved=KIB if modern else 0,
        shared_bytes_per_clock=128,
        exponentials_per_clock=exponentials,
        vector_fmas_per_clock=fmas,
        **of_product,
    )


def _cdna(
    arch: str, product: str, *sources: str, shared_kib: int = 64, shared_granule: int = 512,
    shared_bytes: int = 128, exponentials: int = 16, **of_product: Any,
) -> Limits:  # fmt: skip
    """Return the limits of a CDNA architecture.

    A compute unit has four SIMDs with up to eight waves of 64 lanes each. A lane has 512
    registers, of both kinds together (vector and accumulation), in granules of eight. A compute
    unit does 64 multiply-adds in a clock; the 128 of instructions for pairs are not counted.
    """
    return _limits(
        Target("hip", arch),
        (LLVM, HIP, *sources),
        product,
        warp_size=64,
        warps_per_core=32,
        blocks_per_core=16,
        registers_per_core=4 * 512 * 64,
        registers_per_thread=512,
        register_granule=8,
        shared_per_core=shared_kib * KIB,
        shared_per_block=shared_kib * KIB,
        shared_granule=shared_granule,
        shared_reserved=0,
        shared_bytes_per_clock=shared_bytes,
        exponentials_per_clock=exponentials,
        vector_fmas_per_clock=64,
        **of_product,
    )


def _rdna(arch: str, product: str, *sources: str, **of_product: Any) -> Limits:
    """Return the limits of an RDNA architecture.

    A work-group processor has four SIMDs with up to 16 waves of 32 lanes each. A SIMD has 1536
    registers per lane for all its waves, in granules of 24, and a wave may have 256 of them.
    """
    return _limits(
        Target("hip", arch),
        (LLVM, LLVM_LDS, MESA_LDS, HIP, WGP, WMMA, *sources),
        product,
        warp_size=32,
        warps_per_core=64,
        blocks_per_core=32,
        registers_per_core=4 * 1536 * 32,
        registers_per_thread=256,
        register_granule=24,
        shared_per_core=128 * KIB,
        shared_per_block=64 * KIB,
        shared_granule=1024,
        shared_reserved=0,
        shared_bytes_per_clock=256,
        exponentials_per_clock=32,
        vector_fmas_per_clock=128,
        **of_product,
    )


def _rates(
    half: float, fp32: float, *, bf16: bool = True, tf32: float | None = None,
    fp8: float | None = None, int8: float | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the rates by torch's names of the dtypes, and "tfloat32"."""
    rates: dict[str, float | None] = {
        "float16": half,
        "bfloat16": half if bf16 else None,
        "tfloat32": tf32,
        "float8": fp8,
        "int8": int8,
        "float32": fp32,
    }
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}


TABLE: tuple[Limits, ...] = (
    _nvidia(
        75, "Tesla T4",
        "deviceQuery: https://chiemon.github.io/2024/12/25/%E6%98%BE%E5%8D%A1%E4%BF%A1%E6%81%AF.html",
        "Hugging Face: RajBhope/gpu-runtime-predictor, gpu_catalog.json",
        f"{UNCHECKED}: int8",
        warps=32, blocks=16, shared_kib=64, fmas=64,
        cores=40, mhz=1590, gib=16, gb_per_s=320, cache_mib=4, cache_gb_per_s=3053,
        matrix=_rates(65, 8.1, bf16=False, int8=130),
    ),
    _nvidia(
        80, "A100-SXM4-80GB",
        "NVIDIA: A100 Tensor Core GPU Architecture whitepaper, Table 4 and p. 35, as quoted",
        "deviceQuery: https://gist.github.com/gengwg/3520df2ebf8872e5ee4818367e3a4122",
        "Triton: profiler/specs.py, for int8",
        warps=64, blocks=32, shared_kib=164, fmas=64,
        cores=108, mhz=1410, gib=80, gb_per_s=2039, cache_mib=40, cache_gb_per_s=7219,
        matrix=_rates(312, 19.5, tf32=156, int8=624),
    ),
    _nvidia(
        86, "RTX A6000",
        "NVIDIA: RTX A6000 datasheet, as quoted in public repositories",
        "GitHub: Jumperkables/cuda-benchmarking, for the cache of the same die",
        warps=48, blocks=16, shared_kib=100, fmas=128,
        cores=84, mhz=1800, gib=48, gb_per_s=768, cache_mib=6, cache_gb_per_s=7258,
        matrix=_rates(154.8, 38.7, tf32=77.4, int8=309.7),
    ),
    _nvidia(
        87, "Jetson AGX Orin 64GB",
        "NVIDIA: Jetson AGX Orin Series technical brief, as quoted in http://mzph.cn/web/30785.shtml",
        "deviceQuery: of an Orin with 64 GB in a public repository, for the clock",
        f"{UNCHECKED}: memory bandwidth",
        warps=48, blocks=16, shared_kib=164, fmas=128,
        cores=16, mhz=1300, gib=64, gb_per_s=204.8, cache_mib=4, cache_gb_per_s=998,
        matrix=_rates(42.5, 5.3, tf32=21.3, int8=85),
    ),
    _nvidia(
        89, "L40S",
        "deviceQuery: README of the crate cuda-device-query",
        "NVIDIA: L40S datasheet, as quoted in public repositories",
        f"{UNCHECKED}: tf32, int8",
        warps=48, blocks=24, shared_kib=100, fmas=128,
        cores=142, mhz=2520, gib=48, gb_per_s=864, cache_mib=96, cache_gb_per_s=17176,
        matrix=_rates(362, 91.6, tf32=183, fp8=733, int8=733),
    ),
    _nvidia(
        90, "H100-SXM5-80GB",
        "NVIDIA: H100 Tensor Core GPU Architecture whitepaper, Table 3, as quoted in XLA",
        "NVIDIA: H100 product page, as quoted, https://www.nvidia.com/en-us/data-center/h100/",
        warps=64, blocks=32, shared_kib=228, fmas=128,
        cores=132, mhz=1830, gib=80, gb_per_s=3352, cache_mib=50, cache_gb_per_s=11595,
        matrix=_rates(989.4, 66.9, tf32=494.7, fp8=1978.9, int8=1978.9),
    ),
    _nvidia(
        100, "B200",
        BLACKWELL,
        "XLA: cuda_core_info_table.cc, for cores and clock",
        "Chips and Cheese: Nvidia's B200, for the cache, as quoted",
        "DataCrunch: NVIDIA B300 vs B200, for the memory, "
        "https://datacrunch.io/blog/nvidia-b300-vs-b200-complete-gpu-comparison-to-date",
        warps=64, blocks=32, shared_kib=228, fmas=128,
        cores=148, mhz=1965, gib=180, gb_per_s=7700, cache_mib=126, cache_gb_per_s=13959,
        matrix=_rates(2250, 75, tf32=1125, fp8=4500, int8=4500),
    ),
    _nvidia(
        103, "B300",
        BLACKWELL,
        "NVIDIA: Making Softmax More Efficient with NVIDIA Blackwell Ultra, for exponentials, "
        "https://developer.nvidia.com/blog/making-softmax-more-efficient-with-nvidia-blackwell-ultra/",
        f"{UNCHECKED}: cores, clock and cache, taken as the B200's",
        warps=64, blocks=32, shared_kib=228, fmas=128, exponentials=32,
        cores=148, mhz=1965, gib=270, gb_per_s=7700, cache_mib=126, cache_gb_per_s=13959,
        matrix=_rates(2250, 75, tf32=1125, fp8=4500, int8=150),
    ),
    _nvidia(
        110, "Jetson T5000 (Thor)",
        "deviceQuery: https://github.com/NVIDIA/cutlass/issues/2784",
        "NVIDIA: Jetson Thor product table (clock, memory, fp8), as quoted in public repositories",
        f"{UNCHECKED}: int8",
        warps=48, blocks=24, shared_kib=228, fmas=128,
        cores=20, mhz=1575, gib=128, gb_per_s=273, cache_mib=32, cache_gb_per_s=1512,
        matrix=_rates(258, 8.1, tf32=129, fp8=517, int8=517),
    ),
    _nvidia(
        120, "RTX PRO 6000 Blackwell",
        "HMC: https://hmc-tech.com/gpu/nvidia-rtx-pro-6000-blackwell-vs-amd-radeon-pro-duo-polaris",
        "GPU.name: NVIDIA unveils RTX Pro 6000 Blackwell, for cores and memory",
        f"{UNCHECKED}: cache",
        warps=48, blocks=24, shared_kib=100, fmas=128,
        cores=188, mhz=2617, gib=96, gb_per_s=1792, cache_mib=128, cache_gb_per_s=23616,
        matrix=_rates(503.8, 126, tf32=251.9, fp8=1007.6, int8=1007.6),
    ),
    _nvidia(
        121, "GB10 (DGX Spark)",
        # The clock that gives 31 * 10^12; deviceQuery says 2418 MHz.
        "deviceQuery: https://blog.kubesimplify.com/blog/day-3-the-dgx-spark-unpacked-gb10-"
        "unified-memory-sm-121-and-the-one-reason-this-hardware-exists",
        "NVIDIA: DGX Spark product page, as quoted: 10^15 for fp4 with sparsity",
        "Ferra.ru: news of 27 August 2025 on GB10, for fp32",
        f"{UNCHECKED}: clock; wider types, taken as halves of fp4's rate",
        warps=48, blocks=24, shared_kib=100, fmas=128,
        cores=48, mhz=2525, gib=128, gb_per_s=273, cache_mib=24, cache_gb_per_s=5818,
        matrix=_rates(125, 31, tf32=62.5, fp8=250, int8=250),
    ),
    _cdna(
        "gfx90a", "Instinct MI250X (one of its two dies)",
        "AMD: ROCm documentation, MI250 microarchitecture, operations per clock and unit, "
        "https://rocm.docs.amd.com/en/latest/conceptual/gpu-arch/mi250.html",
        "AMD: CDNA 2 Architecture whitepaper, for the cache, as quoted",
        CDNA3,
        f"{UNCHECKED}: exponentials",
        cores=110, mhz=1700, gib=64, gb_per_s=1638.4, cache_mib=8, cache_gb_per_s=6963,
        matrix=_rates(191.5, 47.9, int8=191.5),
    ),
    _cdna(
        "gfx942", "Instinct MI300X",
        # For tf32 it prints 490.3 beside 1024 operations per clock and unit, which make 653.7.
        CDNA3,
        "AMD: ROCm blog, FP8 GEMM Optimization on AMD CDNA 4 Architecture, Table 1, for the LDS",
        f"{UNCHECKED}: exponentials",
        cores=304, mhz=2100, gib=192, gb_per_s=5325, cache_mib=256, cache_gb_per_s=17200,
        matrix=_rates(1307.4, 163.4, tf32=653.7, fp8=2614.9, int8=2614.9),
    ),
    _cdna(
        "gfx950", "Instinct MI355X",
        # Twice CDNA 3's exponentials, and what it reads of the LDS in a clock.
        "AMD: CDNA 4 Architecture whitepaper, Table 1, as quoted, "
        f"{CDNA_WHITEPAPERS}/amd-cdna-4-architecture-whitepaper.pdf",
        "AMD: ROCm blog, FP8 GEMM Optimization on AMD CDNA 4 Architecture, Table 1, for the LDS",
        f"{UNCHECKED}: fp32, cache bandwidth; the exponentials of CDNA 3, which it has twice",
        shared_kib=160, shared_granule=1280, shared_bytes=256, exponentials=32,
        cores=256, mhz=2400, gib=288, gb_per_s=8000, cache_mib=256, cache_gb_per_s=17200,
        matrix=_rates(2516.6, 157.3, fp8=5033.2, int8=5033.2),
    ),
    _rdna(
        "gfx1100", "Radeon RX 7900 XTX",
        "HMC: https://hmc-tech.com/gpu/amd-radeon-rx-9070-xt-vs-amd-radeon-rx-7900-xtx",
        "PCSpecChart: https://pcspecchart.com/pc_parts/gpu/5, for memory",
        f"{UNCHECKED}: cache bandwidth, LDS bandwidth, exponentials",
        cores=48, mhz=2500, gib=24, gb_per_s=960, cache_mib=96, cache_gb_per_s=3494,
        matrix=_rates(122.8, 61.4, int8=122.8),
    ),
    _rdna(
        "gfx1201", "Radeon RX 9070 XT",
        "HMC: https://hmc-tech.com/gpu/amd-radeon-rx-9070-xt-vs-amd-radeon-rx-7900-xtx",
        "Multiplayer.it: https://multiplayer.it/notizie/"
        "amd-radeon-rx-9070-xt-rx-9070-specifiche.html, for clock and memory",
        f"{UNCHECKED}: fp8, taken as int8's; LDS bandwidth, exponentials",
        cores=32, mhz=2970, gib=16, gb_per_s=640, cache_mib=64, cache_gb_per_s=4562,
        matrix=_rates(195, 48.7, fp8=389, int8=389),
    ),
)  # fmt: skip
