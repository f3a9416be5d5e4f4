"""The branches of a cascade in an ONNX graph that was converted without any.

See `cascade_graph.Marks`: outputs of the graph say where branches are. What
only the result of a branch needs is moved into an `If`.

Eight bits are made of the graph without branches, while no sample leaves: the
ranges of later members are those of all calibration data then.
"""

import dataclasses
import re
from typing import Any

from cbnn_keras.export.cascade_graph import MARK
from cbnn_keras.support import extras

_ALL_STAY = "cascade_all_stay_"


@dataclasses.dataclass(frozen=True)
class _Branch:
    """The tensors of a branch, by the names that nodes gave them.

    Attributes:
        stays: The condition.
        otherwise: What it gives if that is false.
        results: What it gives if it is true.
        kinds: The types of both in ONNX.
    """

    stays: str
    otherwise: list[str]
    results: list[str]
    kinds: list[int]


def make_branches(model: Any) -> None:
    """Puts every marked branch into an `If`, and takes the marks away.

    Args:
        model: An `onnx.ModelProto`, which is changed.
    """
    graph = model.graph
    branches = _branches(graph)
    kept = [value for value in graph.output if not _is_mark(value.name)]
    del graph.output[:]
    graph.output.extend(kept)
    outputs = {value.name for value in kept}
    # From the innermost one on: others contain it.
    for number in sorted(branches, reverse=True):
        outer = [b for n, b in branches.items() if n < number]
        _make_branch(graph, branches[number], outputs, outer, number)
    if branches:
        _keep_nodes(graph, _needed(graph, outputs))


def let_all_stay(model: Any) -> None:
    """Sends every sample to every member, until `let_samples_leave`.

    Args:
        model: An `onnx.ModelProto` with its marks, which is changed.
    """
    onnx = extras.need("onnx", "onnx")
    graph = model.graph
    for number, branch in _branches(graph).items():
        rows = _rows(graph, branch)
        # True for whatever was compared.
        name = f"{_ALL_STAY}{number}"
        same = onnx.helper.make_node("Equal", [rows.input[0]] * 2, [name])
        rows.input[0] = name
        _place(graph, list(graph.node), same)


def let_samples_leave(model: Any) -> None:
    """Takes back what `let_all_stay` did, if it did anything.

    Args:
        model: An `onnx.ModelProto`, which is changed.
    """
    graph = model.graph
    decided = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.output[0].startswith(_ALL_STAY)
    }
    for node in graph.node:
        node.input[:] = [decided.get(name, name) for name in node.input]
    _keep_nodes(
        graph,
        {
            index
            for index, node in enumerate(graph.node)
            if node.output[0] not in decided
        },
    )


def _rows(graph: Any, branch: _Branch) -> Any:
    """The node that lists the samples which stay: there are any, or none."""
    makers = {name: node for node in graph.node for name in node.output}
    node = makers[branch.stays]
    while node.op_type != "NonZero":
        node = makers[node.input[0]]
    return node


def has_marks(model: Any) -> bool:
    """Whether branches are still to be made."""
    return any(_is_mark(value.name) for value in model.graph.output)


def _is_mark(name: str) -> bool:
    return name.startswith(MARK)


def _branches(graph: Any) -> dict[int, _Branch]:
    """The marked branches, by number."""
    same = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity"
    }

    def made(name: str) -> str:
        while name in same:
            name = same[name]
        return name

    marks: dict[int, dict[str, Any]] = {}
    for value in graph.output:
        found = re.fullmatch(rf"{MARK}(\d+)_(\w+)", value.name)
        if found:
            marks.setdefault(int(found[1]), {})[found[2]] = value
    return {
        number: _Branch(
            made(values["stays"].name),
            [made(values[f"otherwise_{i}"].name) for i in (0, 1)],
            [made(values[f"result_{i}"].name) for i in (0, 1)],
            [values[f"result_{i}"].type.tensor_type.elem_type for i in (0, 1)],
        )
        for number, values in marks.items()
    }


def _make_branch(
    graph: Any,
    branch: _Branch,
    outputs: set[str],
    outer: list[_Branch],
    number: int,
) -> None:
    """Moves what only the results need into an `If` that gives them."""
    onnx = extras.need("onnx", "onnx")
    wanted = {*outputs, branch.stays, *branch.otherwise}
    for other in outer:
        wanted |= {other.stays, *other.otherwise, *other.results}
    outside = _needed(graph, wanted, known=set(branch.results))
    inside = _needed(graph, set(branch.results)) - outside
    nodes = [node for i, node in enumerate(graph.node) if i in inside]
    read = {name for i in outside for name in _read(graph.node[i])}
    # Weights too: ONNX Runtime does not prepare those of an outer graph, and
    # convolutions would take 1.4 times as long.
    own = [
        tensor
        for tensor in graph.initializer
        if tensor.name not in read | outputs
        and any(tensor.name in _read(node) for node in nodes)
    ]
    names = {name: f"{name}_inside_{number}" for name in branch.results}
    for node in nodes:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
    helper = onnx.helper
    computed = helper.make_graph(
        nodes,
        f"branch_{number}",
        [],
        _values(onnx, list(names.values()), branch.kinds),
        own,
    )
    passed = [f"{name}_passed_{number}" for name in branch.results]
    identities = [
        helper.make_node("Identity", [source], [target])
        for source, target in zip(branch.otherwise, passed, strict=True)
    ]
    otherwise = helper.make_graph(
        identities,
        f"otherwise_{number}",
        [],
        _values(onnx, passed, branch.kinds),
    )
    choice = helper.make_node(
        "If",
        [branch.stays],
        branch.results,
        name=f"cascade_{number}",
        then_branch=computed,
        else_branch=otherwise,
    )
    taken = {tensor.name for tensor in own}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in taken:
            del graph.initializer[index]
    _place(graph, [graph.node[i] for i in sorted(outside)], choice)


def _place(graph: Any, nodes: list[Any], choice: Any) -> None:
    """Puts a node among others, before those that need it."""
    behind = set(choice.output)
    before, after = [], []
    for node in nodes:
        if behind.isdisjoint(_read(node)):
            before.append(node)
        else:
            behind.update(node.output)
            after.append(node)
    copies = [_copy(node) for node in (*before, choice, *after)]
    del graph.node[:]
    graph.node.extend(copies)


def _copy(node: Any) -> Any:
    copy = type(node)()
    copy.CopyFrom(node)
    return copy


def _keep_nodes(graph: Any, kept: set[int]) -> None:
    for index in reversed(range(len(graph.node))):
        if index not in kept:
            del graph.node[index]


def _needed(
    graph: Any, names: set[str], known: frozenset[str] | set[str] = frozenset()
) -> set[int]:
    """The nodes that tensors are computed by, but for those that are known."""
    makers = {
        name: index
        for index, node in enumerate(graph.node)
        for name in node.output
    }
    found: set[int] = set()
    waiting = list(names - known)
    while waiting:
        index = makers.get(waiting.pop())
        if index is not None and index not in found:
            found.add(index)
            waiting += _read(graph.node[index]) - known
    return found


def _read(node: Any) -> set[str]:
    """The tensors that a node reads, also in the bodies of branches."""
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                names |= _read(inner)
    return names


def _values(onnx: Any, names: list[str], kinds: list[int]) -> list[Any]:
    return [
        onnx.helper.make_tensor_value_info(name, kind, None)
        for name, kind in zip(names, kinds, strict=True)
    ]
