"""What the tool and the probe say to each other: orders one way, events and answers the other. All of it is here.

- **Orders** (`Cold`, `Serve`, `Inspect`) lie in the file that ``BISECT_CFG_PROBE`` names, as one JSON object.
- A waiting server is **asked** (`Trial`, `Resolve`, `ForkPoint`) and **answers** (`Ready`, `Forked`, `Ended`,
  `Resolved`) over a socket, one JSON object a line. End of file: the tool is gone, and the server goes with its
  children.
- **Events** are what a run tells of itself, one JSON object a line of ``events.jsonl``. Lines that are none, or of a
  kind that this version does not know, are passed over: studies of other versions are read, and the script can write
  into that file as well.

Each is a frozen dataclass, and its tag in JSON stands behind its name. Who adds a field that an older study lacks gives
it a default. The tool imports this module, too: the standard library only, and syntax of Python 3.9 (annotations are
not evaluated there).
"""

from __future__ import annotations

import functools
import re
import signal
import sys
from dataclasses import asdict, dataclass, field, fields, is_dataclass

if sys.version_info >= (3, 11):  # noqa: UP036 - this module is loaded by older ones, too
    from typing import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


Encoded = object
"""A setting's value as `values.encode` writes it: what JSON can hold."""

Frame = tuple[str, int, str]
"""A line of a Python stack: file, number, function."""

STACK_SIGNAL = signal.SIGRTMIN + 9
"""A real-time signal that nobody uses: asks a silent process for the Python stacks of all its threads."""

HEARTBEAT_FILE, HEARTBEAT_SIZE, HEARTBEAT_NAME = "heartbeat", 64, slice(16, 48)
"""The file in a trial's folder that `heartbeat` counts in: 8 bytes, the machine's order; and where the name of what is
going on stands in it."""

ORDERS_FILE, EVENTS_FILE, METRICS_FILE = "orders.json", "events.jsonl", "metrics.jsonl"
STACKS_FILE, NATIVE_FILE, PLACE_FILE = "stacks.txt", "native.txt", "place.json"
"""Of a trial's folder: what faulthandler writes, what gdb says, and where a process was that died (`LastOperation`)."""

CHECKPOINTS_FOLDER = "checkpoints"
"""Of the first run's folder: where it saves checkpoints of ours."""

STATE_FILE = "trainer_state.json"
"""Of a checkpoint: where `Trainer` says at which step it was, and what it had logged."""

GO_ON_FILE = "go-on-{}"
"""Of a trial's folder: it lets a first run go on after the training of this number."""

IN_EACH_TRAINING = REWARD_CALL, LOGGING = "reward call", "logging"
"""Slow phases, as `heartbeat` names them, that no training does without."""

NON_FINITE = "non-finite parameters"
"""Why a training was stopped whose weights hold a NaN or an infinity."""

NAMESPACE = {"args": "args", "modelcfg": "model", "load": "model", "peft": "peft", "script": "script", "env": "env"}
"""Kind of an object -> the first part of its settings' names."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Message:
    """Whatever crosses the border. What it is stands in its JSON under `key`, and is the same for all of a family."""

    key = tag = ""
    known: dict[str, type] = {}

    def __init_subclass__(cls, key: str = "", tag: str = "") -> None:
        if key:
            cls.key, cls.known = key, {}
        else:
            cls.tag, cls.known[tag] = tag, dataclass(frozen=True)(cls)


class Orders(Message, key="level"):
    """Of a process that is started."""


class Request(Message, key="op"):
    """To a waiting server."""


class Reply(Message, key="says"):
    """From it."""


class Event(Message, key="event"):
    """What happened in a run."""

    time = 0.0
    """Seconds since the trial's process, or fork, began."""


def to_json(message):
    """A message, or another dataclass of these, as plain data."""
    data = asdict(message)
    return {message.key: message.tag, **data} if isinstance(message, Message) else data


def event_row(event, seconds):
    """Return an event as a line's data; `seconds` since the trial began."""
    return {"event": event.tag, "time": round(seconds, 4), **asdict(event)}


def read(family, data):
    """A message of a family (`Orders`, `Request`, `Reply`) of plain data.

    Raises:
        KeyError, TypeError: it is none.
    """
    return from_json(family.known[data[family.key]], data)


