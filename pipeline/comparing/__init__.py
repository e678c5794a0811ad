"""Two runs side by side: only what differs."""
