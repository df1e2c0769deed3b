"""A package of the script's own, through which torch comes in, as in most training code."""

from trainer.steps import train

__all__ = ["train"]
