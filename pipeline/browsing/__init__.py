"""The rollouts of a run, looked at one by one: a bounded sample in the report, all of them by `report --serve`."""
