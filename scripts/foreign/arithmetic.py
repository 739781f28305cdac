"""The shell's arithmetic, in 64 bits: the operators of C that launch scripts use, in bash's order of precedence."""

import operator
import re

WORD = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*(?:\[[^][]*\])?|<<|>>|[<>=!]=|&&|\|\||[-+*/%!<>?:()])")
STEP = re.compile(r"\s*(\+\+|--|)\s*([A-Za-z_]\w*(?:\[[^][]*\])?)\s*(\+\+|--|[-+*/%]?=(?!=)|)(.*)", re.DOTALL)
SETS = re.compile(r"([A-Za-z_]\w*)(?:\[[^][]*\])?\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|"
                  r"(?:\+\+|--)\s*([A-Za-z_]\w*)")  # what any expression may set
LEVELS = (("?",), ("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
LEVEL = {sign: level for level, signs in enumerate(LEVELS) for sign in signs}


def divided(a, b):
    """Rounds towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY = {"||": lambda a, b: bool(a or b), "&&": lambda a, b: bool(a and b), "==": operator.eq, "!=": operator.ne,
          "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
          "<<": lambda a, b: a << b % 64, ">>": lambda a, b: a >> b % 64, "+": operator.add, "-": operator.sub,
          "*": operator.mul, "/": divided, "%": lambda a, b: a - b * divided(a, b)}
UNARY = {"-": operator.neg, "+": operator.pos, "!": operator.not_}


def joined(sign, a, b):
    return (BINARY[sign](a, b) + (1 << 63)) % (1 << 64) - (1 << 63)


def evaluate(text, value):
    """Returns the value of an expression without assignments. value(name) reads a variable."""
    words = WORD.findall(text)[::-1]
    if "".join("".join(words[::-1]).split()) != "".join(text.split()):
        raise ValueError(text)

    def take(*signs):
        return words.pop() if words and words[-1] in signs else ""

    def read(lowest, counts):  # counts: not skipped by &&, || or ?:
        if sign := take(*UNARY):
            found = int(UNARY[sign](read(len(LEVELS), counts)))
        elif take("("):
            found = read(0, counts)
            if not take(")"):
                raise ValueError(text)
        elif words and words[-1][0].isdigit():
            word = words.pop()
            found = int(word, 16 if word[:2] in ("0x", "0X") else 8 if word[0] == "0" else 10)
        elif words and words[-1][0].isidentifier():
            word = words.pop()
            found = value(word) if counts else 0
        else:
            raise ValueError(text)
        while words and LEVEL.get(words[-1], -1) >= lowest:
            sign = words.pop()
            if sign == "?":
                yes = read(0, counts and bool(found))
                if not take(":"):
                    raise ValueError(text)
                no = read(0, counts and not found)
                found = yes if found else no
            else:
                skipped = sign in ("&&", "||") and bool(found) == (sign == "||")
                other = read(LEVEL[sign] + 1, counts and not skipped)
                found = joined(sign, found, other) if counts else 0
        return found

    found = read(0, True) if words else 0
    if words:
        raise ValueError(text)
    return found


def calculate(text, value, put):
    """Runs expressions between commas, each of which may begin with an assignment: X = 1, X += 1, X++ or --X. Raises
    ValueError if one is invalid or not read (an assignment inside, ** & | ^ ~, 2#11), or ArithmeticError."""
    found = 0
    for part in text.split(","):
        before, name, after, rest = (step := STEP.fullmatch(part)) and step.groups() or ("", "", "", "")
        if after.endswith("="):
            found = evaluate(rest, value)
            found = joined(after[0], value(name), found) if len(after) == 2 else found
            put(name, found)
        elif (before or after) and not (before and after or rest.strip()):
            old = value(name)
            new = joined((before or after)[0], old, 1)
            put(name, new)
            found = new if before else old
        else:
            found = evaluate(part, value)
    return found
