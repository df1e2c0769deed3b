"""A package of the script's own that imports torch, as in most training code."""

from trainer.steps import train

__all__ = ["train"]
