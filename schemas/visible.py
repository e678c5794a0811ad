"""Text of a model or a user as it may be shown: what would deceive a reader or steer a terminal is seen in it."""

from __future__ import annotations

import unicodedata

_SHOWN_AS_THEY_ARE = "\n\t\u200c\u200d"
"""Line feed, tab, and the joiners that emoji and many scripts need."""
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories of controls, format characters, surrogates, private use, line and paragraph separators."""


def plain(text: object) -> str:
    """A text in which characters that cannot be seen stand as a picture or a code point."""
    text = str(text)
    if text.replace("\n", "").replace("\t", "").isprintable():  # in a hundredth of the time
        return text
    return "".join(replacement(character) or character for character in text)


def replacement(character: str) -> str:
    """What stands for a character that cannot be seen; empty for one that can."""
    code = ord(character)
    if character in _SHOWN_AS_THEY_ARE:
        return ""
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    # Noncharacters end in FFFE or FFFF on every plane, and fill U+FDD0 to U+FDEF.
    nothing = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return f"[U+{code:04X}]" if nothing or unicodedata.category(character) in _HIDDEN else ""
