"""The backend as Triton sees it: discovery, options, targets, and the tools that use it."""

import contextlib
import gc
import warnings

import pytest
import torch
import triton
import triton.language as tl
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

import tritune.cpu
from tests.cpu import programs
from tritune.cpu import codegen, compiler, driver, features
from tritune.cpu.driver import CPUDriver
from tritune.errors import CompileError, LaunchError


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def inputs(n=1000):
    return torch.randn(n), torch.randn(n), torch.empty(n)


@pytest.fixture
def backend():
    return make_backend(triton.runtime.driver.active.get_current_target())


def compiled(arch, **options):
    source = ASTSource(add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 64})
    return triton.compile(source, target=GPUTarget("cpu", arch, 1), options=options)


class TestDiscovery:
    def test_a_kernel_runs_without_being_asked_to_use_the_cpu(self):
        x, y, out = inputs()
        add[(4,)](x, y, out, 1000, BLOCK=256)
        assert torch.equal(out, x + y)
        assert isinstance(triton.runtime.driver.active, CPUDriver)

    def test_a_broken_llvmlite_leaves_triton_alone_and_is_explained(self, tmp_path):
        (tmp_path / "llvmlite").mkdir()
        (tmp_path / "llvmlite" / "__init__.py").write_text("raise OSError('no libLLVM here')")
        result = programs.run(
            tmp_path,
            """
            import triton
            from tritune.cpu import driver
            print(driver.CPUDriver.is_active(), "|", driver.unavailable_reason())
            """,
            PYTHONPATH=str(tmp_path),
        )
        active, reason = programs.check(result).split("|")
        assert active.strip() == "False"
        assert "llvmlite" in reason
        assert "no libLLVM here" in reason
        assert "no libLLVM here" in result.stderr

    @pytest.mark.parametrize("module", ["compiler", "driver"])
    def test_the_backend_can_be_imported_before_triton(self, module, tmp_path):
        programs.check(
            programs.run(
                tmp_path,
                f"""
                import tritune.cpu.{module} as first
                import triton, sys
                assert first is sys.modules["tritune.cpu.{module}"]
                used = triton.backends.backends["cpu"]
                assert getattr(used, "{module}") in vars(first).values()
                """,
            )
        )

    def test_importing_the_package_loads_nothing_heavy(self, tmp_path):
        program = """
            import sys, tritune.cpu
            print([name for name in ("triton", "torch", "llvmlite") if name in sys.modules])
        """
        assert programs.check(programs.run(tmp_path, program)).strip() == "[]"

    def test_enable_works_where_triton_was_told_to_ignore_plug_ins(self, tmp_path):
        program = """
            import torch, triton, tritune.cpu
            from tests.cpu.test_backend import add, inputs
            assert "cpu" not in triton.backends.backends
            tritune.cpu.enable()
            x, y, out = inputs()
            add[(4,)](x, y, out, 1000, BLOCK=256)
            assert torch.equal(out, x + y)
        """
        programs.check(programs.run(tmp_path, program, TRITON_BACKENDS_IN_TREE="1"))

    def test_the_cpu_steps_back_for_any_other_active_driver(self, monkeypatch):
        class OtherDriver:
            @staticmethod
            def is_active():
                return True

        assert CPUDriver.is_active()
        monkeypatch.setitem(backends, "other", Backend(None, OtherDriver))
        assert not CPUDriver.is_active()
        monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "cpu")
        assert CPUDriver.is_active()

    def test_enable_and_disable_nest(self, monkeypatch):
        config = triton.runtime.driver
        before = object()
        monkeypatch.setattr(config, "_active", before)
        tritune.cpu.enable()
        ours = config.active
        assert isinstance(ours, CPUDriver)
        tritune.cpu.enable()
        assert config.active is ours
        tritune.cpu.disable()
        assert config.active is ours
        tritune.cpu.disable()
        assert config.active is before
        tritune.cpu.disable()
        assert config.active is before

    def test_enable_says_why_it_cannot(self, monkeypatch):
        monkeypatch.setattr(driver, "unavailable_reason", lambda: "the sky fell")
        with pytest.raises(LaunchError, match="the sky fell"):
            tritune.cpu.enable()