def from_json(cls, data):
    """Return a dataclass of plain data; what it does not know is left out.

    Raises:
        TypeError: something is missing, or is no mapping.
    """
    if not isinstance(data, dict):
        raise TypeError(f"{cls.__name__}: not an object")
    given = {one.name: (_class_in(str(one.type)), data[one.name]) for one in fields(cls) if one.name in data}
    return cls(**{name: value if kind is None or value is None else from_json(kind, value)
                  for name, (kind, value) in given.items()})  # fmt: skip


@functools.cache
def _class_in(annotation):
    """The dataclass that an annotation speaks of, or None. It is a text, which Python 3.9 could not evaluate."""
    named = (globals().get(word) for word in re.findall(r"\w+", annotation))
    return next((one for one in named if is_dataclass(one)), None)


# ------------------------------------------------------------------------------------------------------- one trial


@dataclass(frozen=True)
class Targets:
    """Which objects a trial changes."""

    # the number of the training that the trial is about, counted from 1 in the process that trains; None: the first
    # that fails
    training: int | None = None
    trainer: str | None = None  # the name of its class, if that is known
    # kind -> the index of the one object, in order of creation; a kind that is not there: all of it. "words": of the
    # command line, -1 where a parser takes them
    objects: dict[str, int] = field(default_factory=dict)
    via: dict[str, str] = field(default_factory=dict)  # of a name that several kinds know, which of them owns it


@dataclass(frozen=True)
class InputPlaces:
    """Where a file that is opened may be an input: folders, and single files; absolute paths."""

    folders: list[str]
    files: list[str]


@dataclass(frozen=True)
class InstrumentOrders:
    """What a run is to find out besides: about a failure of this kind, from this optimizer step on.

    `gdb` is the path of that program, None where there is none.
    """

    kind: str
    from_step: int
    gdb: str | None = None


@dataclass(frozen=True)
class Intake:
    """How a training takes its data: so many `prompts` (rows of the dataset) at a time, which are so many `batches` of
    the training (TRL uses completions several times), `accumulated` of which are an optimizer step."""

    prompts: int
    batches: int
    accumulated: int


@dataclass(frozen=True)
class Origin:
    """Where a trial begins, if not at step 0."""

    # a folder that `Trainer` has saved; None: the weights are those of step 0, and only the data (and the schedule) are
    # as far as at that step
    checkpoint: str | None
    step: int  # the optimizer step after which the trial begins
    intake: Intake | None = None  # of the training that came there; None: as the trial's own
    draw: int = 0  # without a checkpoint, which random numbers the trial draws: any other number, others


@dataclass(frozen=True)
class FailingData:
    """What the failing run took from where trials begin to the step at which it failed. Every trial takes it first, in
    whatever batches its settings make: what only moves a row to another step is no cure."""

    rows: list[int]  # of the training set, in their order; [] where they have no names, or it did not die
    # in which it took them: a trial makes so many more as it needs to come through them; None: that says nothing
    steps: int | None = None
    intake: Intake | None = None  # how it took them; None: as the trial does
    evaluates: int | None = None  # it died in an evaluation, after so many steps: what evaluates at all does it then
    longest: bool = False  # in place of `rows`, which nobody knows yet: the longest, as many as a step takes


@dataclass(frozen=True)
class CheckpointOrders:
    """A first run saves checkpoints of its own: that take so many bytes together at most, and, if the step is known at
    which it fails, one shortly `before` that."""

    most_bytes: int
    before: int | None = None


@dataclass(frozen=True)
class TrialOrders:
    """One trial."""

    folder: str  # of the trial
    overrides: dict[str, Encoded] = field(default_factory=dict)  # full name of a setting -> encoded value
    targets: Targets | None = None  # which objects they are for; None: of each kind all
    steps: int | None = None  # optimizer steps, None for all that the script makes
    opened: InputPlaces | None = None  # where what is opened is noted; None: nowhere
    stop_when_non_finite: bool = True  # end the run as soon as its weights are not finite
    env: dict[str, str | None] = field(default_factory=dict)  # further environment variables; None unsets one
    started: bool = False  # whether a process that the script starts is the one that trains
    instruments: InstrumentOrders | None = None  # None for an ordinary trial
    threads: int | None = None  # torch has at most so many; None: as it has them
    heartbeat: bool = True  # whether signs of life are counted
    launched: bool = False  # whether the process is forked in place of one that a launcher would start
    port: int | None = None  # where processes that the script starts itself meet; None: where it says
    processes: int | None = None  # how many train together; None: as many as the user's command starts
    launcher: str | None = None  # what starts them in place of what the user typed; None: what the user typed
    origin: Origin | None = None  # where the training begins; None: at its beginning
    failing: FailingData | None = None  # what it takes first; None: what its sampler gives
    checkpoints: CheckpointOrders | None = None  # how checkpoints are saved on the way; None: not at all
    least_seconds: float = 0.0  # of training that the run makes at least, also after `steps`
    # row of the dataset, as text -> the row that is taken in its place; None: the text in the rows of a step is not
    # measured either
    exchanged: dict[str, int] | None = None


