"""What to type to get what an extra installs. The package stands on no index: it is installed from a clone."""

from __future__ import annotations


def install(*extras: str) -> str:
    """The command that installs what one of these extras asks for, wherever it is typed in the clone.

    Args:
        extras: names in pyproject.toml, and behind a name in brackets what it is for: "vllm (NVIDIA GPUs)".
    """
    commands = []
    for number, extra in enumerate(extras):
        name, _, purpose = extra.partition(" ")
        command = f"'.[{name}]'" if number else f"pip install -e '.[{name}]'"
        commands.append(f"{command} {purpose}".rstrip())
    return f"{' or '.join(commands)}, in your clone of mmgrpo"
