"""Programs: how one is loaded and identified, run, recorded and scored. Shared by the rollout and evaluate stages."""
