"""Prefill, the round, and the plain loop it is compared with."""
