"""What `make demo` shows: one small scheduler loop, four acts, and a count of what was lost or doubled.

`scheduler` is the loop, `world` the cluster that it meets, `ledger` the counting, `acts` puts them together, `screen`
shows them. Needs the extras `kubernetes` and `testing`; with `cli` it is prettier.
"""
