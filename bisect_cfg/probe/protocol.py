"""What the tool and the probe say to each other: orders one way, events and answers the other. All of it is here.

- **Orders** (`Cold`, `Serve`, `Inspect`) lie in the file that ``BISECT_CFG_PROBE`` names, as one JSON object.
- A waiting server is **asked** (`Trial`, `Resolve`, `Advance`) and **answers** (`Ready`, `Forked`, `Ended`, `Resolved`)
  over a socket, one JSON object a line. End of file: the tool is gone, and the server goes with its children.
- **Events** are what a run tells of itself, one JSON object a line of ``events.jsonl``. Lines that are none, or of a
  kind that this version does not know, are passed over: studies of other versions are read, and the script can write
  into that file as well.

Each is a dataclass, and its tag in JSON stands in front of it. Who adds a field that an older study lacks gives it a
default. The tool imports this module, too: the standard library only, and syntax of Python 3.9 (annotations are not
evaluated there).
"""

from __future__ import annotations

import functools
import re
import signal
from dataclasses import dataclass, field, fields, is_dataclass

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

IN_EACH_TRAINING = REWARD_CALL, LOGGING = "reward call", "logging"
"""Slow phases, as `heartbeat` names them, that no training does without."""

NAMESPACE = {"args": "args", "modelcfg": "model", "load": "model", "peft": "peft", "script": "script", "env": "env"}
"""Kind of an object -> the first part of its settings' names."""

GO_ON_FILE = "go-on-{}"
"""Of a trial's folder: it lets a first run go on after the training of this number."""


class Message:
    """Whatever crosses the border. What it is stands in its JSON under `key`, and is the same for all of a family."""

    key = tag = ""

    def __init_subclass__(cls, key: str = "", tag: str = "") -> None:
        if key:
            cls.key, cls.known = key, {}
        else:
            cls.tag = tag
            cls.known[tag] = cls


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


def to_json(message: object) -> dict[str, object]:
    """A message as plain data."""
    plain = {one.name: _plain(getattr(message, one.name)) for one in fields(message)}
    return {message.key: message.tag, **plain} if isinstance(message, Message) else plain


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return to_json(value) if is_dataclass(value) else value


def from_json(cls, data):
    """Return a dataclass of plain data; what it does not know is left out.

    Raises:
        TypeError: something is missing, or is no mapping.
    """
    if not isinstance(data, dict):
        raise TypeError(f"{cls.__name__}: not an object")
    return cls(**{one.name: _made(_inner(one.type), data[one.name]) for one in fields(cls) if one.name in data})


@functools.cache
def _inner(annotation):
    """The dataclass that an annotation speaks of, or None. It is a text, which Python 3.9 could not evaluate."""
    named = (globals().get(word) for word in re.findall(r"\w+", annotation))
    return next((one for one in named if is_dataclass(one)), None)


def _made(cls, value):
    if cls is None or value is None:
        return value
    return [from_json(cls, item) for item in value] if isinstance(value, list) else from_json(cls, value)


def read(family, data):
    """A message of a family (`Orders`, `Request`, `Reply`) of plain data.

    Raises:
        KeyError, TypeError: it is none.
    """
    return from_json(family.known[data[family.key]], data)


# ------------------------------------------------------------------------------------------------------- one trial


@dataclass(frozen=True)
class Targets:
    """Which objects a trial changes: by kind the index of the one, in order of creation; None for all of a kind.

    `via` says for a name that several kinds know which of them owns it. `training` is the number of the training that
    the trial is about, counted from 1 in the process that trains; None: the first of GRPO, or one before it that fails.
    `trainer` is the name of its class, if that is known.
    """

    training: int | None = None
    trainer: str | None = None
    args: int | None = None
    modelcfg: int | None = None
    peft: int | None = None
    load: int | None = None
    script: int | None = None
    env: int | None = None
    via: dict[str, str] = field(default_factory=dict)


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
    """Where a trial begins, if not at step 0.

    Attributes:
        checkpoint: a folder that `Trainer` has saved; None: the weights are those of step 0, and only the data (and the
            schedule) are as far as at that step.
        step: the optimizer step after which the trial begins.
        intake: of the training that came there; None: as the trial's own.
        until: the step of that training which a trial has to reach to say anything; None: any.
        draw: without a checkpoint, which random numbers the trial draws: any other number, others.
    """

    checkpoint: str | None
    step: int
    intake: Intake | None = None
    until: int | None = None
    draw: int = 0


