"""Run folders and snapshots at addresses (`s3://…`): what is there is the truth, a mirror of it here is worked on."""
