"""Release: what the gate sees and decides, the ledger of its looks, and what a person decides."""
