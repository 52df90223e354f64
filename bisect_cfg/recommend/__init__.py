"""Safe values for the settings that a correction names: what to use instead, as near to what the user wanted as trains.

`proposals` says where the remedies begin, `remedy` follows one of them to verified values, `order` says which comes
next; all three are pure functions of the runs so far (`attempts`). `isolated` puts together what they decide from and
judges the runs, `safe_trials` keeps them in the study, `edits` finds the lines of the user's files to change.
`study.recommend` runs it all.
"""
