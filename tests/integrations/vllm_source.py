"""The sources of vLLM 0.32.0, from PyPI: its Python files, without what has to be compiled."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

VERSION = "0.32.0"
_SHA256 = "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad"
_SECONDS = 60


def vllm_source() -> Path:
    """The folder to put on the path; downloaded once. OSError where there is no network."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tritune-tests" / f"vllm-{VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as part:
            _unpack(_download(Path(part)), Path(part))
            try:
                os.replace(Path(part) / f"vllm-{VERSION}", folder)
            except OSError:
                if not folder.exists():  # else another process was faster
                    raise
    return folder


def _download(folder: Path) -> Path:
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page_url = f"{index}/vllm/"
    with urllib.request.urlopen(page_url, timeout=_SECONDS) as page:
        links = re.findall(r'href="([^"]+)"', page.read().decode())
    # Some indexes give places relative to the page.
    places = (urllib.parse.urljoin(page_url, link) for link in links)
    wanted = (place for place in places if f"/vllm-{VERSION}.tar.gz" in place)
    url = next(wanted, None)
    if url is None:
        raise FileNotFoundError(f"{index} has no sources of vLLM {VERSION}")
    path = folder / "vllm.tar.gz"
    with urllib.request.urlopen(url, timeout=_SECONDS) as source:
        content = source.read()
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise FileNotFoundError(f"{url} is not the file that PyPI has")
    path.write_bytes(content)
    return path


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and f"vllm-{VERSION}/vllm/" in member.name:
                files.extract(member, folder, filter="data")
