"""Reads a launch script without running it: expands variables, arrays, arithmetic and quotes, follows `if`, `case`,
`for` and functions, and returns the commands that would be started.

What the script does not say (variables of the environment, output of commands) becomes a mark with its name, unknown(),
so that a reader can name it. A test on an unknown value takes it as empty, as an unset variable is."""

import fnmatch
import re
import shlex

from run_files import Failure

BEGIN, END = "\ue000", "\ue001"  # around the name of an unknown value
DEEPEST, MOST_STEPS = 20, 20000
RESERVED = {
    "if",
    "then",
    "elif",
    "else",
    "fi",
    "for",
    "while",
    "until",
    "do",
    "done",
    "case",
    "esac",
    "function",
    "{",
    "}",
}
ASSIGNS = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
ARITHMETIC = re.compile(r"[\d\s+\-*/%()<>=!&|?:,]*")


MARK = re.compile(f"{BEGIN}([^{END}]*){END}")


def unknown(name):
    """The name's blanks and signs are moved, so that a shell's rules for them do not apply to a mark."""
    return (
        BEGIN
        + "".join(
            chr(0xE100 + ord(each)) if ord(each) < 128 and not each.isalnum() else each for each in readable(name)
        )
        + END
    )


def name_in(mark):
    return "".join(chr(ord(each) - 0xE100) if 0xE100 <= ord(each) < 0xE180 else each for each in mark)


def unknown_in(text):
    """Returns the name of the first unknown part of the text, or None."""
    found = MARK.search(str(text))
    return name_in(found[1]) if found else None


def readable(text):
    """Returns the text with its unknown parts as the script spells them."""
    return MARK.sub(lambda found: name_in(found[1]), str(text))


def without_unknown(text):
    return MARK.sub("", text)


