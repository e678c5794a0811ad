"""What each batch job does. A stage reads finished artifacts and writes one new artifact."""
