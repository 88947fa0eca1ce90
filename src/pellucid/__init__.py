"""pellucid: auditable inference. Every answer with its engine, its history and a proof."""

__version__ = "0.1.0"
