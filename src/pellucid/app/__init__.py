"""Furnishes the house: the only place that names adapters and plugs rooms together."""
