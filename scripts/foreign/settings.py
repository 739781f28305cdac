"""The settings of another trainer's input. Each is converted (taken), named with its effect, or refused; what nobody
asked for is named at the end, so that none is dropped."""

import math
import re

from run_files import Failure

from .shell import readable, unknown_in

# The order of the first lines: what changes the answer most comes first.
CATEGORIES = ("world", "precision", "length", "batch", "model", "memory", "speed", "training", "unknown")
REQUIRED = object()
NO = (None, False, "", "false", "False", "none", "None", "null")


def brief(value):
    text = " ".join(readable(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


class Settings:
    def __init__(self, values=(), spell=lambda name: "--" + name):
        """values: {name: (as the input spells it, value)}; a value is a text, a number, a list, True, False or None.
        spell: how the input would spell a name that it does not have."""
        self.values, self.lines, self.quiet_ones, self.spell = dict(values), [], [], spell
        self.hint = ""  # follows the remedy where a value is not known

    def __contains__(self, name):
        return name in self.values and self.values[name][1] not in NO

    def spelling(self, name):
        return self.values[name][0] if name in self.values else self.spell(name)

    def add(self, name, spelling, value):
        if name in self.values and self.values[name][1] != value:
            self.say("unknown", f"{self.said(name)}: is given again later; the last one counts")
        self.values[name] = (spelling, value)

    def said(self, name):
        spelling, value = self.values[name]
        return spelling if value is True and spelling.startswith("--") else f"{spelling} {brief(value)}"

    def say(self, category, text):
        self.lines.append((CATEGORIES.index(category), text))

    def take(self, name, default=None):
        """Returns the value of a setting that is converted."""
        return self.values.pop(name)[1] if name in self.values else default

    def text(self, name, default=None):
        if name in self.values and self.values[name][1] is None:
            self.quiet(name)
        spelling, value = self.spelling(name), self.take(name, default)
        if unsaid := unknown_in(value) if isinstance(value, str) else None:
            raise Failure(f"{spelling}: {not_said(unsaid)}{self.hint}")
        if isinstance(value, (list, dict)):
            raise Failure(f"{spelling}: needs one word, not {brief(value)!r}")
        return default if value in (None, True) else str(value)

    def flag(self, name, default=False):
        if name not in self.values:
            return default
        if self.values[name][1] is None:
            self.quiet(name)
            return default
        spelling, value = self.values.pop(name)
        if isinstance(value, str) and value.lower() not in ("true", "false", "none", "null", "1", "0", "yes", "no", ""):
            self.say("unknown", f"{spelling} {brief(value)}: takes no value; the value is ignored")
            return True
        return value not in NO and str(value).lower() not in ("0", "no", "none", "null")

    def number(self, name, kind, default=REQUIRED, low=0, high=1e18):
        """Returns a number from low to high of a setting that is converted."""
        spelling = self.spelling(name)
        if name not in self.values or self.values[name][1] is None:
            self.quiet(name)
            if default is REQUIRED:
                raise Failure(f"{spelling}: is missing; add it")
            return default
        value = self.values.pop(name)[1]
        if isinstance(value, str) and (unsaid := unknown_in(value)):
            raise Failure(f"{spelling}: {not_said(unsaid)}{self.hint}")
        try:
            if isinstance(value, bool) or isinstance(value, (list, dict)):
                raise ValueError
            found = float(str(value).replace("_", ""))
            if not math.isfinite(found) or (kind is int and found != int(found)):
                raise ValueError
        except (ValueError, OverflowError):
            kinds = "an integer" if kind is int else "a number"
            raise Failure(f"{spelling}: needs {kinds}, not {brief(value)!r}") from None
        if not low <= found <= high:
            raise Failure(f"{spelling}: {brief(value)} is out of range; use {low:g} to {high:g}")
        return int(found) if kind is int else found

    def numbers(self, name, kind, count):
        spelling, value = self.values.pop(name)
        words = value if isinstance(value, list) else re.split(r"[\s,]+", str(value).strip("[]() "))
        if len(words) != count:
            raise Failure(f"{spelling}: needs {count} numbers, not {brief(value)!r}")
        part = Settings({str(at): (spelling, word) for at, word in enumerate(words)})
        return [part.number(str(at), kind) for at in range(count)]

    def effect(self, name, category, text):
        """Names a setting that cannot be converted, with its effect. Returns whether it is given."""
        given = name in self
        if given:
            self.say(category, f"{self.said(name)}: {text}")
            del self.values[name]
        return given

    def quiet(self, name):
        """Puts a setting without effect on the plan into the last line."""
        if name in self.values:
            self.quiet_ones.append(self.said(name))
            del self.values[name]

    def refuse(self, name, text):
        if name in self:
            raise Failure(f"{self.said(name)}: {text}")

    def finish(self, quiet):
        """Sorts what nobody asked for: quiet(name) says whether a setting has no effect on a plan."""
        for name in list(self.values):
            if self.values[name][1] in NO or quiet(name):
                self.quiet(name)
        if self.values:
            names = ", ".join(self.said(name) for name in self.values)
            self.say("unknown", f"{names}: not known here; their effect is not planned")
        self.values = {}

    def comments(self):
        lines = [
            f"# changes the plan: {CATEGORIES[at]}: {text}" for at, text in sorted(self.lines, key=lambda line: line[0])
        ]
        return lines + ([f"# without effect on the plan: {', '.join(self.quiet_ones)}"] if self.quiet_ones else [])


def not_said(name):
    if re.fullmatch(r"\$\{?\d+\}?", name):
        return f"the script does not say {name}; give the script's arguments after its name"
    if re.fullmatch(r"\$\{?[A-Za-z_]\w*\}?", name):
        return f"the script does not say {name}; write {name.strip('${}')}=VALUE before its name"
    return f"{name} is not known before the script runs; write the variable that takes it, NAME=VALUE, before its name"
