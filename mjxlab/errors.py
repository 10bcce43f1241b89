"""The errors a user can cause: one clear line each, naming the field, the value and what was expected."""

from __future__ import annotations


class MjxlabError(Exception):
    """Base of every error that mjxlab raises on bad input. The CLI prints its message alone and exits with 2."""


class ConfigError(MjxlabError, ValueError):
    """A field of a config, or an argument, has a value that cannot work."""


class UnknownNameError(MjxlabError, KeyError):
    """An environment, agent or other registered thing that does not exist."""

    def __str__(self) -> str:
        return self.args[0] if self.args else ""


class ModelError(MjxlabError, ValueError):
    """A robot model (MJCF) that MuJoCo or the chosen engine cannot load."""


class EngineError(MjxlabError, RuntimeError):
    """A physics engine was asked for something that it cannot do."""


class CheckpointError(MjxlabError, RuntimeError):
    """A checkpoint that is missing, truncated, or of another run."""


class AssetError(MjxlabError, RuntimeError):
    """Real data or weights that cannot be had, or are not what they should be."""


class WorkLostError(MjxlabError, RuntimeError):
    """Work could not be saved (disk full, no permission). The CLI exits with 1."""
