"""A learned policy as a Python function that people can read, review and paste elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from tritune.errors import TrituneError
from tritune.policy.features import is_size
from tritune.policy.learned import LearnedPolicy
from tritune.policy.tree import Leaf, Node, Split, Tree
from tritune.space import Config


def export_python(policy: LearnedPolicy) -> str:
    """The source of a module with one function, `choose(problem)`, and the configs it returns.

    `problem` is a mapping with the fields of the kernel's problem; the result is a mapping of
    keyword arguments, or None for a kind of problem that the policy has learned nothing about.
    """
    if not isinstance(policy.chooser, Tree):
        raise TrituneError(
            f"{policy.kernel} has no tree on this device: it was tuned for {policy.problems} "
            "problem(s), and the nearest of them answers; tune it for more, then export again"
        )
    tree = policy.chooser
    lines = [f'"""{line}' if i == 0 else line for i, line in enumerate(_facts(policy))]
    lines += ['"""', ""]
    used = sorted(set(_first_choices(tree.root)))
    lines += [f"C{i} = {_literal(tree.configs[i])}" for i in used]
    lines += ["", "", "def choose(problem):"]
    for name, values in tree.kinds.items():
        lines += [f"    if problem[{name!r}] not in {values!r}:", "        return None"]
    lines += _body(tree.root, 1)
    return "\n".join(lines) + "\n"


def _facts(policy: LearnedPolicy) -> list[str]:
    lines = [f"Configs of {policy.kernel}, learned from {policy.problems} problems.", ""]
    lines += policy.describe()
    lines.append("The function has an answer for any problem; calls ask for evidence beside it.")
    lines.append(f"Kernel {policy.identity}, device {policy.device}, data {policy.data}.")
    return lines


def _first_choices(node: Node) -> Iterator[int]:
    if isinstance(node, Leaf):
        yield node.ranking[0]
    else:
        yield from _first_choices(node.yes)
        yield from _first_choices(node.no)


def _literal(config: Config) -> str:
    return f"dict({', '.join(f'{name}={value!r}' for name, value in config.to_json().items())})"


def _body(node: Node, depth: int) -> list[str]:
    indent = "    " * depth
    if isinstance(node, Leaf):
        return [f"{indent}return C{node.ranking[0]}"]
    return [f"{indent}if {_condition(node)}:", *_body(node.yes, depth + 1), *_body(node.no, depth)]


def _condition(split: Split) -> str:
    field = f"problem[{split.field!r}]"
    if is_size(split.value):
        return f"{field} <= {split.value!r}"
    if isinstance(split.value, bool):
        return field if split.value else f"not {field}"
    return f"{field} == {split.value!r}"
