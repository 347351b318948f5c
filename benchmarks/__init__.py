"""Ratios against peers, in one run: `python -m benchmarks`. See README.md in this directory."""
