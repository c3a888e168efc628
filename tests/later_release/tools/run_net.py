"""Start the training and the test, with the imports of PySlowFast's main branch."""

from slowfast.config.defaults import assert_and_infer_cfg
from slowfast.utils.misc import launch_job
from slowfast.utils.parser import load_config, parse_args
from vision.fair.slowfast.tools.test_net import test
from vision.fair.slowfast.tools.train_net import train


def main():
    args = parse_args()
    for path in args.cfg_files:
        cfg = assert_and_infer_cfg(load_config(args, path))
        if cfg.TRAIN.ENABLE:
            launch_job(cfg=cfg, init_method=args.init_method, func=train)
        if cfg.TEST.ENABLE:
            launch_job(cfg=cfg, init_method=args.init_method, func=test)


if __name__ == "__main__":
    main()
