"""What the user is told: while the work goes on (`live`), and at its end.

`answer` is result.json, made by `answer_of`; `lines` says it in words. `terminal`, `html`, `markdown`, `notebook` and
`json_lines` show the same answer and lines, each in its own form.
"""
