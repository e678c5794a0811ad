"""Files for schedulers: the stages of a recipe as Slurm jobs or Kubernetes manifests."""
