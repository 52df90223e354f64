import hydra
from planted import config, train


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(given):
    train(config(**given.training), given.mix, together=True)


if __name__ == "__main__":
    main()
