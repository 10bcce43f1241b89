"""One program per device: collectives that are identities outside the training loop, the mesh, and multi-host start.

The loop runs one program per device under ``jax.shard_map`` over the mesh axis ``"device"``. A learner reduces
through these functions, so that the same ``update`` works called plainly, under ``jit`` or ``vmap``, and in the loop.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mjxlab.errors import ConfigError, MjxlabError, WorkLostError

AXIS = "device"
SPLIT, REPLICATED = PartitionSpec(AXIS), PartitionSpec()
T = TypeVar("T")


def bound() -> bool:
    """Whether the ``"device"`` axis is bound where we are being traced."""
    try:
        lax.axis_index(AXIS)
    except NameError:
        return False
    return True


def pmean(tree: T) -> T:
    """Mean of every leaf over devices; the tree itself where no device axis is bound."""
    return lax.pmean(tree, AXIS) if bound() else tree


def psum(tree: T) -> T:
    """Sum of every leaf over devices; the tree itself where no device axis is bound."""
    return lax.psum(tree, AXIS) if bound() else tree


def all_gather(tree: T, axis: int = 0) -> T:
    """Every leaf's shares of all devices, in their order along ``axis``; the tree itself where no device axis is bound.

    Differentiable: what a device's share receives is the sum over devices of the gradients that theirs give it.
    """
    return lax.all_gather(tree, AXIS, axis=axis, tiled=True) if bound() else tree


def axis_size() -> int:
    """Number of devices that the program is split over (1 outside the loop)."""
    return lax.axis_size(AXIS) if bound() else 1


def axis_index() -> jax.Array:
    """int32 index of this device along the axis (0 outside the loop)."""
    return lax.axis_index(AXIS) if bound() else jnp.int32(0)


def fold_in(key: jax.Array) -> jax.Array:
    """A key of this device's own; the key itself where no device axis is bound."""
    return jax.random.fold_in(key, lax.axis_index(AXIS)) if bound() else key


def global_index(local: int) -> jax.Array:
    """int32[local]: the global indices of this device's share of an axis of ``local * axis_size()`` elements.

    Fold keys with these (one key per world), and results do not depend on the number of devices.
    """
    return axis_index() * local + jnp.arange(local, dtype=jnp.int32)


# --- start of a program on several processes -------------------------------------------------------------------------


def initialize() -> bool:
    """Join the other processes of this run, if there are any. Call it once, before anything else of JAX.

    Nothing to set on TPU pods, under SLURM (``srun``) and under Open MPI (``mpirun``): JAX knows them. Elsewhere set
    ``MJXLAB_COORDINATOR`` (``host:port`` of process 0), ``MJXLAB_PROCESSES`` and ``MJXLAB_PROCESS`` (this one's index).

    Returns:
      Whether there are several processes. With one process this does nothing.

    Raises:
      ConfigError: only some of the three variables are set, or one has a value that cannot work.
    """
    if jax.distributed.is_initialized():
        return jax.process_count() > 1
    names = ("MJXLAB_COORDINATOR", "MJXLAB_PROCESSES", "MJXLAB_PROCESS")
    coordinator, count, index = (os.environ.get(name) for name in names)
    if coordinator is not None or count is not None or index is not None:
        missing = [name for name in names if os.environ.get(name) is None]
        if missing:
            raise ConfigError(f"{missing[0]}: not set, expected all of {', '.join(names)} or none")
        numbers = [_whole(name) for name in names[1:]]
        if not 0 <= numbers[1] < numbers[0]:
            raise ConfigError(f"MJXLAB_PROCESS: got {numbers[1]}, expected at least 0 and below {numbers[0]}")
        if numbers[0] > 1:
            jax.distributed.initialize(coordinator, numbers[0], numbers[1])
    elif _launched_as_many():
        jax.distributed.initialize()
    return jax.process_count() > 1 if jax.distributed.is_initialized() else False


def _whole(name: str) -> int:
    text = os.environ[name]
    if not text.isdigit():
        raise ConfigError(f"{name}: got {text!r}, expected a whole number")
    return int(text)


def _launched_as_many() -> bool:
    """Whether a launcher that JAX knows has started several of us."""
    counts = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
    if any(os.environ.get(name, "1") not in ("", "1") for name in counts):
        return True
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    return "," in hosts or "MEGASCALE_COORDINATOR_ADDRESS" in os.environ


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def agree(values: Sequence[int]) -> np.ndarray:
    """int[processes, len(values)]: every process's values, the same array on all of them."""
    mine = np.asarray(values, np.int32)
    if jax.process_count() == 1:
        return mine[None]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(mine))


def on_main(action: Callable[[], T]) -> T | None:
    """Run ``action`` on process 0 only. If it raises an ``MjxlabError`` there, every process raises one."""
    value, error = None, None
    if is_main():
        try:
            value = action()
        except MjxlabError as problem:
            error = problem
    if jax.process_count() > 1 and agree([error is not None])[0, 0] and error is None:
        error = WorkLostError("process 0 could not go on; its own message says why")
    if error is not None:
        raise error
    return value


# --- the mesh, and where state lies on it ----------------------------------------------------------------------------


