"""What becomes of a tiny model with `attn_implementation="tritune"`, against eager."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AttentionInterface

import tritune
from tests.integrations.tiny import build
from tritune.integrations import IntegrationError
from tritune.integrations.transformers import NAME

TOKENS = 24
PADDED = 7
#: Differences are measured in parts of the largest number.
TOLERANCE = 2e-3


class NotBuilt(Exception):
    """There is no tiny model, or it does not run with eager."""


@contextmanager
def counted() -> Iterator[list[str]]:
    """The calls of tritune's attention."""
    calls: list[str] = []
    original = AttentionInterface._global_mapping[NAME]

    def counting(module: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(module).__name__)
        return original(module, *args, **kwargs)

    AttentionInterface.register(NAME, counting)
    try:
        yield calls
    finally:
        AttentionInterface.register(NAME, original)


Inputs = dict[str, Any]
Numbers = dict[str, torch.Tensor]


def candidates(model: Any) -> Iterator[Inputs]:
    """Inputs that the model may take, the likeliest first."""
    names = set(inspect.signature(model.forward).parameters)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    ids = torch.randint(3, 99, (2, TOKENS), generator=generator)
    text: Inputs = {"input_ids": ids} if "input_ids" in names else {}
    config = model.config
    if text and "decoder_input_ids" in names:
        text["decoder_input_ids"] = ids[:, :13].flip(1)
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 64) or 64
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = channels_of(vision)
    if "grid_thw" in names:
        patch = getattr(vision, "patch_size", 14)
        numbers = channels_of(vision) * getattr(vision, "temporal_patch_size", 1) * patch**2
        first = "pixel_values" if "pixel_values" in names else "hidden_states"
        grid = torch.tensor([[1, 4, 8], [1, 4, 4]])
        yield {first: random(48, numbers), "grid_thw": grid}
    if text:
        yield text
        yield {**text, "attention_mask": torch.ones_like(ids)}
        ends = ids.clone()
        ends[:, -1] = getattr(config, "eos_token_id", None) or 2
        yield {**text, "input_ids": ends}
    if "pixel_values" in names:
        for image in (
            random(2, channels, height, width),
            random(2, channels, 64, 64),
            random(2, channels, 224, 224),
            random(2, getattr(vision, "num_frames", 4), channels, height, width),
        ):
            yield {**text, "pixel_values": image}
            yield {"pixel_values": image}
    mels = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or 80
    decoder = {"decoder_input_ids": ids[:, :13]} if "decoder_input_ids" in names else {}
    if "input_features" in names:
        frames = 2 * getattr(config, "max_source_positions", 64)
        for features in (random(2, mels, frames), random(2, 96, mels), random(2, mels, 96)):
            yield {"input_features": features, **decoder}
    if "input_values" in names:
        length = getattr(config, "max_length", 64) or 64
        for values in (
            random(2, 8000), random(2, 1, 8000), random(2, 64, mels), random(2, length, mels),
        ):  # fmt: skip
            yield {"input_values": values, **decoder}
    if "inputs_embeds" in names:
        width = getattr(config, "hidden_size", None) or getattr(config, "d_model", 64)
        yield {"inputs_embeds": random(2, TOKENS, width)}
    if "hidden_states" in names:
        yield {"hidden_states": random(2, TOKENS, getattr(config, "hidden_size", 64))}


def channels_of(config: Any) -> int:
    return getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3


def variants(model: Any, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """The same inputs, plain and padded."""
    yield "plain", inputs
    names = inspect.signature(model.forward).parameters
    if "attention_mask" not in names:
        return
    main = next((inputs[n] for n in ("input_ids", "inputs_embeds") if n in inputs), None)
    if main is None and "input_values" in inputs and inputs["input_values"].dim() == 2:
        main = inputs["input_values"]
    if main is None:
        return
    length = main.shape[1]
    hidden = max(PADDED, length // 4)
    for side in ("left", "right"):
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, slice(0, hidden) if side == "left" else slice(-hidden, None)] = 0
        padded = {**inputs, "attention_mask": mask}
        if "input_ids" in inputs:
            fill = getattr(model.config, "pad_token_id", None) or 0
            padded["input_ids"] = main.masked_fill(mask == 0, fill)
        yield f"padded {side}", padded


def run(model: Any, inputs: Inputs) -> Numbers:
    """All numbers that a forward returns, by their names."""
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**copy.deepcopy(inputs))
    found: Numbers = {}
    items = output.items() if hasattr(output, "items") else enumerate(_sequence(output))
    for name, value in items:
        for at, tensor in enumerate(_sequence(value)):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                found[f"{name} {at}"] = tensor.float()
    return found


def _sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def step(model: Any, inputs: Inputs) -> Numbers:
    """A prompt with a cache, and the token after it."""
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    with torch.no_grad():
        first = model(
            input_ids=ids[:, :-1],
            attention_mask=None if mask is None else mask[:, :-1],
            use_cache=True,
        )
        last = model(
            input_ids=ids[:, -1:],
            attention_mask=mask,
            past_key_values=first.past_key_values,
            use_cache=True,
        )
    return {"last": last[0]}


