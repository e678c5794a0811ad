"""The train stage as several processes, started for that stage alone and ended with it."""
