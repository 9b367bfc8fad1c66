"""Measures plain decoding and MTP side by side, and sums it up. Knows no terminal: `mtp bench` shows the report."""