def make_mesh(devices: int | Sequence[Any] | None = None) -> Mesh:
    """A mesh with the one axis ``"device"``.

    Args:
      devices: all devices of all processes by default; a number takes the first so many; or a list of devices.
    """
    everything = jax.devices()
    if devices is None:
        chosen = everything
    elif isinstance(devices, int):
        if isinstance(devices, bool) or not 1 <= devices <= len(everything):
            raise ConfigError(f"devices: got {devices!r}, expected 1 to {len(everything)}, which is what JAX sees")
        chosen = everything[:devices]
    else:
        chosen = list(devices)
        if not chosen:
            raise ConfigError("devices: got an empty list, expected at least one device")
    if len({d.process_index for d in chosen}) != jax.process_count():
        raise ConfigError(f"devices: got {len(chosen)}, expected some of each of the {jax.process_count()} processes")
    return jax.make_mesh((len(chosen),), (AXIS,), devices=chosen, axis_types=(AxisType.Auto,))


def partition_specs(tree: Any) -> Any:
    """A PyTree of ``PartitionSpec`` for a state: split along axis 0 below a marked field, else replicated.

    A field is marked by ``flax.struct.field(metadata={"axis": "device"})``, at any depth of nested dataclasses, dicts,
    lists and tuples; the mark covers all that lies below it.
    """
    paths, structure = jax.tree.flatten_with_path(tree)
    return structure.unflatten([SPLIT if _marked(tree, path) else REPLICATED for path, _ in paths])


def _marked(node: Any, path: Sequence[Any]) -> bool:
    for step in path:
        if isinstance(step, jax.tree_util.GetAttrKey):
            if dataclasses.is_dataclass(node):
                field = {f.name: f for f in dataclasses.fields(node)}.get(step.name)
                if field is not None and field.metadata.get("axis") == AXIS:
                    return True
            node = getattr(node, step.name)
        elif isinstance(step, jax.tree_util.DictKey):
            node = node[step.key]
        elif isinstance(step, jax.tree_util.SequenceKey):
            node = node[step.idx]
        else:  # a node that does not name its children cannot mark them either
            return False
    return False


def check_divisible(tree: Any, specs: Any, devices: int, what: str = "state") -> None:
    """Raise ``ConfigError`` for the first split leaf whose axis 0 does not divide by the number of devices."""
    paths, _ = jax.tree.flatten_with_path(tree)
    for (path, leaf), spec in zip(paths, jax.tree.leaves(specs, is_leaf=_is_spec), strict=True):
        if AXIS not in spec:
            continue
        name = jax.tree_util.keystr(path, simple=True, separator=".") or what
        axis = spec.index(AXIS)
        if len(leaf.shape) <= axis:
            raise ConfigError(f"{name}: has shape {leaf.shape}, expected an axis that can be split over devices")
        if leaf.shape[axis] % devices:
            raise ConfigError(
                f"{name}: its axis has {leaf.shape[axis]} elements, expected a multiple of the {devices} devices "
                f"(choose another size, or pass devices=)"
            )


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def shardings(mesh: Mesh, specs: Any) -> Any:
    """A PyTree of ``NamedSharding`` from one of ``PartitionSpec``."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=_is_spec)


def is_key(x: Any) -> bool:
    """Whether x is an array of typed PRNG keys."""
    return isinstance(x, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def place(tree: Any, mesh: Mesh, specs: Any, *, fresh: bool = False) -> Any:
    """Put a whole (global) tree, the same on every process, onto the mesh.

    Args:
      tree: NumPy or JAX arrays, of which this process sees every element.
      mesh: see ``make_mesh``.
      specs: a PyTree of ``PartitionSpec`` like the tree.
      fresh: in buffers that nothing else refers to, fit to be donated.
    """

    def put(x: Any, sharding: NamedSharding) -> Any:
        if jax.process_count() == 1:
            return jax.device_put(x, sharding)
        if is_key(x):
            return jax.random.wrap_key_data(put(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    where = shardings(mesh, specs)
    placed = jax.tree.map(put, tree, where)
    # device_put may hand back the caller's own buffer, on several devices even with may_alias=False; to donate such a
    # buffer crashes the process.
    return jax.jit(lambda t: jax.tree.map(jnp.copy, t), out_shardings=where)(placed) if fresh else placed


def to_host(tree: Any) -> Any:
    """The whole tree in NumPy arrays, on every process. Typed keys become their uint32 data.

    Every process must call this, as a leaf that is split over processes has to be gathered.
    """

    def get(x: Any) -> np.ndarray:
        if is_key(x):
            x = jax.random.key_data(x)
        if isinstance(x, jax.Array) and not x.is_fully_addressable and not x.is_fully_replicated:
            from jax.experimental import multihost_utils

            x = multihost_utils.process_allgather(x, tiled=True)
        # a copy: on a CPU the view would keep (or lose) the device's buffer, which the next call is given
        return np.array(x)

    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not is_key(leaf) and leaf.is_fully_addressable:
            leaf.copy_to_host_async()
    return jax.tree.map(get, tree)


def unequal_replicas(tree: Any, specs: Any) -> list[str]:
    """Paths of replicated leaves whose copies on this process's devices differ: somebody forgot to reduce.

    Floats may differ by 1e-5 relative, as some devices add in no fixed order.
    """
    paths, _ = jax.tree.flatten_with_path(tree)
    found = []
    for (path, leaf), spec in zip(paths, jax.tree.leaves(specs, is_leaf=_is_spec), strict=True):
        if AXIS in spec:
            continue
        data = jax.random.key_data(leaf) if is_key(leaf) else leaf
        copies = [np.asarray(shard.data) for shard in data.addressable_shards]
        if not all(_same(copy, copies[0]) for copy in copies[1:]):
            found.append(jax.tree_util.keystr(path, simple=True, separator="."))
    return found


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    if a.tobytes() == b.tobytes():
        return True
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return False
    return np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-7, equal_nan=True)
