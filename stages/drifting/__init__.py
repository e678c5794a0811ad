"""How far a policy has drifted: from the base on the program's own calls, and on a fixed set of prompts."""
