"""Numbers that carry check digits: bank accounts and cards."""

from __future__ import annotations

_LENGTHS = {
    15: "NO",
    16: "BE",
    18: "DK FI FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH CR HR LI LV",
    22: "BG BH DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
_LENGTH = {country: length for length, countries in _LENGTHS.items() for country in countries.split()}


def iban_end(text: str, start: int) -> int | None:
    """Where the bank account number that begins at `start` ends; None where none does.

    Characters may stand in groups, with a space or a hyphen between them.
    """
    length = _LENGTH.get(text[start : start + 2].upper())
    if length is None:
        return None
    found, place = "", start
    while place < len(text) and len(found) < length:
        char = text[place]
        if char.isascii() and char.isalnum():
            found += char
        elif char not in " -" or text[place - 1] in " -":
            return None
        place += 1
    goes_on = place < len(text) and text[place].isalnum()
    return place if len(found) == length and not goes_on and _mod_97(found) == 1 else None


def _mod_97(account: str) -> int:
    return int("".join(str(int(char, 36)) for char in account[4:] + account[:4])) % 97


def card_holds(text: str) -> bool:
    """Whether the digits of a text have the check digit of a card's number (Luhn)."""
    digits = [int(char) for char in reversed(text) if char.isdecimal()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return 13 <= len(digits) <= 19 and (sum(digits[::2]) + sum(doubled)) % 10 == 0 and len(set(digits)) > 1
