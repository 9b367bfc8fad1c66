"""Gemma 4 targets and drafters."""