# ---------------------------------------------------------------------------------------------------------- orders


class Cold(Orders, tag="cold"):
    """Run one trial. `restore`: environment variables as the user has them, None for absent."""

    restore: dict[str, str | None]
    request: TrialOrders


class Serve(Orders, tag="imports"):
    """Import these modules, then wait at this socket (a file descriptor) for what is asked."""

    restore: dict[str, str | None]
    modules: list[str]
    socket: int = -1


class Inspect(Orders, tag="inspect"):
    """Tell what is set and where it runs, and end before the training (`dry_run`).

    `launched` says whether the command is a launcher, so that the first process need not be the one that trains.
    """

    restore: dict[str, str | None]
    folder: str
    launched: bool = False


# ------------------------------------------------------------------------------------------- a server and its tool


@dataclass(frozen=True)
class BuildRequest:
    """A configuration object to be built: of this class, from what the user passed, with changes; field -> encoded.

    `world_size`: how many processes are to train with it.
    """

    module: str
    cls: str
    raw: dict[str, Encoded]
    overrides: dict[str, Encoded]
    world_size: int = 1


@dataclass(frozen=True)
class BuildAnswer:
    """What a configuration object resolves to, or why it cannot be built."""

    values: dict[str, Encoded] | None = None  # field -> encoded value; None where it cannot be built
    error: str | None = None  # the library's own words; None where it can
    # the fields that the library looked at: a configuration that agrees in those resolves, or fails, in the same way
    reads: list[str] = field(default_factory=list)
    # whether the error is none of the library's: building it ended the process, or did not end
    unanswered: bool = False


class Trial(Request, tag="trial"):
    """Fork a trial: `Forked` at once, `Ended` when the child has ended. `mark`: what its environment is to hold, as
    ``NAME=value``."""

    id: int
    request: TrialOrders
    mark: str


class Resolve(Request, tag="resolve"):
    """Build a configuration object in a child of the server's own: `Resolved`. It may take so many seconds."""

    id: int
    item: BuildRequest
    seconds: float


class ForkPoint(Request, tag="advance"):
    """Run the script up to this object, the first that a trial may change, and wait there: `Ready`."""

    kind: str
    index: int


class Ready(Reply, tag="ready"):
    """The server waits. `unsound`: why forking here would not be sound, None if it is."""

    unsound: str | None = None


class Forked(Reply, tag="forked"):
    """The trial runs in this process."""

    id: int
    pid: int


class Ended(Reply, tag="ended"):
    """The trial's process has ended; a negative code is the signal that killed it."""

    id: int
    code: int


class Resolved(Reply, tag="resolved"):
    """What the object came to."""

    id: int
    result: BuildAnswer


# ------------------------------------------------------------------------------------ events: processes and settings


class Started(Event, tag="started"):
    """The process of a trial has its files and handlers."""

    pid: int


class RankBegin(Event, tag="rank"):
    """A process that a launcher has started, or that is forked in place of one."""

    pid: int  # of it
    rank: int  # its number
    world_size: int  # how many there are to be
    words: list[str] = field(default_factory=list)  # its command line; only if a launcher has started it
    given: dict[str, str] = field(default_factory=dict)  # what the launcher has added to its own environment for it


class Prepared(Event, tag="prepared"):
    """What the script set up before it imported the first library: variables, and entries of `sys.path`."""

    variables: list[str]
    path: list[str]


class ConfigBuilt(Event, tag="config"):
    """A configuration object is being built: what the user passed, and the defaults of the library's class.

    `others`: what the user passed besides and a trial does not vary. `place`: the line of the user's that builds it.
    `grpo`: whether it is a training config of GRPO. `handed`: fields that hold the very value of an own setting of the
    script's, and its name. `flags`: what the command line calls an own setting. `words`: whether these own settings are
    words of the command line that the user's code takes apart; of several such events the last one is in force.
    """

    kind: str
    index: int
    cls: str
    module: str
    raw: dict[str, Encoded]
    defaults: dict[str, Encoded]
    types: dict[str, str]
    others: list[str] = field(default_factory=list)
    place: tuple[str, int] | None = None
    grpo: bool = False
    handed: dict[str, str] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)
    words: bool = False


