"""Shows which generated code has changed: `make golden`.

`make golden UPDATE=1` writes the hashes anew. `make golden AGAINST=REVISION` compares with the code
of a revision in git and prints the differences; `ENTRY=rope` only looks at some entries.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import triton

from tests.golden import corpus, hashes, lowered

ROOT = Path(__file__).parents[2]


def compare(update: bool, names: str) -> int:
    """Print what changed since the hashes were stored, or store them; return the exit status."""
    from tests.golden import binaries
    from tritune.cpu.compiler import CODE_GENERATION

    entries = [entry for entry in corpus.read() if names in entry.name]
    if not entries:
        print(f"No kernel of the corpus has {names!r} in its name.")
        return 2
    version, before = hashes.read(hashes.LOWERED)
    now = lowered.all_summaries(entries)
    changed = hashes.changes({n: s for n, s in before.items() if names in n}, now)
    print(f"CPU: {len(entries)} kernels, {len(changed)} changes", *changed, sep="\n  ")
    raised = version != str(CODE_GENERATION)
    # New kernels and kernels that are gone from the corpus alter no code.
    altered = [line for line in changed if ": none -> " not in line and line[-8:] != " -> none"]
    other_passes = hashes.stored_passes() != hashes.passes_digest()
    if other_passes:
        # Whoever changed them knows whether they generate other code.
        print("  the source of Triton's passes, LLVM's options or the defaults of options changed")
    if update and altered and not raised:
        print("Not updated: raise CODE_GENERATION in src/tritune/cpu/compiler.py first.")
        return 1
    if update and names and raised:
        print("Not updated: CODE_GENERATION was raised, so all hashes change; leave out ENTRY.")
        return 1
    if update:
        hashes.write(hashes.LOWERED, str(CODE_GENERATION), now if not names else {**before, **now})
    gpu_changed = []
    if (update or binaries.pinned()) and not names:
        _, gpu_before = hashes.read(hashes.BINARIES)
        gpu_now = binaries.summaries()
        gpu_changed = hashes.changes(gpu_before, gpu_now)
        print(f"GPU: {len(gpu_now)} binaries, {len(gpu_changed)} changes", *gpu_changed, sep="\n  ")
        if update:
            hashes.write(hashes.BINARIES, triton.__version__, gpu_now)
    return int(not update and bool(changed or other_passes or gpu_changed))


def against(revision: str, names: str) -> int:
    """Print how this checkout's LLVM IR differs from a revision's; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        source = subprocess.run(
            ["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(source)) as archive:
            archive.extractall(place)
        lowerings = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.golden.lowered", str(place / what), names],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(path)},
            )
            for what, path in (("before", place / "src"), ("now", ROOT / "src"))
        ]
        statuses = [each.wait() for each in lowerings]
        if any(statuses):
            return 2
        unequal = 0
        paths = sorted(path.relative_to(place / "now") for path in place.glob("now/**/*.ll"))
        for path in paths:
            before, now = ((place / what / path).read_text() for what in ("before", "now"))
            if lowered.without_names(before) != lowered.without_names(now):
                unequal += 1
                lines = before.splitlines(True), now.splitlines(True)
                sys.stdout.writelines(difflib.unified_diff(*lines, f"{revision}/{path}", str(path)))
    print(f"{len(paths) - unequal} equal, {unequal} unequal")
    return int(unequal > 0) if paths else 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the hashes anew")
    parser.add_argument("--against", metavar="REVISION", help="a revision in git to compare with")
    parser.add_argument("--entry", default="", help="only entries whose names contain this")
    given = parser.parse_args()
    sys.exit(
        against(given.against, given.entry) if given.against else compare(given.update, given.entry)
    )
