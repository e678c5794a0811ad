"""The parts of the group stage: one file a job, pure functions on Polars frames.

A *chunk* is a range of whole examples, held as integers: `rollouts` sorted by (example_id, rollout_index,
rollout_id), and `calls`, whose column `r` is the row of its rollout in that frame. Strings come back on writing.
"""