@dataclass(frozen=True)
class CheckpointOrders:
    """A first run saves checkpoints of its own.

    Attributes:
        most_bytes: that they take together.
        before: the step at which it is known to fail: one is saved shortly before it; None if that is not known.
    """

    most_bytes: int
    before: int | None = None


@dataclass(frozen=True)
class TrialOrders:
    """One trial.

    Attributes:
        folder: of the trial.
        overrides: full name of a setting -> encoded value.
        targets: which objects they are for; None: of each kind all.
        steps: optimizer steps, None for all that the script makes.
        opened: where what is opened is noted; None: nowhere.
        stop_when_non_finite: end the run as soon as its weights are not finite.
        env: further environment variables; None unsets one.
        started: whether a process that the script starts is the one that trains.
        instruments: None for an ordinary trial.
        threads: torch has at most so many; None: as it has them.
        heartbeat: whether signs of life are counted.
        launched: whether the process is forked in place of one that a launcher would start.
        port: where processes that the script starts itself meet; None: where it says.
        processes: how many train together; None: as many as the user's command starts.
        launcher: what starts them in place of what the user typed; None: what the user typed.
        origin: where the training begins; None: at its beginning.
        checkpoints: how checkpoints are saved on the way; None: not at all.
        least_seconds: of training that the run makes at least, also after `steps`.
        exchanged: row of the dataset, as text -> the row that is taken in its place; None: the rows of a step are not
            noted either, unless the trial begins in the middle of the training.
    """

    folder: str
    overrides: dict[str, Encoded] = field(default_factory=dict)
    targets: Targets | None = None
    steps: int | None = None
    opened: InputPlaces | None = None
    stop_when_non_finite: bool = True
    env: dict[str, str | None] = field(default_factory=dict)
    started: bool = False
    instruments: InstrumentOrders | None = None
    threads: int | None = None
    heartbeat: bool = True
    launched: bool = False
    port: int | None = None
    processes: int | None = None
    launcher: str | None = None
    origin: Origin | None = None
    checkpoints: CheckpointOrders | None = None
    least_seconds: float = 0.0
    exchanged: dict[str, int] | None = None


# ---------------------------------------------------------------------------------------------------------- orders


@dataclass(frozen=True)
class Cold(Orders, tag="cold"):
    """Run one trial. `restore`: environment variables as the user has them, None for absent."""

    restore: dict[str, str | None]
    request: TrialOrders


@dataclass(frozen=True)
class Serve(Orders, tag="imports"):
    """Import these modules, then wait at this socket (a file descriptor) for what is asked."""

    restore: dict[str, str | None]
    modules: list[str]
    socket: int = -1


@dataclass(frozen=True)
class Inspect(Orders, tag="inspect"):
    """Tell what is set and where it runs, and end before the training (`dry_run`).

    `launched` says whether the command is a launcher, so that the first process need not be the one that trains.
    """

    restore: dict[str, str | None]
    folder: str
    launched: bool = False


# ------------------------------------------------------------------------------------------- a server and its tool


@dataclass(frozen=True)
class ForkPoint:
    """The first object of a script that a trial may change."""

    kind: str
    index: int


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
    """What a configuration object resolves to, or why it cannot be built.

    Attributes:
        values: field -> encoded value; None where it cannot be built.
        error: the library's own words; None where it can.
        reads: the fields that the library looked at: a configuration that agrees in those resolves, or fails, in the
            same way.
        unanswered: whether the error is none of the library's: building it ended the process, or did not end.
    """

    values: dict[str, Encoded] | None = None
    error: str | None = None
    reads: list[str] = field(default_factory=list)
    unanswered: bool = False


@dataclass(frozen=True)
class Trial(Request, tag="trial"):
    """Fork a trial: `Forked` at once, `Ended` when the child has ended. `mark`: what its environment is to hold, as
    ``NAME=value``."""

    id: int
    request: TrialOrders
    mark: str