class TestOptions:
    def test_options_of_the_gpus_are_accepted_and_change_nothing(self):
        x, y, out = inputs()
        kernel = add[(4,)](
            x, y, out, 1000, BLOCK=256, num_warps=8, num_stages=5, num_ctas=2, maxnreg=64,
            waves_per_eu=2, kpack=2, matrix_instr_nonkdim=16,
        )  # fmt: skip
        assert torch.equal(out, x + y)
        assert kernel.metadata.num_warps == 8
        assert kernel.metadata.warp_size == 1

    def test_configs_that_differ_for_a_gpu_only_are_compiled_once(self):
        x, y, out = inputs()
        add[(8,)](x, y, out, 1000, BLOCK=128, num_warps=1)
        before = codegen.assembly.cache_info().misses
        for warps in (2, 4, 16):
            kernel = add[(8,)](x, y, out, 1000, BLOCK=128, num_warps=warps)
            assert kernel.metadata.num_warps == warps
        assert codegen.assembly.cache_info().misses == before

    @pytest.mark.parametrize("enabled", [True, False])
    @pytest.mark.parametrize("fails", [True, False])
    def test_the_garbage_collector_pauses_while_a_kernel_is_lowered(
        self, monkeypatch, enabled, fails
    ):
        from tritune.cpu import lower  # not above: others import this module without it

        lower_module, seen = lower.lower, []

        def watched(*arguments):
            seen.append(gc.isenabled())
            if fails:
                raise CompileError("tt.load", "not today")
            return lower_module(*arguments)

        monkeypatch.setattr(lower, "lower", watched)
        monkeypatch.setattr(compiler, "_lowered", compiler._lowered.__wrapped__)
        before = gc.isenabled()
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(CompileError) if fails else contextlib.nullcontext():
                compiled("x86-64-v3", micro_m=1 + 2 * enabled + fails)
            after = gc.isenabled()
        finally:
            (gc.enable if before else gc.disable)()
        assert (seen, after) == ([False], enabled)

    def test_an_option_that_nobody_knows_is_refused(self):
        x, y, out = inputs()
        with pytest.raises(KeyError, match="warp_num"):
            add[(4,)](x, y, out, 1000, BLOCK=256, warp_num=4)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("micro_m", -1),
            ("micro_n", 1000),
            ("unroll", "4"),
            ("vector_bits", 200),
            ("unroll", 2.0),
            ("prefetch_bytes", 1 << 20),
        ],
    )
    def test_a_bad_value_of_an_own_option_is_explained(self, backend, name, value):
        with pytest.raises(ValueError, match=rf"{name}={value!r}: expected .*0"):
            backend.parse_options({name: value})

    @pytest.mark.parametrize("warps", [0, 3, 12, -4, 1.5])
    def test_a_number_of_warps_that_is_no_power_of_two_is_refused_as_triton_does(
        self, backend, warps
    ):
        with pytest.raises(AssertionError, match="num_warps must be a power of 2"):
            backend.parse_options({"num_warps": warps})

    def test_own_options_reach_the_compilation(self, backend):
        own = {"micro_m": 6, "micro_n": 2, "unroll": 4, "vector_bits": 128, "prefetch_bytes": 4096}
        code = backend.parse_options(own).code()
        assert {name: getattr(code, name) for name in own} == own

    def test_options_survive_what_triton_does_with_them(self, backend):
        first = backend.parse_options({"num_warps": 2, "unroll": 4, "kernel_argument": 7})
        again = backend.parse_options(first.__dict__)
        assert again.hash() == first.hash()
        assert backend.parse_options({"unroll": 2}).hash() != first.hash()
        with pytest.raises(AttributeError):
            first.num_warps = 4

    def test_fp_fusion_is_as_asked_for_and_otherwise_tritons_default(self, backend):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            default = backend.parse_options({}).enable_fp_fusion
        assert default == triton.knobs.language.default_fp_fusion
        assert backend.parse_options({"enable_fp_fusion": False}).enable_fp_fusion is False


