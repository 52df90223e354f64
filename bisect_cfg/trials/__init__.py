"""Run one configuration apart from us, and come back with an outcome.

What a runner is, `trial_runner` says. There are two: `runner` for a training script, `command_runner` for any command;
`function` runs a Python function. Of a script's trial, `plan` says what it is to be, `forking` and `server` how its
process comes to be, `process`, `training` and `ranks` follow it to its end (`patience`: when silence is a hang),
`files` and `runs` read what it left, `verdict` says what that means. Whatever is started descends from
the supervisor of the study (`bisect_cfg.runner`), so that nothing of it outlives the tool.
"""
