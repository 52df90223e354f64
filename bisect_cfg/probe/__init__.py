"""The only code of ours inside the training process: capture, override, watch, stop early.

How it gets there. The tool runs the user's own command (``python train.py ...``) unchanged, with two
environment variables added: ``PYTHONPATH`` names the folder ``site`` beside this file, so that the interpreter
imports our ``sitecustomize`` before the script starts, and ``BISECT_CFG_PROBE`` names a JSON file that says
what to do (`boot.start`). ``sitecustomize`` loads this package under a private name and steps back; the script
sees neither variable, and what it starts gets both (`children`). Nothing of ``bisect_cfg`` has to be installed in the
user's environment.

What it then does. Import hooks (`imports`) wait for the few libraries we care about and wrap a handful of
methods: where a configuration object is built (`library_objects`), where training runs (`training`), where
something would be written to the outside world (`side_effects`). Everything seen goes into files of the trial's
folder, one JSON object a line (`record`); the tool reads along from outside.

Three starts of a trial share all of this (`serve`):

- ``cold``: the process runs one trial and ends.
- ``imports``: the process imports the heavy libraries while it is still inside ``sitecustomize``, then waits;
  each trial is a forked child that steps out of ``sitecustomize`` and runs the script from its first line.
- ``config``: the process runs the script up to the first configuration object that a trial may change,
  then waits; each trial is a forked child that goes on from there.

Only the standard library is used, plus whatever the target itself imports; the syntax stays at Python 3.9.
"""
