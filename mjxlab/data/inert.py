"""Serialised Python objects read as plain data: nothing in the file is ever called or imported.

Some public data comes only in Python's object format, which is a little program that may call anything. ``read``
interprets that program with a stack machine that has no way to call: what would be a call becomes a ``Node`` that says
which function was to be called with what. ``array`` and ``columns`` then recognise NumPy arrays and pandas frames among
the nodes and decode their bytes themselves.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any, BinaryIO

import numpy as np

from mjxlab.errors import AssetError


class Node:
    """What would have been an object.

    Attributes:
      function: the class or function that was to be called, ``"module.name"``; ``"persistent"`` for an object that the
        file only refers to.
      args: its arguments.
      state: what was to become its attributes, or None.
      items: what was put into it as into a dict.
      elements: what was appended to it as to a list.
    """

    def __init__(self, function: str, args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args
        self.state: Any = None
        self.items: dict[Any, Any] = {}
        self.elements: list[Any] = []

    def __repr__(self) -> str:
        return f"Node({self.function!r}, {len(self.args)} arguments)"


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES
SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8""".split()
_EMPTY: dict[str, Any] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read(source: bytes | BinaryIO) -> Any:
    """The first object of a file: numbers, strings, bytes, lists, tuples, dicts and ``Node``.

    Args:
      source: the bytes, or an open binary file, which is left behind the object.

    Raises:
      AssetError: it is no such file, or is cut short.
    """
    stream = io.BytesIO(source) if isinstance(source, bytes | bytearray) else source
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(stream):
            machine.do(operation.name, argument)
    except AssetError:
        raise
    except Exception as error:  # the tokeniser and the machine raise whatever a broken file makes them stumble over
        raise AssetError(f"serialised object cannot be read: {type(error).__name__}: {error}") from error
    if len(machine.stack) != 1:
        raise AssetError("serialised object cannot be read: it does not end where it should")
    return machine.stack[0]


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        at = max(i for i, x in enumerate(self.stack) if x is _MARK)
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME", "STOP"):
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self.since_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in _TUPLES:
            size = _TUPLES[name]
            stack[-size:] = [tuple(stack[-size:])]
        elif name in ("TUPLE", "LIST", "FROZENSET"):
            stack.append({"TUPLE": tuple, "LIST": list, "FROZENSET": frozenset}[name](self.since_mark()))
        elif name == "DICT":
            stack.append(_pairs(self.since_mark()))
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(argument)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[int(argument)])
        else:
            self.fill(name, argument)

    def fill(self, name: str, argument: Any) -> None:
        """Operations that put things into things, or would call."""
        stack = self.stack
        if name in ("APPEND", "APPENDS", "ADDITEMS"):
            new = [stack.pop()] if name == "APPEND" else self.since_mark()
            into = stack[-1].elements if isinstance(stack[-1], Node) else stack[-1]
            into.update(new) if isinstance(into, set) else into.extend(new)
        elif name in ("SETITEM", "SETITEMS"):
            new = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self.since_mark()
            into = stack[-1].items if isinstance(stack[-1], Node) else stack[-1]
            into.update(_pairs(new))
        elif name == "GLOBAL":
            stack.append(Node(argument.replace(" ", ".", 1), ()))
        elif name == "STACK_GLOBAL":
            function = stack.pop()
            stack.append(Node(f"{stack.pop()}.{function}", ()))
        elif name in ("REDUCE", "NEWOBJ"):
            args = stack.pop()
            stack.append(Node(stack.pop().function, args))
        elif name == "NEWOBJ_EX":
            named, args = stack.pop(), stack.pop()
            made = Node(stack.pop().function, args)
            made.items.update(named)
            stack.append(made)
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].state = state
        elif name == "BINPERSID":
            stack.append(Node("persistent", (stack.pop(),)))
        elif name == "PERSID":
            stack.append(Node("persistent", (argument,)))
        else:
            raise AssetError(f"serialised object cannot be read: operation {name} is not supported")


def _pairs(flat: list[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def array(node: Any) -> np.ndarray:
    """A NumPy array among the nodes, decoded: numbers as such, Python objects as they are.

    Raises:
      AssetError: the node is no array, or one of a kind that is not known.
    """
    function = getattr(node, "function", type(node).__name__)
    if function.endswith("numeric._frombuffer"):
        data, kind, shape, order = node.args
        return _decode(data, _dtype(kind), shape, order)
    if function.endswith("multiarray._reconstruct") and isinstance(node.state, tuple):
        _, shape, kind, fortran, data = node.state
        if isinstance(data, list):  # an array of objects
            found = np.empty(len(data), object)
            found[:] = data
            return found.reshape(shape, order="F" if fortran else "C")
        return _decode(data, _dtype(kind), shape, "F" if fortran else "C")
    raise AssetError(f"expected an array, found {function}")


def _dtype(node: Any) -> np.dtype:
    if not (isinstance(node, Node) and node.function == "numpy.dtype" and isinstance(node.args[0], str)):
        raise AssetError(f"expected the type of an array, found {node!r}")
    code = node.args[0]
    order: Any = node.state[1] if isinstance(node.state, tuple) else "="
    if code[0] not in "biufcSU":
        raise AssetError(f"arrays of type {code!r} cannot be read")
    return np.dtype(code).newbyteorder("=" if order == "|" else order)


def _decode(data: Any, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    if not isinstance(data, bytes | bytearray):
        raise AssetError(f"the contents of an array are {type(data).__name__}; expected bytes")
    return np.frombuffer(bytes(data), dtype).reshape(shape, order=order)


def columns(frame: Any) -> dict[str, np.ndarray]:
    """The columns of a pandas frame among the nodes. Categories become their values.

    Raises:
      AssetError: the node is no frame, or has columns of a kind that is not known.
    """
    manager = frame.state.get("_mgr") if isinstance(getattr(frame, "state", None), dict) else None
    if not isinstance(manager, Node) or not manager.function.endswith("BlockManager"):
        raise AssetError(f"expected a table, found {frame!r}")
    blocks, axes = manager.args
    names = _index(axes[0])
    found: dict[str, np.ndarray] = {}
    for block in blocks:
        values, place, _ = block.args
        rows = _values(values)
        for i, at in enumerate(_places(place)):
            found[str(names[at])] = rows if rows.ndim == 1 else rows[i]
    return {str(name): found[str(name)] for name in names}


def _index(node: Node) -> np.ndarray:
    return array(node.args[1]["data"])


def _places(node: Any) -> list[int]:
    if isinstance(node, Node) and node.function == "builtins.slice":
        return list(range(*node.args))
    return [int(i) for i in array(node)]


def _values(node: Node) -> np.ndarray:
    if not node.function.endswith("Categorical") and not node.function.endswith("__pyx_unpickle_NDArrayBacked"):
        return array(node)
    state = node.state
    if isinstance(state, tuple):  # (dtype, codes, attributes) of older and (attributes,) of newer versions
        parts = [part for part in state if isinstance(part, Node)]
    else:
        parts = list(state.values())
    kind = next(p for p in parts if isinstance(p, Node) and p.function.endswith("CategoricalDtype"))
    codes = next(array(p) for p in parts if isinstance(p, Node) and not p.function.endswith("CategoricalDtype"))
    categories = _index(kind.state["categories"])
    return np.concatenate([categories, np.array([None], object)])[codes.reshape(-1)]
