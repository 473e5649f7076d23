"""Decision trees: which config for a problem, by a few questions about its fields.

Learned with scikit-learn, kept and asked as plain data: answering imports nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tritune.policy.features import Fields, Question, is_size, questions
from tritune.policy.portfolio import Portfolio
from tritune.space import Config, Value

#: As many problems as this speak for all the others when a leaf makes its choice.
SAY_OF_THE_REST = 2


@dataclass(frozen=True)
class Leaf:
    """The end of a path: places of configs in the tree's list, the best first."""

    ranking: tuple[int, ...]


@dataclass(frozen=True)
class Split:
    """A question: is the field at most this number, or, for other facts, is it this value?"""

    field: str
    value: Value
    yes: Node
    no: Node

    def holds(self, fields: Fields) -> bool:
        given = fields[self.field]
        if is_size(self.value):
            return given <= self.value  # type: ignore[operator]
        return given == self.value


Node: TypeAlias = "Split | Leaf"


@dataclass(frozen=True)
class Tree:
    configs: tuple[Config, ...]
    root: Node
    #: The dtypes and flags that the tree has learned from; of others it knows nothing.
    kinds: Mapping[str, tuple[Value, ...]]

    def ranked(self, fields: Fields) -> list[Config]:
        """The configs for a problem, the best first; none if it is of a kind never seen."""
        for name, values in self.kinds.items():
            if fields.get(name) not in values:
                return []
        node = self.root
        while isinstance(node, Split):
            node = node.yes if node.holds(fields) else node.no
        return [self.configs[i] for i in node.ranking]

    def to_json(self) -> dict[str, Any]:
        return {
            "configs": [config.to_json() for config in self.configs],
            "kinds": {name: list(values) for name, values in self.kinds.items()},
            "tree": _to_json(self.root),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tree:
        return Tree(
            tuple(Config.from_json(each) for each in data["configs"]),
            _from_json(data["tree"], len(data["configs"])),
            {name: tuple(values) for name, values in data["kinds"].items()},
        )


def learn(problems: Sequence[Fields], portfolio: Portfolio, fewest: int) -> Tree:
    """A tree whose leaves hold at least `fewest` problems each.

    It predicts what every config of the set costs; problems end up together that lose alike, and a
    leaf answers with the config that loses least there. So a mistake weighs what it costs.
    """
    from sklearn.tree import DecisionTreeRegressor

    asked = questions(problems)
    kinds = {
        name: tuple(sorted({p[name] for p in problems}, key=repr))
        for name, value in sorted(problems[0].items())
        if not is_size(value)
    }
    rows = [[question.about(problem) for question in asked] or [0.0] for problem in problems]
    model = DecisionTreeRegressor(min_samples_leaf=fewest, random_state=0)
    model.fit(rows, portfolio.costs)
    return Tree(portfolio.configs, _simplified(_convert(model.tree_, 0, asked)), kinds)


def _convert(model: Any, at: int, asked: Sequence[Question], above: Any = None) -> Node:
    costs = model.value[at].ravel()
    if above is not None:
        # A leaf of one or two problems trusts its noise too much: those above it have a say.
        weight = int(model.n_node_samples[at])
        costs = (weight * costs + SAY_OF_THE_REST * above) / (weight + SAY_OF_THE_REST)
    if model.children_left[at] < 0:
        return Leaf(tuple(int(i) for i in costs.argsort(kind="stable")))
    question = asked[model.feature[at]]
    low = _convert(model, model.children_left[at], asked, costs)
    high = _convert(model, model.children_right[at], asked, costs)
    if question.value is None:
        # In the field's own unit; sizes are whole numbers.
        return Split(question.field, math.floor(2 ** float(model.threshold[at]) + 1e-9), low, high)
    return Split(question.field, question.value, yes=high, no=low)


def _simplified(node: Node) -> Node:
    """Without questions whose answer does not matter for the first choice."""
    if isinstance(node, Leaf):
        return node
    yes, no = _simplified(node.yes), _simplified(node.no)
    if isinstance(yes, Leaf) and isinstance(no, Leaf) and yes.ranking[0] == no.ranking[0]:
        return yes
    return Split(node.field, node.value, yes, no)


def _to_json(node: Node) -> Any:
    if isinstance(node, Leaf):
        return list(node.ranking)
    return {
        "field": node.field,
        "at_most" if is_size(node.value) else "is": node.value,
        "yes": _to_json(node.yes),
        "no": _to_json(node.no),
    }


def _from_json(data: Any, configs: int) -> Node:
    if isinstance(data, list):
        if not data or not all(isinstance(i, int) and 0 <= i < configs for i in data):
            raise ValueError(f"a leaf names configs that are not there: {data}")
        return Leaf(tuple(data))
    value = data["at_most"] if "at_most" in data else data["is"]
    return Split(
        data["field"], value, _from_json(data["yes"], configs), _from_json(data["no"], configs)
    )
