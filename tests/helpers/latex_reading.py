"""Checks whether LaTeX is well formed, for machines without LaTeX."""

import re

_KNOWN = frozenset({
    "begin", "end", "caption", "label", "centering", "small", "footnotesize", "scriptsize", "tiny", "setlength",
    "tabcolsep", "toprule", "midrule", "bottomrule", "cmidrule", "multicolumn", "rotatebox", "resizebox", "linewidth",
    "textbf", "underline", "par", "parbox", "smallskip", "raggedright", "noindent", "endfirsthead", "endhead",
    "endlastfoot", "textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar",
    "textquotedbl", "ldots", "pm", "rightarrow", "cdot", "leq", "geq", "approx", "times", "alpha", "sigma", "dagger",
})  # fmt: skip


def problems(text: str) -> list[str]:
    """Return the errors in the environments, braces, mathematics, rows and characters of ``text``."""
    found = []
    text = re.sub(r"(?m)(?<!\\)%.*$", "", text)
    found += [f"not ASCII or Latin-1: {c!r}" for c in sorted(set(text)) if ord(c) > 0xFF]
    found += [f"unknown command: {name}" for name in sorted(set(re.findall(r"\\([A-Za-z]+)", text)) - _KNOWN)]
    plain = re.sub(r"\\[\\&%$#_{}]", lambda match: "\\\\" if match[0] == r"\\" else "x", text)
    depth = 0
    for c in plain:
        depth += (c == "{") - (c == "}")
        if depth < 0:
            found.append("a brace too many is closed")
            break
    if depth > 0:
        found.append("a brace is left open")
    if plain.count("$") % 2:
        found.append("mathematics is left open")
    if "#" in plain:
        found.append("a bare #")
    outside = re.sub(r"\$[^$]*\$", "", re.sub(r"\\label\{[^}]*\}", "", plain))
    found += [f"a bare {c}" for c in "_^" if c in outside]
    stack: list[str] = []
    for verb, name in re.findall(r"\\(begin|end)\{([a-z]+\*?)\}", text):
        if verb == "begin":
            stack.append(name)
        elif stack and stack[-1] == name:
            stack.pop()
        else:
            found.append(f"{name} is closed and was not open last")
    return found + [f"{name} is left open" for name in stack] + _rows(plain)


def _rows(plain: str) -> list[str]:
    """Yield an error for each row with more or fewer cells than the table has columns."""
    found = []
    for match in re.finditer(r"\\begin\{(tabular|longtable)\}\{([lrc]+)\}(.*?)\\end\{\1\}", plain, re.DOTALL):
        columns, body = len(match[2]), match[3]
        body = re.sub(r"\\caption\{.*?\\label\{[^}]*\}\\\\", "", body, flags=re.DOTALL)
        body = re.sub(r"\\(top|mid|bottom)rule|\\cmidrule\(lr\)\{[^}]*\}|\\end(first|last)?(head|foot)", "", body)
        for row in filter(None, map(str.strip, body.split(r"\\"))):
            cells = row.count("&") + 1 + sum(int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", row))
            if cells != columns:
                found.append(f"{cells} cells in {columns} columns: {row[:80]}")
    return found