def difference(ours: Numbers, theirs: Numbers, inputs: Inputs) -> float:
    """The largest difference, in parts of the largest number, where there are real tokens."""
    mask = inputs.get("attention_mask")
    worst = 0.0
    if ours.keys() != theirs.keys():
        return float("inf")
    for name, expected in theirs.items():
        out = ours[name]
        if out.shape != expected.shape:
            return float("inf")
        if mask is not None and expected.shape[:2] == mask.shape:
            out, expected = out[mask.bool()], expected[mask.bool()]
        elif mask is not None and not bool(mask[:, 0].all()):
            # What pools a sequence may take its first place, where there is padding.
            continue
        if not expected.numel():
            continue
        same = out == expected
        gap = torch.where(same, 0.0, (out - expected).abs())
        finite = expected[expected.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 1.0
        worst = max(worst, float(gap.nan_to_num(nan=float("inf")).max()) / max(largest, 1e-6))
    return worst


@dataclass(frozen=True)
class Outcome:
    """served, refused, left or wrong; and which runs were compared, the sentence, or the fault."""

    kind: str
    detail: str = ""


@dataclass(frozen=True)
class Run:
    """One way to call a model, and what eager returns."""

    what: str
    inputs: Inputs
    call: Callable[[Any, Inputs], Numbers]
    expected: Numbers


def outcome(name: str, model_type: str) -> Outcome:
    """Build a model, run it with eager, and the same with tritune."""
    try:
        model = build(name, model_type)
    except Exception as error:
        raise NotBuilt(_line(error)) from None
    runs = _runs(model)
    done = ", ".join(each.what for each in runs)
    # A config that somebody writes into asks nobody.
    by_hand = copy.deepcopy(model)
    for part in by_hand.modules():
        if hasattr(part, "config") and hasattr(part.config, "_attn_implementation"):
            part.config._attn_implementation = NAME
    try:
        ours = build(name, model_type, NAME, like=model)
    except IntegrationError as error:
        fault = _fault(by_hand, runs) or _fault_enabled(model, runs)
        return Outcome("wrong", fault) if fault else Outcome("refused", str(error))
    except Exception as error:
        return Outcome("wrong", f"not built: {_line(error)}")
    with counted() as calls:
        fault = _fault(ours, runs)
    if fault and _as_sdpa(name, model_type, model, ours, runs):
        return Outcome("served", "as sdpa, which differs from eager")
    fault = fault or _fault(by_hand, runs) or _fault_enabled(model, runs)
    return Outcome("wrong", fault) if fault else Outcome("served" if calls else "left", done)


def _runs(model: Any) -> list[Run]:
    inputs, expected = _first_that_runs(model)
    runs = [Run("plain", inputs, run, expected)]
    for what, changed in list(variants(model, inputs))[1:]:
        with contextlib.suppress(Exception):
            runs.append(Run(what, changed, run, run(model, changed)))
    if "input_ids" in inputs and "decoder_input_ids" not in inputs:
        for each in [each for each in runs if each.what != "padded right"]:
            with contextlib.suppress(Exception):
                what = f"{each.what}, cached"
                runs.append(Run(what, each.inputs, step, step(model, each.inputs)))
    return runs


def _fault(model: Any, runs: list[Run]) -> str:
    """What is wrong with a model, or nothing."""
    for each in runs:
        try:
            gap = _gap(model, each)
        except IntegrationError:
            continue
        except Exception as error:
            return f"{each.what}: {_line(error)}"
        if gap > TOLERANCE:
            return f"{each.what}: differs by {gap:.2g}"
    return ""


def _gap(model: Any, each: Run) -> float:
    got = each.call(model, each.inputs)
    return difference(got, each.expected, {} if each.call is step else each.inputs)


def _fault_enabled(model: Any, runs: list[Run]) -> str:
    with tritune.enable(model):
        fault = _fault(model, runs)
    return fault and f"enabled, {fault}"


def _as_sdpa(name: str, model_type: str, eager: Any, ours: Any, runs: list[Run]) -> bool:
    """Whether transformers' default gives what tritune does: what eager makes of it is its own."""
    try:
        default = build(name, model_type, "sdpa", like=eager)
        theirs = [replace(each, expected=each.call(default, each.inputs)) for each in runs]
    except Exception:
        return False
    return not _fault(ours, theirs)


def _first_that_runs(model: Any) -> tuple[Inputs, Numbers]:
    reasons = []
    for inputs in candidates(model):
        try:
            expected = run(model, inputs)
        except Exception as error:
            reasons.append(_line(error))
            continue
        if not expected:
            reasons.append("returns no numbers")
        elif not all(tensor.isfinite().any() for tensor in expected.values() if tensor.numel()):
            reasons.append("eager gives no finite numbers")
        else:
            return inputs, expected
    raise NotBuilt(f"does not run: {reasons[0] if reasons else 'no known input'}")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
