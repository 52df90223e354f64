"""Safe values for the settings that a correction names: what to use instead, as near to what the user wanted as trains.

`proposals` says where the remedies begin, `remedy` follows one of them to verified values (`ranges` says how far a
number can go, `schedule` how long a run must be), `order` says which comes next: pure functions of the runs so far.
`alternatives` holds what is known of settings that are no numbers. `terms` puts together what all of them decide from,
and judges the runs. `study.recommend` makes the runs.
"""
