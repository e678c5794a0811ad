"""How jobs are run: command line, plan, store, verify, lineage, report, and the tasks that ship."""