class Scanner:
    """Cuts a script into words and operators. A word is a list of pieces (kind, text), kind being plain, single or
    double (quoted), or an array's list of words."""

    OPERATORS = (";;", "&&", "||", "|&", ">>", "<<<", "&>", ">&", "<&", "<<-", "<<", "|", ";", "&", "(", ")", "<", ">")

    def __init__(self, text):
        self.text, self.at, self.line = text, 0, 1
        self.waiting = []  # here-documents whose bodies follow the line

    def peek(self, count=1):
        return self.text[self.at : self.at + count]

    def step(self, count=1):
        piece = self.peek(count)
        self.line += piece.count("\n")
        self.at += count
        return piece

    def tokens(self):
        while self.at < len(self.text):
            char = self.peek()
            if char == "\n":
                self.step()
                yield ("newline", "\n", self.line - 1)
                yield from self.documents()
            elif self.peek(2) == "\\\n":
                self.step(2)
            elif char in " \t\r":
                self.step()
            elif found := re.compile(r"\d+(?=[<>])").match(self.text, self.at):
                self.step(len(found[0]))
            elif char == "#":
                self.step(len(re.match(r"[^\n]*", self.text[self.at :])[0]))
            elif self.peek(2) == "((":
                yield ("arithmetic", self.balanced("(", ")"), self.line)
            elif operator := next((each for each in self.OPERATORS if self.text.startswith(each, self.at)), None):
                self.step(len(operator))
                if operator in ("<<", "<<-"):
                    self.waiting.append(self.delimiter())
                else:
                    yield ("operator", operator, self.line)
            else:
                line = self.line
                yield ("word", self.word(), line)
        yield from self.documents()

    def delimiter(self):
        self.step(len(re.match(r"[ \t]*", self.text[self.at :])[0]))
        pieces = self.word()
        return "".join(text for _, text in pieces if isinstance(text, str)), any(kind != "plain" for kind, _ in pieces)

    def documents(self):
        for end, quoted in self.waiting:
            lines = []
            while self.at < len(self.text):
                line = self.step(len(re.match(r"[^\n]*\n?", self.text[self.at :])[0]))
                if line.strip() == end:
                    break
                lines.append(line)
            yield ("document", ("single" if quoted else "double", "".join(lines)), self.line)
        self.waiting = []

    def balanced(self, begin, end):
        """Returns the text from `begin` to its `end`; what is quoted does not count."""
        start, depth = self.at, 0
        while self.at < len(self.text):
            if self.text.startswith(begin, self.at):
                depth += 1
                self.step(len(begin))
            elif self.text.startswith(end, self.at):
                depth -= 1
                self.step(len(end))
                if depth == 0:
                    break
            elif self.peek() == "\\":
                self.step(2)
            elif self.peek() == "'" and begin in ("$(", "("):
                self.step(len(re.match(r"'[^']*'?", self.text[self.at :])[0]))
            elif begin == "$(" and self.peek() == "(":
                self.balanced("(", ")")
            else:
                self.step()
        return self.text[start : self.at]

    def dollar(self):
        if self.peek(3) == "$((":
            return self.step() + self.balanced("(", ")")
        if self.peek(2) == "$(":
            return self.balanced("$(", ")")
        if self.peek(2) == "${":
            return self.balanced("${", "}")
        return self.step(len(re.match(r"\$(\w+|[@*#?$!-])?", self.text[self.at :])[0]))

    def word(self):
        pieces, plain = [], ""
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\r\n;|&<>)" or (char == "(" and not self.array_begins(plain)):
                break
            if char == "(":
                self.step()
                pieces, plain = [*pieces, ("plain", plain), ("array", self.array())], ""
            elif char == "\\":
                both = self.step(2)
                if both != "\\\n":
                    pieces, plain = [*pieces, ("plain", plain), ("single", both[1:])], ""
            elif char == "'":
                self.step()
                quoted = self.step(len(re.match(r"[^']*", self.text[self.at :])[0]))
                self.step()
                pieces, plain = [*pieces, ("plain", plain), ("single", quoted)], ""
            elif char == '"':
                self.step()
                pieces, plain = [*pieces, ("plain", plain), ("double", self.double())], ""
            elif char == "`":
                plain += self.backtick()
            elif char == "$":
                if self.peek(2) in ("$'", '$"'):
                    self.step()
                else:
                    plain += self.dollar()
            elif ASSIGNS.fullmatch(plain + self.text[self.at : self.at + 2].split("=")[0] + "=") and char == "[":
                plain += self.balanced("[", "]")
            else:
                plain += self.step()
        return [(kind, text) for kind, text in [*pieces, ("plain", plain)] if text != "" or kind != "plain"]

    def array_begins(self, plain):
        return ASSIGNS.fullmatch(plain) is not None or plain[-1:] in "@?*+!" and plain != ""

    def array(self):
        words = []
        while self.at < len(self.text) and self.peek() != ")":
            if self.peek() in " \t\r\n":
                self.step()
            elif self.peek(2) == "\\\n":
                self.step(2)
            elif self.peek() == "#":
                self.step(len(re.match(r"[^\n]*", self.text[self.at :])[0]))
            elif self.peek() in ";|&<>":
                self.step()
            elif self.peek() == "(":
                self.balanced("(", ")")
            else:
                words.append(self.word())
        self.step()
        return words

    def double(self):
        text = ""
        while self.at < len(self.text) and self.peek() != '"':
            if self.peek() == "\\" and self.peek(2)[1:] in ("\\", '"', "$", "`", "\n"):
                both = self.step(2)
                text += "" if both[1] == "\n" else {"$": "\ue002", "`": "\ue003"}.get(both[1], both[1])
            elif self.peek() == "$":
                text += self.dollar()
            elif self.peek() == "`":
                text += self.backtick()
            else:
                text += self.step()
        self.step()
        return text

    def backtick(self):
        self.step()
        inner = self.step(len(re.match(r"[^`]*", self.text[self.at :])[0]))
        self.step()
        return f"$({inner})"


class Stopped(Exception):
    """A function returns."""


class Script:
    """commands: lists of words, in the order in which they would be started."""

    def __init__(self, given=(), read=lambda name: None, arguments=()):
        self.variables = {"IFS": " "}  # name -> text, or a list of texts
        self.given = dict(given)  # the user's values of what the script does not say
        self.arguments = list(arguments)
        self.read = read  # returns the text of a file that the script names, or None
        self.functions, self.files, self.commands, self.notes = {}, {}, [], []
        self.depth = self.steps = 0
        self.doubt = ""  # what the last condition depends on and the script does not say
        self.outside, self.missing = True, 0  # outside of functions; the last argument that is asked for and not given

    # ---- values

    def lookup(self, name):
        """Returns a text or a list; None if the script does not say it."""
        if name.isdecimal() and int(name) > 0:
            if int(name) > len(self.arguments):
                self.missing = max(self.missing, int(name)) if self.outside else self.missing
                return None
            return self.arguments[int(name) - 1]
        return self.variables.get(name, self.given.get(name))

    def value(self, name, testing=False):
        found = self.lookup(name)
        if found is None:
            return self.unsaid("$" + name, testing)
        return (found[0] if found else "") if isinstance(found, list) else found

    def unsaid(self, name, testing):
        """Returns the mark of a value that the script does not say; for a test, the empty text of an unset variable."""
        if not testing:
            return unknown(name)
        self.doubt = self.doubt or name
        return ""

    def braces(self, inside, testing):
        """Returns the value of ${...}: a list for arrays."""
        if inside.startswith("!"):
            return self.value(str(self.value(inside[1:], testing)), testing)
        if inside.startswith("#"):
            name = inside[1:].partition("[")[0]
            found = self.arguments if name in ("@", "*") else self.lookup(name)
            return unknown("${" + inside + "}") if found is None else str(len(found))
        parts = re.match(r"(\w+|[@*])(\[[^]]*\])?(.*)", inside, re.DOTALL)
        if parts is None:
            return unknown("${" + inside + "}")
        name, index, rest = parts[1], parts[2], parts[3]
        found = self.arguments if name in ("@", "*") else self.lookup(name)
        if index is not None:
            items = found if isinstance(found, list) else [] if found is None else [found]
            if index in ("[@]", "[*]"):
                found = items if found is not None or testing else [unknown("${" + inside + "}")]
            else:
                at = self.arithmetic(index[1:-1], testing)
                known = re.fullmatch(r"-?\d+", at) and -len(items) <= int(at) < len(items)
                found = items[int(at)] if known else None
        if rest.startswith((":-", "-", ":=", "=", ":+", "+", ":?", "?")):
            return self.defaulted(name, found, rest, testing)
        if found is None:
            return self.unsaid("$" + name, testing)
        if isinstance(found, list):
            return found if index is not None or name in ("@", "*") else (found[0] if found else "")
        return self.edited(found, rest, inside, testing)

    def defaulted(self, name, found, rest, testing):
        said = found is not None and (found not in ("", []) or not rest.startswith(":"))
        kind = rest.lstrip(":")[0]
        word = self.text(rest.lstrip(":")[1:].strip("\"'"), testing)
        if kind == "+":
            return word if said else ""
        if said:
            return found
        if kind == "?":
            return unknown("$" + name)
        if kind == "=":
            self.variables[name] = word
        return word

    def edited(self, text, rest, inside, testing):
        """Returns the text after ${X#...}, ${X%...}, ${X/a/b}, ${X:0:3}, ${X,,} and ${X^^}."""
        if rest == "":
            return text
        if rest in (",,", "^^"):
            return text.lower() if rest == ",," else text.upper()
        if unknown_in(text):
            return text
        if cut := re.fullmatch(r":\s*(-?\d+)(?::(-?\d+))?", rest):
            begin, length = int(cut[1]), cut[2]
            part = text[begin:]
            return part if length is None else part[: int(length)]
        pattern = self.text(rest.lstrip("#%/"), testing)
        if rest[0] in "#%" and len(text) < 4096:
            cuts = range(len(text) + 1)
            fits = [i for i in cuts if fnmatch.fnmatchcase(text[:i] if rest[0] == "#" else text[i:], pattern)]
            if not fits:
                return text
            longest = rest[:2] in ("##", "%%")
            at = (max if longest == (rest[0] == "#") else min)(fits)
            return text[at:] if rest[0] == "#" else text[:at]
        if rest[0] == "/":
            old, _, new = pattern.partition("/")
            return text.replace(old, new, -1 if rest.startswith("//") else 1) if old else text
        return unknown("${" + inside + "}")

    def arithmetic(self, text, testing=False):
        """Returns the value of an expression as a text of digits, or a mark."""
        named = text if "$(" in text else re.sub(r"(?<![\w${])[A-Za-z_]\w*", lambda found: "${" + found[0] + "}", text)
        said = self.text(named, testing).replace("_", "").strip()
        if name := unknown_in(said):
            return unknown(name)
        said = re.sub(r"\b0+(?=\d)", "", said) or "0"
        if not ARITHMETIC.fullmatch(said) or len(said) > 400 or "**" in said or "<<" in said:
            return unknown("$((" + readable(text).strip() + "))")
        said = (
            said.replace("&&", " and ")
            .replace("||", " or ")
            .replace("!=", "\x00")
            .replace("!", " not ")
            .replace("\x00", "!=")
        )
        if choice := re.fullmatch(r"([^?]*)\?([^:?]*):([^:?]*)", said):
            said = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
        try:
            # Only digits and operators are left.
            return str(int(eval(re.sub(r"(?<!/)/(?!/)", "//", said), {"__builtins__": {}})))  # noqa: S307
        except (SyntaxError, TypeError, ValueError, ZeroDivisionError, OverflowError, MemoryError, RecursionError):
            return unknown("$((" + readable(text).strip() + "))")

    def pieces(self, text, testing):
        """Yields (value, quoted out of splitting) of a text with $-expressions: strings, or lists for arrays."""
        at = 0
        for found in re.finditer(r"\$", text):
            if found.start() < at:
                continue
            yield text[at : found.start()]
            scanner = Scanner(text)
            scanner.at = found.start()
            said = scanner.dollar()
            at = scanner.at
            if said.startswith("$(("):
                yield self.arithmetic(said[3:-2], testing)
            elif said.startswith("$("):
                yield self.output(said[2:-1], testing)
            elif said.startswith("${"):
                yield self.braces(said[2:-1], testing)
            elif said in ("$@", "$*"):
                yield list(self.arguments)
            elif said == "$#":
                yield str(len(self.arguments))
            elif said == "$0":
                yield "script"
            elif len(said) > 1 and said[1] not in "?$!-":
                yield self.value(said[1:], testing)
            else:
                yield said if said == "$" else "0" if said == "$?" else unknown(said)
        yield text[at:]

    def output(self, command, testing):
        """Returns what a command prints, if that is certain."""
        if found := re.fullmatch(r"\s*(?:IFS=\S+\s*;\s*)?echo\s+\"?\$\{(\w+)\[\*\]\}\"?\s*", command):
            return ",".join(self.lookup(found[1]) or [])
        if re.match(r"\s*echo\s", command) and "|" not in command and ">" not in command:
            return " ".join(self.expand(Scanner(command.strip()[4:]).array(), testing))
        if found := re.fullmatch(r"\s*(?:echo\s+\"?(.*?)\"?\s*\|\s*bc|expr\s+(.*))\s*(?:-l)?\s*", command):
            return self.arithmetic(re.sub(r"\\\*", "*", found[1] or found[2]), testing)
        return self.unsaid("$(" + " ".join(readable(command).split())[:60] + ")", testing)

    def text(self, text, testing=False):
        """Returns the text with its $-expressions expanded, as inside double quotes."""
        self.depth += 1
        if self.depth > 4 * DEEPEST:
            self.depth -= 1
            return unknown(text[:40])
        joined = "".join(" ".join(each) if isinstance(each, list) else each for each in self.pieces(text, testing))
        self.depth -= 1
        return joined

    def expand(self, words, testing=False):
        """Returns the words that a command gets of words as written."""
        result = []
        for word in words:
            result += self.expand_word(word, testing)
        return result

    def expand_word(self, word, testing=False):
        fields, open_ = [""], False  # open_: the last field exists even if empty
        for kind, text in word:
            if kind == "single":
                fields[-1] += text
                open_ = True
            elif kind == "double":
                parts = list(self.pieces(text, testing))
                if "".join(each for each in parts if isinstance(each, str)) == "" and any(
                    isinstance(each, list) for each in parts
                ):
                    for each in (each for each in parts if isinstance(each, list) and each):
                        fields[-1] += each[0]
                        fields += each[1:]
                        open_ = True
                else:
                    fields[-1] += "".join(" ".join(each) if isinstance(each, list) else each for each in parts)
                    open_ = True
            elif kind == "plain":
                for number, each in enumerate(self.pieces(text, testing)):
                    if number % 2 == 0:  # as written
                        fields[-1] += each
                        continue
                    split = (" ".join(each) if isinstance(each, list) else each).split()
                    if split:
                        fields[-1] += split[0]
                        fields += split[1:]
        fields = [field.replace("\ue002", "$").replace("\ue003", "`") for field in fields]
        many = [each for field in fields for each in self.alternatives(field)]
        return many if open_ else [each for each in many if each != ""]

    @staticmethod
    def alternatives(field):
        if found := re.fullmatch(r"([^{}]*)\{(\d+)\.\.(\d+)\}([^{}]*)", field):
            if 0 <= int(found[3]) - int(found[2]) < 1000:
                return [f"{found[1]}{i}{found[4]}" for i in range(int(found[2]), int(found[3]) + 1)]
        return [field]

    # ---- commands

    def run(self, text):
        """Reads a script; where it ends too early, what came before it counts."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise Failure("the script calls itself without end; give the flags themselves")
        tokens = list(Scanner(text).tokens())
        try:
            self.block(Tokens(tokens), True)
        finally:
            self.depth -= 1

    def block(self, tokens, live):
        """Reads commands until a reserved word that closes the block; runs them if live."""
        while (token := tokens.peek()) is not None:
            if token[0] == "word" and plain(token) in ("then", "elif", "else", "fi", "do", "done", "esac", "}"):
                return
            if token[:2] in (("operator", ";;"), ("operator", ")")):
                return
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Failure("the script does not end; give the flags themselves")
            self.statement(tokens, live)

    def statement(self, tokens, live):
        kind, value, line = token = tokens.peek()
        word = plain(token)
        if kind == "word" and word == "if":
            self.branch(tokens, live)
        elif kind == "word" and word in ("while", "until"):
            tokens.next()
            self.condition(tokens, False)
            self.expect(tokens, "do")
            at = tokens.at
            self.block(tokens, False)
            if live:
                self.say_doubt(tokens.all[at : tokens.at], f"the loop of line {line} is not followed")
            self.expect(tokens, "done")
        elif kind == "word" and word == "for":
            self.loop(tokens, live)
        elif kind == "word" and word == "case":
            self.choose(tokens, live)
        elif kind == "word" and (word == "function" or tokens.starts_function()):
            self.define(tokens)
        elif kind == "word" and word == "{":
            tokens.next()
            self.block(tokens, live)
            self.expect(tokens, "}")
        elif (kind, value) == ("operator", "("):
            tokens.next()
            self.block(tokens, live)
            if tokens.peek() is not None:
                tokens.next()
        elif kind in ("newline", "operator", "document"):
            tokens.next()
        else:
            self.condition_list(tokens, live)

    def say_doubt(self, tokens, what):
        """Names what is set where it is not certain that it is set."""
        words = [token[1][0][1] for token in tokens if token[0] == "word" and token[1] and token[1][0][0] == "plain"]
        names = sorted({found[0].rstrip("+=") for word in words if (found := ASSIGNS.match(word))})
        if names:
            self.notes.append(f"{what} and sets {', '.join(names)}")

    def expect(self, tokens, word):
        while (token := tokens.peek()) is not None:
            if token[0] == "word" and plain(token) == word:
                tokens.next()
                return
            if token[0] == "word" and plain(token) in RESERVED:
                return
            tokens.next()

    def branch(self, tokens, live):
        taken = False
        while True:
            line = tokens.next()[2]
            self.doubt = ""
            holds = self.condition(tokens, live and not taken)
            doubt = self.doubt
            self.expect(tokens, "then")
            begin = tokens.at
            self.block(tokens, live and not taken and holds)
            if live and not taken and doubt:
                self.say_doubt(
                    tokens.all[begin : tokens.at], f"line {line} depends on {doubt}, is read as {str(holds).lower()},"
                )
            taken = taken or holds
            token = tokens.peek()
            if token is None:
                return
            word = plain(token)
            if word == "elif":
                continue
            tokens.next()
            if word == "else":
                self.block(tokens, live and not taken)
                self.expect(tokens, "fi")
            return

    def condition(self, tokens, live):
        """Returns whether the commands before `then` or `do` succeed."""
        holds = True
        while (token := tokens.peek()) is not None and not (token[0] == "word" and plain(token) in ("then", "do")):
            if token[0] in ("newline", "document") or token[:2] == ("operator", ";"):
                tokens.next()
            elif token[0] == "operator" and token[1] not in ("&&", "||", "("):
                tokens.next()
            else:
                holds = self.condition_list(tokens, live)
        return holds

    def condition_list(self, tokens, live):
        """Runs `a && b || c`. Returns whether it succeeds."""
        holds, wanted = True, True
        while True:
            run = live and wanted
            status = self.simple(tokens, run)
            holds = status if run else holds
            token = tokens.peek()
            if token is None or token[0] != "operator" or token[1] not in ("&&", "||", "|", "|&"):
                return holds
            tokens.next()
            while tokens.peek() is not None and tokens.peek()[0] == "newline":
                tokens.next()
            wanted = {"&&": holds, "||": not holds}.get(token[1], wanted)
            if tokens.peek() is None:
                return holds
            if plain(tokens.peek()) == "{" or tokens.peek()[:2] == ("operator", "("):
                self.statement(tokens, live and wanted)
                if tokens.peek() is None or tokens.peek()[:2] not in (("operator", "&&"), ("operator", "||")):
                    return holds

    def loop(self, tokens, live):
        tokens.next()
        token = tokens.peek()
        if token is None:
            return
        name, words = plain(token), []
        tokens.next()
        while (token := tokens.peek()) is not None and token[0] == "word" and plain(token) != "do":
            words.append(tokens.next()[1])
        values = self.expand(words[1:]) if live and words else []
        self.expect(tokens, "do")
        begin = tokens.at
        for value in values[:64] or [None]:
            tokens.at = begin
            if value is not None:
                self.variables[name] = value
            self.block(tokens, live and value is not None)
        self.expect(tokens, "done")

    def choose(self, tokens, live):
        line = tokens.next()[2]
        self.doubt = ""
        subject = without_unknown(" ".join(self.expand([tokens.next()[1]], True))) if tokens.peek() else ""
        taken, doubt = False, self.doubt
        self.expect(tokens, "in")
        begin = tokens.at
        while (token := tokens.peek()) is not None and plain(token) != "esac":
            if token[0] == "newline" or token[:2] in (("operator", ";;"), ("operator", "(")):
                tokens.next()
                continue
            patterns = []
            while (token := tokens.peek()) is not None and token[:2] != ("operator", ")"):
                if token[0] == "word":
                    patterns += self.expand([token[1]], True)
                tokens.next()
            if tokens.peek() is not None:
                tokens.next()
            fits = not taken and any(fnmatch.fnmatchcase(subject, each) for each in patterns)
            before = tokens.at
            self.block(tokens, live and fits)
            taken = taken or fits
            if tokens.at == before and tokens.peek() is not None and plain(tokens.peek()) != "esac":
                tokens.next()
        if live and doubt:
            self.say_doubt(tokens.all[begin : tokens.at], f"line {line} depends on {doubt}, is read as empty,")
        self.expect(tokens, "esac")

    def define(self, tokens):
        if plain(tokens.peek()) == "function":
            tokens.next()
        if tokens.peek() is None:
            return
        name = plain(tokens.next())
        while (token := tokens.peek()) is not None and plain(token) != "{":
            if token[0] == "word":
                return
            tokens.next()
        if tokens.peek() is None:
            return
        tokens.next()
        begin = tokens.at
        self.block(tokens, False)
        self.functions[name] = tokens.all[begin : tokens.at]
        self.expect(tokens, "}")

    def simple(self, tokens, live):
        """Reads one command with its redirections; runs it if live. Returns whether it succeeds."""
        words, target, bodies = [], None, []
        while (token := tokens.peek()) is not None:
            kind, value, _ = token
            if kind == "arithmetic":
                tokens.next()
                if not words:
                    said = self.arithmetic(value[2:-2], True) if live else "0"
                    return not unknown_in(said) and said != "0"
            elif kind == "word" and plain(token) == "[[" and not words:
                inside = []
                tokens.next()
                while (token := tokens.peek()) is not None and plain(token) != "]]":
                    inside.append(token)
                    tokens.next()
                if token is not None:
                    tokens.next()
                return self.double_test(inside) if live else False
            elif kind == "word":
                tokens.next()
                words.append(value)
            elif kind == "operator" and value in (">", ">>", "<", "&>", ">&", "<&", "<<<"):
                tokens.next()
                if tokens.peek() is not None and tokens.peek()[0] == "word":
                    target = (value, tokens.next()[1])
            elif kind == "operator" and value == "(" and words:
                tokens.next()
            else:
                break
        if (token := tokens.peek()) is not None and token[0] == "newline" and tokens.ahead(1) == "document":
            at = tokens.at + 1
            while at < len(tokens.all) and tokens.all[at][0] == "document":
                bodies.append(tokens.all[at][1])
                at += 1
        if not live or (not words and target is None):
            if (
                not words
                and target is None
                and token is not None
                and tokens.peek() is token
                and token[0] == "operator"
                and token[1] not in (";", "&", "&&", "||", "|", "|&", ")", ";;")
            ):
                tokens.next()
            return True
        if bodies and target is not None and target[0] in (">", ">>"):
            kind, body = bodies[0]
            name = "".join(self.expand([target[1]]))
            self.files[name] = body if kind == "single" else self.text(body)
        return self.execute(words, bodies)

    def double_test(self, tokens):
        """Returns the truth of [[ ... ]]."""
        flat = []
        for kind, value, _ in tokens:
            flat += (
                [value] if kind == "operator" else [" ".join(self.expand_word(value, True))] if kind == "word" else []
            )
        return self.any_of(flat)

    def any_of(self, flat):
        parts, part = [], []
        for each in flat:
            if each == "||":
                parts, part = [*parts, part], []
            elif each not in ("(", ")"):
                part.append(each)
        return any(self.all_of(each) for each in [*parts, part])

    def all_of(self, flat):
        parts, part = [], []
        for each in flat:
            if each in ("&&", "-a"):
                parts, part = [*parts, part], []
            else:
                part.append(each)
        return all(self.test(each) for each in [*parts, part])

    def test(self, words):
        words = [without_unknown(each) for each in words]
        if words[:1] == ["!"]:
            return not self.test(words[1:])
        if "-o" in words[1:]:
            at = words.index("-o")
            return self.test(words[:at]) or self.test(words[at + 1 :])
        if words[:1] in (["-z"], ["-n"]) and not self.doubt.startswith("$("):
            self.doubt = ""  # whether a variable is set is what is asked
        if len(words) == 2 and words[0].startswith("-"):
            if words[0] in ("-z", "-n"):
                return (words[1] == "") == (words[0] == "-z")
            if words[0] == "-v":
                return self.lookup(words[1]) is not None
            self.doubt = self.doubt or f"the file {words[1]}"
            return words[0] in ("-f", "-e", "-s") and words[1] in self.files
        if len(words) == 1:
            return words[0] not in ("", "-n", "-f", "-d", "-e", "-s")
        if len(words) >= 3:
            left, sign, right = words[0], words[1], " ".join(words[2:])
        elif len(words) == 2 and words[0] in ("=", "==", "!="):  # an unset variable leaves nothing on its left
            left, sign, right = "", words[0], words[1]
        elif len(words) == 2:
            left, sign, right = words[0], words[1], ""
        else:
            return False
        if sign in ("=", "=="):
            return fnmatch.fnmatchcase(left, right)
        if sign == "!=":
            return not fnmatch.fnmatchcase(left, right)
        if sign == "=~":
            try:
                return re.search(right, left) is not None
            except re.error:
                return False
        numbers = [re.fullmatch(r"\s*-?\d+\s*", each) for each in (left, right)]
        if not all(numbers):
            return False
        a, b = int(left), int(right)
        return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(sign, False)

    def assign(self, word):
        """Carries out one assignment."""
        head = word[0][1]
        found = re.match(r"([A-Za-z_]\w*)(\[([^]]*)\])?(\+?)=", head)
        name, index, adds = found[1], found[3], found[4] == "+"
        rest = [("plain", head[found.end() :]), *word[1:]]
        if any(kind == "array" for kind, _ in rest):
            items = self.expand([each for kind, words in rest if kind == "array" for each in words])
            before = self.lookup(name) if adds else []
            before = [] if before is None else before if isinstance(before, list) else [before]
            self.variables[name] = [*before, *items]
            return
        quoted = [("double", text) if kind == "plain" else (kind, text) for kind, text in rest]
        value = "".join(self.expand_word(quoted))
        if unknown_in(value) and name in self.given:
            value = self.given[name]
        if index is not None:
            items = self.lookup(name)
            items = list(items) if isinstance(items, list) else []
            at = self.arithmetic(index)
            if re.fullmatch(r"\d{1,3}", at):
                items += [""] * (int(at) + 1 - len(items))
                items[int(at)] = value
            self.variables[name] = items
        elif adds and isinstance(self.lookup(name), list):
            self.variables[name] = [*self.lookup(name), value]
        else:
            self.variables[name] = (str(self.lookup(name) or "") if adds else "") + value

    def execute(self, words, bodies):
        while words and words[0] and words[0][0][0] == "plain" and ASSIGNS.match(words[0][0][1]):
            self.assign(words[0])
            words = words[1:]
        command = self.expand(words)
        if not command:
            return True
        name = command[0].rpartition("/")[2]
        while name in ("time", "exec", "nohup", "command", "builtin", "!", "sudo") and len(command) > 1:
            command = command[1:]
            name = command[0].rpartition("/")[2]
        if name in ("export", "local", "declare", "readonly", "typeset", "let"):
            for word in words[1:]:
                if word and word[0][0] == "plain" and ASSIGNS.match(word[0][1]):
                    self.assign(word)
            return True
        if name == "unset":
            for each in command[1:]:
                self.variables.pop(each, None)
            return True
        if name in ("[", "test"):
            said = self.expand(words, True)[1:]
            return self.any_of(said[: -1 if name == "[" else None])
        if name in ("true", ":", "false"):
            return name != "false"
        if name == "set":
            if "--" in command:
                self.arguments = command[command.index("--") + 1 :]
            return True
        if name == "shift":
            self.arguments = self.arguments[1:]
            return True
        if name == "return":
            raise Stopped
        if name in ("echo", "printf", "exit", "cd", "mkdir", "rm", "cat", "sed", "tee", "pip", "ls", "kill", "read"):
            return True
        if name in self.functions:
            self.call(name, command[1:])
            return True
        if name == "eval":
            self.run(" ".join(command[1:]))
            return True
        if name in ("source", "."):
            self.source(command[1:])
            return True
        inner = self.inner_text(command)
        if inner is not None:
            front = len(self.commands)
            self.run(inner)
            for each in self.commands[front:]:
                each[:0] = command[: command.index("-c")] if "-c" in command else command[:-1]
            return True
        if name in ("bash", "sh", "sbatch", "srun", "zsh") and bodies:
            for kind, body in bodies:
                self.run(body if kind == "single" else self.text(body))
        self.commands.append(command)
        self.doubt = self.doubt or f"`{readable(' '.join(command))[:60]}`"
        return True

    def inner_text(self, command):
        """Returns the script that a shell in the command gets: bash -c TEXT, or a file."""
        for at, word in enumerate(command[:-1]):
            if word.rpartition("/")[2] in ("bash", "sh", "zsh"):
                rest = command[at + 1 :]
                if any(each.startswith("-") and each.endswith("c") and not each.startswith("--") for each in rest[:-1]):
                    at = next(i for i, each in enumerate(rest) if each.startswith("-") and each.endswith("c"))
                    return rest[at + 1]
                files = [each for each in rest if not each.startswith("-")][:1]
                text = self.file(files[0]) if files and at == 0 else None
                if text is not None:
                    self.arguments = rest[rest.index(files[0]) + 1 :]
                    return text
        return None

    def file(self, name):
        return self.files.get(name) if name in self.files else None if unknown_in(name) else self.read(name)

    def source(self, names):
        text = self.file(names[0]) if names else None
        if text is None:
            self.notes.append(f"source {readable(' '.join(names))}: is not here; what it sets is not known")
        else:
            self.run(text)

    def call(self, name, arguments):
        kept, self.arguments, outside, self.outside = self.arguments, arguments, self.outside, False
        self.depth += 1
        if self.depth > DEEPEST:
            raise Failure("the script calls itself without end; give the flags themselves")
        try:
            self.block(Tokens(self.functions[name]), True)
        except Stopped:
            pass
        finally:
            self.arguments, self.outside = kept, outside
            self.depth -= 1


class Tokens:
    def __init__(self, tokens):
        self.all, self.at = tokens, 0

    def peek(self):
        return self.all[self.at] if self.at < len(self.all) else None

    def next(self):
        self.at += 1
        return self.all[self.at - 1]

    def ahead(self, count):
        return self.all[self.at + count][0] if self.at + count < len(self.all) else None

    def starts_function(self):
        after = self.all[self.at + 1 : self.at + 3]
        return [each[:2] for each in after] == [("operator", "("), ("operator", ")")] and re.fullmatch(
            r"[\w.-]+", plain(self.peek())
        )


def plain(token):
    """Returns the text of an unquoted word, or ''."""
    if token[0] != "word" or len(token[1]) != 1 or token[1][0][0] != "plain":
        return ""
    return token[1][0][1]


def slurm_lines(text):
    """Returns {option: value} of the #SBATCH lines."""
    found = {}
    short = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus"}
    for line in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        for at, word in enumerate(words):
            name, equals, value = word.partition("=")
            if word[:2] in short and not word.startswith("--"):
                name, equals, value = short[word[:2]], word[2:], word[2:]
            if name.startswith("--"):
                found[name] = value if equals else words[at + 1] if at + 1 < len(words) else ""
    return found
