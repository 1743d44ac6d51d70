#!/usr/bin/env python3
"""Prints one page: what the rows in RESULTS say beside what the code assumes (expectations.txt), and how each step ended.
Status 1: an assumption does not hold, or a step failed.

    page.py RESULTS [--known FILE]      FILE: rows that are known to differ here, each with its answer and the reason
"""

import re
import sys
from pathlib import Path

HEADER = ["question", "answer", "evidence"]
NOT_ASKED = ("not asked", "absent")


def cells(line, count):
    return [cell.strip() for cell in line.split(" | ", count - 1)]


def read_table(path, count):
    lines = path.read_text(errors="replace").splitlines()
    table = [cells(line, count) for line in lines if line.strip() and not line.startswith("#")]
    for row in table:
        if len(row) != count or not all(row):
            sys.exit(f"{path}: not {count} cells: {' | '.join(row)}")
    return table


def read_rows(folder):
    """Every row of every step: question -> (answer, evidence). A file of rows begins with their header."""
    rows = {}
    for path in sorted(folder.glob("*.txt")):
        lines = path.read_text(errors="replace").splitlines()
        begin = next((number for number, line in enumerate(lines) if cells(line, 3) == HEADER), None)
        for line in lines[begin + 1 :] if begin is not None else []:
            row = cells(line, 3)
            if len(row) == 3:
                rows[row[0]] = (row[1], row[2])
    return rows


def number(text):
    found = re.match(r"(?:refusals, )?x?(-?[0-9.]+)", text)
    return float(found[1]) if found else None


def judge(expected, answer):
    """holds, differs, or shown (nothing is assumed)."""
    if expected == "decides":
        return "differs" if answer in ("hangs", "no answer", "fails") else "shown"
    if expected.startswith("about "):
        return "shown" if number(answer) is not None else "differs"
    for word, holds in (("at least ", lambda a, b: a >= b), ("at most ", lambda a, b: a <= b)):
        if expected.startswith(word):
            figure = number(answer)
            bound = number(expected[len(word) :])
            good = figure is not None and not answer.startswith("refusals") and holds(figure, bound)
            return "holds" if good else "differs"
    return "holds" if answer in expected.split(" or ") else "differs"


def main():
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(__doc__)
    folder = Path(arguments[0])
    known = {}
    if arguments[1:2] == ["--known"]:
        known = {row[0]: (row[1], row[2]) for row in read_table(Path(arguments[2]), 3)}
    here = Path(__file__).resolve().parent
    expectations = read_table(here / "expectations.txt", 4)
    rows = read_rows(folder)
    summary = folder / "summary.txt"
    steps = summary.read_text().splitlines() if summary.exists() else []

    lines, reasons = [], {}
    count = dict.fromkeys(("holds", "differs", "shown", "known", "not asked"), 0)
    for question, expected, assumption, where in expectations:
        answer, evidence = rows.get(question, ("not asked", "no step of this run asks it"))
        if answer in NOT_ASKED:
            verdict = "not asked"
            reasons.setdefault(f"{answer}: {evidence}", []).append(question)
        else:
            verdict = judge(expected, answer)
        if question in known:
            if verdict == "differs" and answer == known[question][0]:
                verdict = "known"
                evidence = known[question][1]
            elif verdict != "not asked":
                verdict = "differs"
                evidence = f"expected here, as known: {known[question][0]}; {evidence}"
        count[verdict] += 1
        if verdict == "not asked":
            continue
        mark = {"holds": "ok", "differs": "NOT", "shown": "  ", "known": "known"}[verdict]
        lines.append(f"{mark:<5} {question:<82.82} {answer:<34.34} {expected:<34.34} {where}")
        if verdict in ("differs", "known"):
            lines.append(f"      -> {assumption}: {evidence}")
    for question in known.keys() - {row[0] for row in expectations}:
        count["differs"] += 1
        lines.append(f"NOT   {question}: listed as known, and nothing assumes it")

    print(f"driver: {' | '.join(rows.get('driver', ('no step asked for it', '')))}")
    print(f"{'':<5} {'question':<82} {'answer':<34} {'the code assumes':<34} where")
    print("\n".join(lines))
    print("\nnot asked:")
    for reason, questions in reasons.items():
        print(f"      {len(questions):>3} {reason}: {questions[0]}{' …' if len(questions) > 1 else ''}")
    print("\nsteps (their output lies beside this page):")
    failed = 0
    for step in steps:
        good = ": status 0 " in step or ": not run" in step
        failed += not good
        print(f"{'ok' if good else 'NOT':<5} {step}")
    unknown = len(rows.keys() - {row[0] for row in expectations})
    print(
        f"\n{count['holds']} assumptions hold, {count['differs']} do not, {count['known']} differ as is known of this driver, "
        f"{count['shown']} answers decide something, {count['not asked']} were not asked; {unknown} more answers lie in the "
        f"steps' files; {failed} of {len(steps)} steps failed"
    )
    if not rows or not steps:
        sys.exit(f"{folder}: there are no results")
    sys.exit(1 if count["differs"] or failed else 0)


if __name__ == "__main__":
    main()
