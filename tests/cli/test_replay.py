"""`tritune replay` compares strategies on recorded spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tritune.cli.main import main
from tritune.space import Config
from tritune.store.formats import t4
from tritune.store.formats.recorded import Recorded
from tritune.tuning.search import DEFAULT_STRATEGY

SIZES, TILES = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8)


def recorded(device: str, best: int, path: Path, names: tuple[str, str] = ("size", "tile")) -> Path:
    """A space whose best config is known, and in which the largest sizes fail."""
    results = {
        Config.of(**dict(zip(names, (size, tile), strict=True))): None
        if size == 16
        else 1.0 + abs(size - 4) + abs(tile - best)
        for size in SIZES
        for tile in TILES
    }
    parameters = dict(zip(names, (SIZES, TILES), strict=True))
    file = path / f"double_{device}.t4.json"
    t4.write(Recorded(device, device, "double", parameters, results), file)
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return recorded("here", 3, tmp_path)


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["replay", *arguments, "--seeds", "2", "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_json_has_the_fraction_of_every_strategy_and_space(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = replayed(capsys, str(file), "--strategy", "random", "--strategy", "exhaustive")
    assert document["default"] == DEFAULT_STRATEGY
    strategies = document["strategies"]
    assert isinstance(strategies, dict) and list(strategies) == ["random", "exhaustive"]
    for found in strategies.values():
        assert list(found["fraction_of_optimum"]) == ["25", "50", "100", "200"]
        # There are 40 configs, so that 50 trials have seen the best.
        assert found["fraction_of_optimum"]["50"] == 1.0
        assert list(found["spaces"]) == [str(file)]


def test_knowledge_of_another_device_is_proposed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = recorded("here", 3, tmp_path), recorded("there", 3, tmp_path)
    # With the same times it would be the same space, which is no knowledge of another.
    there.write_text(there.read_text().replace("1.0,", "1.01,"))
    cold = replayed(capsys, str(here), "--strategy", "random")
    # Several files after one option; the first is the space itself, which is left out.
    warm = replayed(capsys, str(here), "--strategy", "random", "--warm", str(here), str(there))
    reached = [d["strategies"]["random"]["fraction_of_optimum"]["25"] for d in (cold, warm)]  # type: ignore[index]
    assert reached[1] == 1.0 >= reached[0]


def test_the_table_names_strategies_and_spaces(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(file), "--strategy", "random", "--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "random" in shown and file.name in shown and "mean over 1 seeds" in shown


def test_a_prior_with_other_parameters_is_no_help_and_says_so(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    other = recorded("there", 3, tmp_path / "other", names=("width", "tile"))
    arguments = [str(file), "--strategy", "random", "--seeds", "1", "--warm", str(other)]
    assert main(["replay", *arguments]) == 0
    assert "no file of --warm has the parameters of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--strategy", "lucky"], "strategy 'lucky', allowed: "),
        (["--strategy", "randm"], "strategy 'randm' (did you mean random?)"),
        (["--seeds", "0"], "seeds"),
        (["nowhere.t4.json"], "nowhere.t4.json"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(
    arguments: list[str], reason: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(file), *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error and len(error.strip().splitlines()) == 1