@dataclass(frozen=True)
class Resolve(Request, tag="resolve"):
    """Build a configuration object in a child of the server's own: `Resolved`. It may take so many seconds."""

    id: int
    item: BuildRequest
    seconds: float


@dataclass(frozen=True)
class Advance(Request, tag="advance"):
    """Run the script up to this point and wait there: `Ready`."""

    fork_at: ForkPoint


@dataclass(frozen=True)
class Ready(Reply, tag="ready"):
    """The server waits at "imports", or at an object. `unsound`: why forking here would not be sound, None if it is."""

    position: str
    unsound: str | None = None


@dataclass(frozen=True)
class Forked(Reply, tag="forked"):
    """The trial runs in this process."""

    id: int
    pid: int


@dataclass(frozen=True)
class Ended(Reply, tag="ended"):
    """The trial's process has ended; a negative code is the signal that killed it."""

    id: int
    code: int


@dataclass(frozen=True)
class Resolved(Reply, tag="resolved"):
    """What the object came to."""

    id: int
    result: BuildAnswer


# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Started(Event, tag="started"):
    """The process of a trial has its files and handlers."""

    pid: int


@dataclass(frozen=True)
class RankBegin(Event, tag="rank"):
    """A process that a launcher has started, or that is forked in place of one.

    Attributes:
        pid: of it.
        rank: its number.
        world_size: how many there are to be.
        port: where they meet.
        words: its command line; only if a launcher has started it.
        given: what the launcher has added to its own environment for it.
    """

    pid: int
    rank: int
    world_size: int
    port: str | None = None
    words: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared(Event, tag="prepared"):
    """What the script set up before it imported the first library: variables, and entries of `sys.path`."""

    variables: list[str]
    path: list[str]


