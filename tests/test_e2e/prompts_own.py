"""A DSPy program of a user's own, small enough for the tiny random model, with a prompts section in its recipe."""

from __future__ import annotations

from pathlib import Path

from tests.test_e2e.kit import own_recipe, recipe_head

PROGRAM = """
import dspy
from stages.programs.plain_adapter import PlainAdapter

class Two(dspy.Module):
    def __init__(self):
        super().__init__()
        self.adapter = PlainAdapter()
        self.think = dspy.Predict("word -> thought")
        self.say = dspy.Predict("word, thought -> answer")

    def forward(self, word):
        return self.say(word=word, thought=self.think(word=word).thought)

def program():
    return Two()

def metric(example, output, calls):
    shown = len(calls[0]["messages"]) > 2  # demonstrations pay, whatever a random model makes of them
    return shown + sum(c.islower() for c in output.answer) / len(output.answer)
"""

RECIPE = (
    recipe_head(2048, 'labels = ["answer"]\n')
    + """
[prompts]
optimizer = "mipro"
trials = 3
demo_candidates = 4
instruction_candidates = 2
bootstrapped_demos = 2
labeled_demos = 2
sampling = { temperature = 1.0, max_new_tokens = 8 }
parse_retries = 1
[rollout]
examples = 4
rollouts = 4
parse_retries = 1
sampling = { max_new_tokens = 8 }
[adapter]
r = 2
[train]
learning_rate = 1e-3
precision = "float32"
[evaluate]
sampling = { temperature = 1.0, max_new_tokens = 8 }
parse_retries = 1
bootstrap = 200
"""
)

EXAMPLES = "word,answer,split\n" + "".join(f"w{i},a{i},{'train' if i < 8 else 'dev'}\n" for i in range(12))
BOOTSTRAP = ("--set", "prompts.optimizer=bootstrap")


def prompts_recipe(folder: Path, recipe: str = RECIPE, program: str = PROGRAM) -> Path:
    """The folder's recipe file."""
    return own_recipe(folder, program=program, recipe=recipe, examples=EXAMPLES)
