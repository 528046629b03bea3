"""The schema: one file per section, one class per dotted prefix."""

from asyncrl.config.schema.root import Config

__all__ = ["Config"]