class OwnDefaults(Event, tag="own_defaults"):
    """A class of the script's own is filled from keys of its files: its fields' defaults are theirs."""

    kind: str
    defaults: dict[str, Encoded]


class ConfigResolved(Event, tag="resolved"):
    """What the library made of it; of the script's own settings, those that it was handed with the values of the trial.

    `devices`: how many GPUs this one process uses. Of more than one transformers makes a plain `nn.DataParallel`.
    """

    kind: str
    index: int
    values: dict[str, Encoded]
    devices: int = 1


class ConfigInvalid(Event, tag="invalid"):
    """Or why it refused it."""

    type: str
    message: str


class Assigned(Event, tag="assigned"):
    """The script has set a field of an object that was built: a setting like any other."""

    kind: str
    index: int
    name: str
    value: Encoded = None


class Changed(Event, tag="changed"):
    """A field was changed in a way that a trial cannot follow."""

    kind: str
    index: int
    name: str
    value: Encoded = None


class Opened(Event, tag="opened"):
    """A file was read ("r"), written ("w"), or imported ("m"; `path` is the module's source).

    `stamp`: its time of change in ns, its size and its inode, if it was read.
    """

    path: str
    mode: str
    stamp: tuple[int, int, int] | None = None


class Skipped(Event, tag="skipped"):
    """A call that would have left this machine was answered here."""

    call: str


class ResumeSkipped(Event, tag="resume_skipped"):
    """The script would have gone on from this checkpoint; the trial begins fresh."""

    path: str


class OtherSchedule(Event, tag="other_schedule"):
    """The schedule of the training is not the one that was built for its settings, but one that the script has loaded:
    its base rate and its steps so far, and those of the one that was built."""

    rate: float
    place: int
    own_rate: float
    own_place: int


# -------------------------------------------------------------------------------------------- events: the training


class TrainerBuilt(Event, tag="trainer"):
    """A trainer is being built with this training config; None if that was not seen being built."""

    args: int | None = None


class TrainBegin(Event, tag="train_begin"):
    """The training under study begins."""

    number: int = 1  # of this training, counted from 1
    pid: int | None = None  # of this process
    parent: int | None = None  # of the process that started it
    first: bool = True  # whether it is the first process of the run
    forked: bool = False  # whether it is a fork of that one, and has what that had imported
    args: int | None = None  # index of the training config that the trainer got; None if it was not seen being built
    modelcfg: int | None = None  # of the last one of its kind
    peft: int | None = None  # the same
    adapted: bool = True  # whether a model has got that LoraConfig
    load: int | None = None  # of the `from_pretrained` call that made the model
    world_size: int = 1  # processes that train together
    trainer: str = ""  # name of its class
    dtype: str = ""  # of the model, "" if it has none
    modules: list[str] = field(default_factory=list)  # those imported of the packages that take long
    simulated: str | None = None  # what the script says of a fault that it simulates; None for honest ones
    environment: dict[str, object] = field(default_factory=dict)  # versions and devices
    # what a launcher may have been asked for, as accelerate has it
    in_force: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Weights:
    """So many numbers of a model's parameters are on this device ("cuda:0", "meta") in this dtype ("bfloat16")."""

    device: str
    dtype: str
    count: int


@dataclass(frozen=True)
class PlacedModel:
    """One of the models of a training."""

    role: str  # "policy", "reference", "reward", "value" or "teacher"
    name: str  # of its class
    wrapper: str  # the class of what the trainer has put around the policy, "" if nothing
    weights: list[Weights]  # where its parameters are


class Placed(Event, tag="placed"):
    """Where the models are, in this process, when the first step begins."""

    models: list[PlacedModel]


class Resumed(Event, tag="resumed"):
    """The training goes on from this checkpoint, after this optimizer step of its own; None: from its first weights,
    with the data of that step."""

    step: int
    checkpoint: str | None = None
    intake: Intake | None = None


class OriginRefused(Event, tag="origin_refused"):
    """The checkpoint could not be loaded into this training, of it its "weights", "optimizer", "scaler" or "random
    numbers"."""

    what: str
    type: str
    message: str


