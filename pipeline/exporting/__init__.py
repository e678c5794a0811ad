"""An adapter leaves a run: the folder that PEFT and vLLM load, with a card of what is known of it."""
