from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.recipes import load_execution, load_recipe
from schemas.errors import RecipeError

MINIMAL = """
name = "t"
[model]
base = "tiny-random"
[program]
factory = "a:b"
metric = "a:c"
[examples]
path = "e.csv"
inputs = ["x"]
"""


def write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_minimal_recipe_has_the_defaults_of_the_paper(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path), []).recipe
    assert (recipe.preset, recipe.rollout.rollouts, recipe.group.pad, recipe.group.ddof) == ("paper", 12, "fill", 1)
    assert (recipe.adapter.r, recipe.adapter.alpha, recipe.train.learning_rate) == (16, 64, 1e-5)


def test_the_recipe_wins_over_its_preset_and_a_setting_over_the_recipe(tmp_path: Path) -> None:
    path = write(tmp_path, 'preset = "unbiased"\n' + MINIMAL + '[group]\npad = "truncate"\n')
    group = load_recipe(path, []).recipe.group
    assert (group.pad, group.select, group.baseline) == ("truncate", "all", "leave_one_rollout_out")
    assert load_recipe(path, ["group.pad=fill_last"]).recipe.group.pad == "fill_last"


def test_a_setting_takes_any_toml_value_and_bare_words(tmp_path: Path) -> None:
    settings = ["train.learning_rate=3e-4", "examples.metadata=['m']", "rollout.sampling.top_k=20", "name=other"]
    recipe = load_recipe(write(tmp_path), settings).recipe
    assert (recipe.train.learning_rate, recipe.examples.metadata) == (3e-4, ("m",))
    assert (recipe.rollout.sampling.top_k, recipe.name) == (20, "other")


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("[train]\nlearning_rat = 1", "train.learning_rat: unknown key; did you mean 'learning_rate'?"),
        ("[lms.x]\nkind = 'openai'", "lms.x: kind 'openai' needs `url` and `model`"),
        ("[lms.student]\nkind = 'base'", "'student' is the model being trained"),
        ("[group]\nk = 0", "group.k"),
        ("[train]\nlearning_rate = 'fast'", "train.learning_rate"),
        ("[train]\nschedule = 'cosine'", "needs `total_steps`"),
        ("[rollout.sampling]\ntemprature = 1", "did you mean 'temperature'?"),
        ("[train]\nbeta = inf", "train.beta"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(tmp_path: Path, addition: str, expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, MINIMAL + addition), [])
    assert expected in str(caught.value)
    assert "recipe.toml" in str(caught.value)


def test_every_missing_field_is_listed(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, "name = 'x'"), [])
    assert all(f"- {name}: required" in str(caught.value) for name in ("model", "program", "examples"))


@pytest.mark.parametrize(
    "text", ["name = ", "\x00", "[a\n", f"seed = {'1' * 5000}", f"a = {'[' * 100_000}"], ids=range(5)
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecipeError, match=r"recipe\.toml is not TOML"):
        load_recipe(write(tmp_path, text), [])


def test_a_missing_recipe_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        load_recipe(tmp_path / "none.toml", [])
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path, [])


def test_execution_is_checked_like_a_recipe(tmp_path: Path) -> None:
    assert load_execution(None, ["concurrency=7"]).concurrency == 7
    with pytest.raises(RecipeError, match="did you mean 'threads'"):
        load_execution(None, ["thread=7"])


def test_a_recipe_cannot_be_changed_after_it_was_read(tmp_path: Path) -> None:
    from pydantic import ValidationError

    recipe = load_recipe(write(tmp_path), []).recipe
    with pytest.raises(ValidationError, match="frozen"):
        recipe.seed = 3  # type: ignore[misc]


def test_a_byte_order_mark_and_text_of_any_script_are_read_whatever_the_locale(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace('"x"', '"Größe"').encode())
    assert load_recipe(path, []).recipe.examples.inputs == ("Größe",)


def test_a_path_below_a_file_is_a_recipe_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read: Not a directory"):
        load_recipe(write(tmp_path) / "recipe.toml", [])


def test_a_setting_is_one_value(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="seed"):
        load_recipe(write(tmp_path), ["seed=1\nname='other'"])


@pytest.mark.parametrize(
    "setting",
    [
        "rollout.sampling.max_new_tokens=4294967296",
        "evaluate.sampling.top_k=4294967296",
        "rollout.sampling.temperature=1e-40",
        "lms={ j = { max_new_tokens = 4294967296 } }",
        "lms={ j = { temperature = 1e-40 } }",
    ],
)
def test_sampling_that_no_table_or_engine_can_hold_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(RecipeError, match=r"less than 2147483648|0 decodes greedily"):
        load_recipe(write(tmp_path), [setting])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["examples.dev=train"], "split 'train' is trained on"),
        (["examples.test=train"], "split 'train' is trained on"),
        (["examples.train=dev"], "split 'dev' is trained on"),
        (["examples.test=dev"], "`dev` and `test` are both split 'dev'"),
    ],
)
def test_a_split_has_one_part_in_a_run(tmp_path: Path, settings: list[str], expected: str) -> None:
    with pytest.raises(RecipeError, match=expected):
        load_recipe(write(tmp_path), settings)
    assert load_recipe(write(tmp_path), ["examples.dev=a", "examples.test=b"]).recipe.examples.dev == "a"


def test_a_key_in_the_place_of_its_variables_name_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"lms.j.api_key_env: expected the name of an environment variable") as caught:
        load_recipe(write(tmp_path), ["lms.j={ kind = 'openai', url = 'u', model = 'm', api_key_env = 'sk-abc-123' }"])
    assert "sk-abc" not in str(caught.value)


@pytest.mark.parametrize("section", ["evaluate", "prompts"])
def test_what_is_greedy_stays_greedy_when_another_field_of_its_sampling_is_set(tmp_path: Path, section: str) -> None:
    recipe = load_recipe(write(tmp_path), [f"{section}.sampling.max_new_tokens=7"]).recipe
    sampling = getattr(recipe, section).sampling
    assert (sampling.temperature, sampling.max_new_tokens) == (0.0, 7)
