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
a variable of the environment                       env     unset
==================================================  ======  ==================================================

The values of a trial are put in before the script sees any. Values that the script hands on to a configuration object
of a library are that object's (`sources.handed_on`).
"""

from . import own_classes, own_files, own_parsers, own_variables


def install():
    """Wrap what hands settings to the user's own code."""
    for module in (own_parsers, own_files, own_classes, own_variables):
        module.install()