@dataclass(frozen=True)
class ConfigBuilt(Event, tag="config"):
    """A configuration object is being built: what the user passed, and the defaults of the library's class.

    `others`: what the user passed besides and a trial does not vary. `place`: the line of the user's that builds it.
    `grpo`: whether it is a training config of GRPO. `handed`: fields that hold the very value of an own setting of the
    script's, and its name. `flags`: what the command line calls an own setting.
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


@dataclass(frozen=True)
class OwnDefaults(Event, tag="own_defaults"):
    """A class of the script's own is filled from keys of its files: its fields' defaults are theirs."""

    kind: str
    defaults: dict[str, Encoded]


@dataclass(frozen=True)
class ConfigResolved(Event, tag="resolved"):
    """What the library made of it; of the script's own settings, those that it was handed with the values of the trial.

    `devices`: how many GPUs this one process uses. Of more than one transformers makes a plain `nn.DataParallel`.
    """

    kind: str
    index: int
    values: dict[str, Encoded]
    devices: int = 1


@dataclass(frozen=True)
class ConfigInvalid(Event, tag="invalid"):
    """Or why it refused it."""

    type: str
    message: str
    kind: str = ""
    index: int = 0


@dataclass(frozen=True)
class Assigned(Event, tag="assigned"):
    """The script has set a field of an object that was built: a setting like any other."""

    kind: str
    index: int
    name: str
    value: Encoded = None


@dataclass(frozen=True)
class Changed(Event, tag="changed"):
    """A field was changed in a way that a trial cannot follow."""

    kind: str
    index: int
    name: str
    value: Encoded = None


@dataclass(frozen=True)
class Opened(Event, tag="opened"):
    """A file was read ("r"), written ("w"), or imported ("m"; `path` is the module's source).

    `stamp`: its time of change in ns, its size and its inode, if it was read.
    """

    path: str
    mode: str
    stamp: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Skipped(Event, tag="skipped"):
    """A call that would have left this machine was answered here."""

    call: str


@dataclass(frozen=True)
class ResumeSkipped(Event, tag="resume_skipped"):
    """The script would have gone on from this checkpoint; the trial begins fresh."""

    path: str


@dataclass(frozen=True)
class OtherSchedule(Event, tag="other_schedule"):
    """The schedule of the training is not the one that was built for its settings, but one that the script has loaded.

    Attributes:
        rate: its base rate.
        place: its steps so far.
        own_rate: the base rate of the one that was built.
        own_place: the same of it.
    """

    rate: float
    place: int
    own_rate: float
    own_place: int


@dataclass(frozen=True)
class TrainerBuilt(Event, tag="trainer"):
    """A trainer is being built with this training config; None if that was not seen being built."""

    args: int | None = None


@dataclass(frozen=True)
class TrainBegin(Event, tag="train_begin"):
    """The training under study begins.

    Attributes:
        number: of this training, counted from 1.
        pid: of this process.
        parent: of the process that started it.
        first: whether it is the first process of the run.
        forked: whether it is a fork of that one, and has what that had imported.
        args: index of the training config that the trainer got; None if it was not seen being built.
        modelcfg: of the last one of its kind.
        peft: the same.
        adapted: whether a model has got that LoraConfig.
        load: of the `from_pretrained` call that made the model.
        world_size: processes that train together.
        trainer: name of its class.
        model: the same.
        dtype: of the model, "" if it has none.
        modules: those imported of the packages that take long.
        simulated: what the script says of a fault that it simulates; None for honest ones.
        environment: versions and devices.
        in_force: what a launcher may have been asked for, as accelerate has it.
    """

    number: int = 1
    pid: int | None = None
    parent: int | None = None
    first: bool = True
    forked: bool = False
    args: int | None = None
    modelcfg: int | None = None
    peft: int | None = None
    adapted: bool = True
    load: int | None = None
    world_size: int = 1
    trainer: str = ""
    model: str = ""
    dtype: str = ""
    modules: list[str] = field(default_factory=list)
    simulated: str | None = None
    environment: dict[str, object] = field(default_factory=dict)
    in_force: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Weights:
    """So many numbers of a model's parameters are on this device ("cuda:0", "meta") in this dtype ("bfloat16")."""

    device: str
    dtype: str
    count: int


@dataclass(frozen=True)
class PlacedModel:
    """One of the models of a training.

    Attributes:
        role: "policy", "reference", "reward", "value" or "teacher".
        name: of its class.
        wrapper: the class of what the trainer has put around the policy, "" if nothing.
        weights: where its parameters are.
    """

    role: str
    name: str
    wrapper: str
    weights: list[Weights]


@dataclass(frozen=True)
class Placed(Event, tag="placed"):
    """Where the models are, in this process, when the first step begins."""

    models: list[PlacedModel]


@dataclass(frozen=True)
class Resumed(Event, tag="resumed"):
    """The training goes on from this checkpoint, after this optimizer step of its own; None: from its first weights,
    with the data of that step."""

    step: int
    checkpoint: str | None = None
    intake: Intake | None = None


@dataclass(frozen=True)
class OriginRefused(Event, tag="origin_refused"):
    """The checkpoint could not be loaded into this training, of it its "weights", "optimizer", "scaler" or "random
    numbers"."""

    what: str
    type: str
    message: str


@dataclass(frozen=True)
class TooShort(Event, tag="too_short"):
    """The training came to its own end before the step that a trial has to reach; by these settings."""

    step: int
    wanted: int
    settings: dict[str, Encoded]


@dataclass(frozen=True)
class CheckpointSaved(Event, tag="checkpoint"):
    """A checkpoint of ours after this step; it took so many seconds. `kept`: the steps of those that are there now."""

    step: int
    path: str
    seconds: float
    kept: list[int]
    intake: Intake


@dataclass(frozen=True)
class NoCheckpoints(Event, tag="no_checkpoints"):
    """None is saved, or none any more."""

    why: str


@dataclass(frozen=True)
class PlannedSteps(Event, tag="schedule"):
    """How many optimizer steps the user's own run would have, and how it takes its data."""

    max_steps: int | None = None
    intake: Intake | None = None


@dataclass(frozen=True)
class StepRows(Event, tag="step_rows"):
    """Rows of the dataset that an optimizer step is about, in this process.

    Attributes:
        step: counted from 1.
        rows: their places in the dataset, from 0; of a step that uses completions again, those they were made for.
        characters: the text in each; None where that is not known.
        total: rows of the dataset; None if it does not say.
    """

    step: int
    rows: list[int]
    characters: list[int | None]
    total: int | None = None


NON_FINITE = "non-finite parameters"
"""Why a training was stopped whose weights hold a NaN or an infinity."""


@dataclass(frozen=True)
class NonFiniteParameters(Event, tag="non_finite_parameters"):
    """The first weight that holds a NaN or an infinity after this step."""

    step: int
    parameter: str


@dataclass(frozen=True)
class TrainEnd(Event, tag="train_end"):
    """Training is over; `stopped`: by us, at the "horizon" or because of `NON_FINITE`."""

    steps: int
    stopped: str = ""


@dataclass(frozen=True)
class Completed(Event, tag="completed"):
    """A training has come to its own end, and the script goes on: in a first run that waits to be told so by a file
    (`GO_ON_FILE`), or because the trial is about a later one."""

    number: int
    trainer: str
    args: int | None = None


@dataclass(frozen=True)
class Raised(Event, tag="exception"):
    """An exception that nothing has caught.

    Attributes:
        type: name of its class.
        message: its text.
        frames: of the stack, outermost first.
        module: where its class is defined.
        phase: "before training" or "training".
        final: whether it ends the run.
        computing: the module of the model that was being computed; only with instruments.
    """

    type: str
    message: str
    frames: list[Frame]
    module: str = ""
    phase: str = ""
    final: bool = False
    computing: str = ""


@dataclass(frozen=True)
class Exited(Event, tag="exit"):
    """The script has called `sys.exit` in its training."""

    code: int
    phase: str = "training"


@dataclass(frozen=True)
class ScriptEnd(Event, tag="script_end"):
    """The interpreter ends in an orderly way."""


@dataclass(frozen=True)
class Over(Event, tag="over"):
    """The training, in a process that the script started, has ended with this code; of several, this one. Written by
    `children` and `ranks`, and by the tool where only it knows."""

    code: int
    pid: int = 0


@dataclass(frozen=True)
class Unwatched(Event, tag="unwatched"):
    """A process of the run has loaded torch without a probe, and was ended. Written by the tool."""

    command: str
    pid: int = 0


# Of `dry_run`.


@dataclass(frozen=True)
class Arrived(Event, tag="arrived"):
    """A process of the command runs here: what `machine` says of the environment."""

    environment: dict[str, object]
    world_size: int
    rank: int = 0
    local_rank: int = 0
    host: str = ""


@dataclass(frozen=True)
class Stopped(Event, tag="stopped"):
    """It has come to where it was to be ended. `trained_dtype`: of the weights that the trainer was given; `own`: the
    script's own settings, variables of the environment among them."""

    args: int | None = None
    trained_dtype: str | None = None
    own: dict[str, Encoded] = field(default_factory=dict)


# Of `instruments`; `step` is the optimizer step, counted from 1.


@dataclass(frozen=True)
class LastOperation:
    """What was being computed when a process died, as `PLACE_FILE` has it."""

    module: str = ""
    operation: str = ""
    step: int | None = None


@dataclass(frozen=True)
class InstrumentsOn(Event, tag="instruments"):
    """The instruments for this kind of failure are on."""

    step: int
    kind: str


@dataclass(frozen=True)
class NoInstrument(Event, tag="no_instrument"):
    """One of them is not to be had."""

    name: str
    error: str


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Overflow(Event, tag="overflow"):
    """A module's output is not finite."""

    step: int
    module: str


@dataclass(frozen=True)
class Update(Event, tag="update"):
    """What a step of the optimizer did to the weights.

    Attributes:
        step: of the training.
        optimizer: its class.
        parameter: the weight that moved furthest for its size; None if none moved.
        relative: so far.
        broken: the first weight that is not finite any more, if there is one.
        broken_count: how many are not.
        operation: that moved it (the broken one, else the furthest) most.
        frames: of that operation.
    """

    step: int
    optimizer: str
    parameter: str | None = None
    relative: float = 0.0
    broken: list[str] = field(default_factory=list)
    broken_count: int = 0
    operation: str = ""
    frames: list[Frame] = field(default_factory=list)


@dataclass(frozen=True)
class NativeStack(Event, tag="native"):
    """gdb has written the native stack, of so many frames."""

    frames: int


def event_row(event: Event, seconds: float) -> dict[str, object]:
    """Return an event as a line's data; `seconds` since the trial began."""
    return {"event": event.tag, "time": round(seconds, 4), **to_json(event)}