class TooShort(Event, tag="too_short"):
    """The training came to its own end before the step that a trial has to reach; by these settings."""

    step: int
    wanted: int
    settings: dict[str, Encoded]


class CheckpointSaved(Event, tag="checkpoint"):
    """A checkpoint of ours after this step; it took so many seconds. `kept`: the steps of those that are there now."""

    step: int
    path: str
    seconds: float
    kept: list[int]
    intake: Intake


class NoCheckpoints(Event, tag="no_checkpoints"):
    """None is saved, or none any more."""

    why: str


class PlannedSteps(Event, tag="schedule"):
    """How many optimizer steps the user's own run would have, and how it takes its data."""

    max_steps: int | None = None
    intake: Intake | None = None


class StepRows(Event, tag="step_rows"):
    """Rows of the dataset that an optimizer step is about, in this process; or those of the evaluation set that are
    evaluated now, after this step, none when that is over."""

    step: int  # counted from 1
    # their places in the dataset, from 0, also where others come in their place; of a step that uses completions
    # again, those they were made for
    rows: list[int]
    characters: list[int | None]  # the text in each; None where that is not known
    total: int | None = None  # rows of the dataset; None if it does not say
    evaluated: bool = False
    named: bool = True  # whether they have places: not in a stream, or in one of several evaluation sets


class NonFiniteParameters(Event, tag="non_finite_parameters"):
    """The first weight that holds a NaN or an infinity after this step."""

    step: int
    parameter: str


class TrainEnd(Event, tag="train_end"):
    """Training is over; `stopped`: by us, at the "horizon" or because of `NON_FINITE`."""

    steps: int
    stopped: str = ""


class Completed(Event, tag="completed"):
    """A training has come to its own end, and the script goes on: in a first run that waits to be told so by a file
    (`GO_ON_FILE`), or because the trial is about a later one."""

    number: int
    trainer: str
    args: int | None = None


class Raised(Event, tag="exception"):
    """An exception that nothing has caught."""

    type: str  # name of its class
    message: str  # its text
    frames: list[Frame]  # of the stack, outermost first
    final: bool = False  # whether it ends the run
    computing: str = ""  # the module of the model that was being computed; only with instruments
    beyond: str = ""  # of a table of embeddings, the index that it does not have


class Over(Event, tag="over"):
    """The training, in a process that the script started, has ended with this code; of several, this one. Written by
    `children` and `ranks`, and by the tool where only it knows."""

    code: int
    pid: int = 0


class Unwatched(Event, tag="unwatched"):
    """A process of the run has loaded torch without a probe, and was ended. Written by the tool."""

    command: str
    pid: int = 0


# ------------------------------------------------------------------------------------------- events of `dry_run`


class Arrived(Event, tag="arrived"):
    """A process of the command runs here: what `machine` says of the environment."""

    environment: dict[str, object]
    world_size: int
    rank: int = 0
    local_rank: int = 0
    host: str = ""


class Stopped(Event, tag="stopped"):
    """It has come to where it was to be ended. `trained_dtype`: of the weights that the trainer was given; `own`: the
    script's own settings, variables of the environment among them."""

    args: int | None = None
    trained_dtype: str | None = None
    own: dict[str, Encoded] = field(default_factory=dict)


# ------------------------------------------- events of `instruments`; `step` is the optimizer step, counted from 1


@dataclass(frozen=True)
class LastOperation:
    """What was being computed when a process died, as `PLACE_FILE` has it."""

    module: str = ""
    operation: str = ""
    step: int | None = None


class InstrumentsOn(Event, tag="instruments"):
    """The instruments are on."""

    step: int


class Operation(Event, tag="operation"):
    """An operation made "nan" or "inf" out of finite numbers.

    `backward` names its node in the backward pass, `forward` are the lines of the forward pass that it belongs to.
    """

    step: int
    operation: str
    what: str
    module: str = ""
    frames: list[Frame] = field(default_factory=list)
    backward: str = ""
    forward: list[str] = field(default_factory=list)


class Overflow(Event, tag="overflow"):
    """A module's output is not finite."""

    step: int
    module: str


class Update(Event, tag="update"):
    """What a step of the optimizer did to the weights."""

    step: int  # of the training
    optimizer: str  # its class
    parameter: str | None = None  # the weight that moved furthest for its size; None if none moved
    relative: float = 0.0  # so far
    broken: str = ""  # the first weight that is not finite any more, "" if there is none
    broken_count: int = 0  # how many are not
