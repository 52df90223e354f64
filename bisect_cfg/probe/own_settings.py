"""Settings of the script's own: what hands settings to the user's own code is offered like a configuration object.

==================================================  ======  ==================================================
what                                                kind    default
==================================================  ======  ==================================================
``ArgumentParser``, also under `HfArgumentParser`,  script  of the parser, of the dataclass
`TrlParser`, simple-parsing, jsonargparse
a click command, also under typer                   script  of the option
`tyro.cli`, `fire.Fire`, flags of absl              script  of the field, the parameter, the flag
Hydra's composed config                             script  composed without the overrides
OmegaConf's merged configs                          script  of the first of them that has the key
YAML, JSON, TOML that the script loads              script  of the class that it fills (`own_classes`), if any
variables over which the script executes a file     script  what they were before
words of the command line that no parser takes      script  left out
a dataclass whose values the code has written out   script  of the field
a variable of the environment                       env     unset
==================================================  ======  ==================================================

The values of a trial are put in before the script sees any. Values that the script hands on to a configuration object
of a library are that object's (`sources.handed_on`).
"""

from . import own_classes, own_files, own_parsers, own_variables, own_words, wrap

_SOURCES = (
    ("argparse", "ArgumentParser.parse_known_args", own_parsers.parse_known_args),
    ("argparse", "ArgumentParser.set_defaults", own_parsers.set_defaults),
    ("click.core", "Command.parse_args", own_parsers.parse_args_of_click),
    ("typer._click.core", "Command.parse_args", own_parsers.parse_args_of_click),  # its own copy of click
    ("absl.flags._flagvalues", "FlagValues.__call__", own_parsers.parse_flags),
    ("tyro._cli", "cli", own_parsers.tyro_cli),
    ("fire.core", "_MakeParseFn", own_parsers.make_parse_function),
    ("yaml", "load safe_load full_load unsafe_load", own_files.load),
    ("ruamel.yaml.main", "YAML.load", own_files.load),
    ("tomllib", "load loads", own_files.load),
    ("tomli", "load loads", own_files.load),
    ("toml", "load loads", own_files.load),
    ("json", "load", own_files.load),
    ("json5", "load", own_files.load),
    ("json", "loads", own_files.load_text),
    ("json5", "loads", own_files.load_text),
    ("orjson", "loads", own_files.load_text),
    ("pydantic.main", "BaseModel.model_validate_json", own_files.validate_json),
    ("omegaconf.omegaconf", "OmegaConf.load OmegaConf.from_cli", own_files.load_omegaconf),
    ("omegaconf.omegaconf", "OmegaConf.merge", own_files.merge_omegaconf),
    ("hydra._internal.hydra", "Hydra.compose_config", own_files.compose_config),
    ("pydantic.main", "BaseModel.__init__", own_classes.build_model),
    ("pydantic.main", "BaseModel.model_validate", own_classes.validate),
    ("dataclasses", "_process_class", own_classes.define),
    ("pydantic_settings.main", "BaseSettings.__init__", own_variables.fill_settings),
    ("os", "_Environ.__getitem__", own_variables.read_variable),
    ("os", "_Environ.__iter__", own_variables.read_all_variables),
    ("os", "_Environ.__setitem__", own_variables.set_variable),
)
"""Module, its functions, and what answers in their place."""


def install():
    """Wrap what hands settings to the user's own code, as it is imported."""
    own_files.install()
    own_variables.note_variables()
    own_words.install()
    for module, paths, call in _SOURCES:
        wrap.in_module(module, paths, call)
