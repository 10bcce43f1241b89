"""An XLA custom call whose handler is a Python function, through ``ctypes`` alone.

XLA calls the handler with raw pointers to its buffers on the CPU; no array is copied or queued, so neither the
overhead nor the deadlock of ``jax.pure_callback`` exists, and programs that hold the call are written to the
persistent compilation cache and can be exported. The structures below are the C ABI of XLA's FFI, version 0.3
(``xla/ffi/api/c_api.h``); newer minor versions only append to them.

The call carries one attribute, ``plan``: text that names what to run. ``register`` gives the function
``run(plan, operands, results)`` with buffers as ``Buffer`` objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

import jax
import jax.export

#: Name of the custom call. Part of every program that steps the C engine.
TARGET = "mjxlab_mujoco"

_METADATA_EXTENSION = 1
_INTERNAL = 13
_API_VERSION = (0, 3)


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", c_uint32), ("type_id", c_int64)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class Buffer(Structure):
    """An array of XLA's: ``data`` is its address, ``dims[:rank]`` its shape, row-major."""

    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _Buffers(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", c_void_p),
        ("items", POINTER(POINTER(Buffer))),
    ]


class _Text(Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t)]


class _Attributes(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("names", c_void_p),
        ("items", POINTER(POINTER(_Text))),
    ]


class _ErrorArgs(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


class _Api(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
        ("error_create", ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArgs))),
    ]


class _Frame(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("operands", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
        ("future", c_void_p),
    ]


Run = Callable[[bytes, list[Buffer], list[Buffer]], None]

# XLA keeps the address of the handler for the life of the process, so Python must keep the object.
_handlers: dict[str, object] = {}


def register(run: Run, target: str = TARGET) -> None:
    """Make ``run(plan, operands, results)`` the handler of ``target`` on CPUs; a second call does nothing.

    ``run`` is called from XLA's threads, perhaps from several at once. Results are uninitialised memory: it fills
    every byte. An exception in it becomes a ``JaxRuntimeError`` of one line; the process stays usable.
    """
    if target in _handlers:
        return

    def handle(frame_pointer: object) -> int | None:
        frame = frame_pointer.contents  # type: ignore[attr-defined]
        if frame.extension and frame.extension.contents.type == _METADATA_EXTENSION:
            extension = ctypes.cast(frame.extension, POINTER(_MetadataExtension)).contents
            version = extension.metadata.contents.version
            version.major, version.minor = _API_VERSION
            extension.metadata.contents.traits = 0
            return None
        try:
            text = frame.attributes.items[0].contents
            operands, results = frame.operands, frame.results
            run(
                ctypes.string_at(text.data, text.length),
                [operands.items[i].contents for i in range(operands.count)],
                [results.items[i].contents for i in range(results.count)],
            )
        except BaseException as error:  # nothing may propagate into C
            kind = type(error).__name__
            message = "; ".join(part.strip() for part in str(error).splitlines() if part.strip())
            arguments = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, f"{kind}: {message}".encode(), _INTERNAL)
            return frame.api.contents.error_create(byref(arguments))
        return None

    handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))(handle)
    _handlers[target] = handler
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform="cpu")


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What ``jax.export.export`` must be told to accept a program that steps the C engine.

    The process that loads the program must first make the engine (same model and outputs).

    Example:
      >>> exported = jax.export.export(jax.jit(f), disabled_checks=export_checks())(*args)
    """
    return [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
