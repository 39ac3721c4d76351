"""What replog costs, as ratios measured in one run: `python -m benchmarks`, or `make bench`.

Never a test of time: figures depend on the machine and on what else runs there. docs/concepts/performance.md says what they mean.
"""