class TestTargets:
    @pytest.mark.parametrize(
        ("arch", "vector_bits"),
        [("x86-64", 128), ("x86-64-v2", 128), ("x86-64-v3", 256), ("x86-64-v4", 512)],
    )
    def test_every_level_of_x86_can_be_compiled_for(self, arch, vector_bits):
        assert features.resolve(arch).vector_bits == vector_bits
        kernel = compiled(arch)
        assert 'target triple = "x86_64' in kernel.asm["llir"]
        assert ("zmm" in kernel.asm["asm"]) <= (vector_bits == 512)
        assert ("ymm" in kernel.asm["asm"]) <= (vector_bits >= 256)

    def test_another_instruction_set_can_be_compiled_for_but_not_run(self):
        other = "x86-64" if features.host().arch == "aarch64" else "aarch64"
        kernel = compiled(other)
        assert len(kernel.asm["obj"]) > 100
        with pytest.raises(LaunchError, match=f"this machine is {features.host().arch}"):
            kernel[(1, 1, 1)](*inputs(), 64)

    def test_an_unknown_architecture_is_refused_with_the_known_ones(self):
        with pytest.raises(ValueError, match=r"'pdp-11'.*x86-64-v3.*aarch64"):
            compiled("pdp-11")

    def test_the_cache_key_tells_cpus_apart(self, backend, monkeypatch):
        hashes = {
            make_backend(GPUTarget("cpu", arch, 1)).hash() for arch in ("x86-64", "x86-64-v3")
        }
        assert len(hashes) == 2
        mine = backend.hash()
        # The same model with one feature switched off, as in a virtual machine.
        lesser = features.Cpu("x86_64-unknown-linux-gnu", features.host().name, "-avx", 128)
        monkeypatch.setattr(features, "resolve", lambda arch: lesser)
        assert backend.hash() != mine

    def test_the_host_is_known_by_the_name_the_driver_gives(self):
        target = triton.runtime.driver.active.get_current_target()
        assert features.resolve(target.arch) == features.host()


class TestTools:
    def test_the_stages_can_be_read(self):
        x, y, out = inputs()
        kernel = add[(4,)](x, y, out, 1000, BLOCK=256)
        assert "tt.func public @add" in kernel.asm["ttir"]
        assert "define" in kernel.asm["llir"]
        assert "tritune_launch:" in kernel.asm["asm"]
        assert isinstance(kernel.asm["obj"], bytes)

    def test_dumps_hold_every_stage(self, tmp_path):
        program = """
            from tests.cpu.test_backend import add, inputs
            add[(4,)](*inputs(), 1000, BLOCK=256)
        """
        dump = tmp_path / "dump"
        programs.check(
            programs.run(
                tmp_path,
                program,
                TRITON_KERNEL_DUMP="1",
                TRITON_DUMP_DIR=str(dump),
                TRITON_CACHE_DIR=str(tmp_path / "cache"),
            )
        )
        assert {path.suffix for path in dump.rglob("add.*")} >= {".ttir", ".llir", ".asm", ".obj"}

    def test_warmup_compiles_without_running(self):
        kernel = add.warmup(torch.float32, torch.float32, torch.float32, 1000, BLOCK=512, grid=(2,))
        x, y, out = inputs()
        kernel[(2, 1, 1)](x, y, out, 1000, 512)
        assert torch.equal(out, x + y)

    def test_do_bench_measures_milliseconds(self):
        x, y, out = inputs()
        times = triton.testing.do_bench(
            lambda: add[(4,)](x, y, out, 1000, BLOCK=256), warmup=1, rep=10, return_mode="all"
        )
        assert times
        assert all(0 < t < 1000 for t in times)

    def test_autotune_picks_a_config(self):
        configs = [triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 256) for w in (4, 8)]
        configs.append(triton.Config({"BLOCK": 128, "unroll": 2, "micro_m": 4}))
        tuned = triton.autotune(configs, key=["n"], do_bench=_quick_bench)(add)
        x, y, out = inputs()
        tuned[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, out, 1000)
        assert torch.equal(out, x + y)
        assert tuned.best_config in configs

    def test_heuristics_see_the_arguments(self):
        kernel = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(add)
        x, y, out = inputs(100)
        kernel[(1,)](x, y, out, 100)
        assert torch.equal(out, x + y)

    def test_programs_can_size_a_launch_by_the_device(self):
        x, y, out = inputs()
        kernel = add.warmup(x, y, out, 1000, BLOCK=256, grid=(4,))
        kernel._init_handles()
        properties = triton.runtime.driver.active.utils.get_device_properties(None)
        registers = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"])
        memory = properties["max_shared_mem"] // kernel.metadata.shared
        assert min(registers, memory) >= 1
        assert properties["multiprocessor_count"] == torch.get_num_threads()


def _quick_bench(call, quantiles):
    return triton.testing.do_bench(call, warmup=1, rep=2, quantiles=quantiles)
