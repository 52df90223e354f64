"""What the user is told: while the work goes on, and at its end.

`answer` makes result.json and the other files, with `recommendation` for its larger part; `terminal`,
`safe_values` and `examination` print. `listener` is what the phases tell of, `events` what a bisection tells. Texts
of others reach the terminal through `console` alone.
"""
