"""Tiny-ImageNet with any model and method, on all GPUs there are.

Reproduces a cell of table 1 of Wang et al., "Boost Neural Networks by
Checkpoints", NeurIPS 2021; `reproduce.py` makes the whole table.

    python examples/tiny_imagenet.py --data-dir tiny-imagenet-200.zip
    python examples/tiny_imagenet.py --data-dir DATA --model efficientnet-b0 \\
        --size 64
    python examples/tiny_imagenet.py --data-dir DATA --model resnet8 \\
        --images 4000 --size 16 --augment standard --epochs 12  # a quick look

Data:     `--data-dir` is the zip of Tiny-ImageNet, its folder, or a folder with
          either in it. The test labels are not public: its validation images
          are the test images here, and a tenth of the training images is kept
          to select members with.
Model:    the paper's ResNet-110, 200 epochs, at 32x32 pixels and with
          AutoAugment; any of recipes/models.py with `--model`. EfficientNets
          resize images to 224x224 themselves: give them `--size 64`.
Devices:  as in cifar.py
Cost:     the last command took 42 seconds of CPU time; the others were not
          timed by us and want a GPU
Expected: the last command, on 20 of the 200 classes, printed 67.10 % test
          error for the final model, 67.20 for all six members and 68.00 for the
          two that were selected: a draw at best (one seed). The other
          commands were not run by us. The paper has 45.10 ± 0.36 % for the
          single model and 38.14 ± 0.22 % for CBNN with ResNet-110, and 34.50 ±
          0.35 and 31.16 ± 0.26 % with EfficientNet-B0.

The run is kept under `runs/`. The script can be killed at any moment and
started again, on more or on fewer GPUs too: it goes on where it was.
"""

from recipes.command import main
from recipes.training import Recipe

DEFAULTS = Recipe(dataset="tiny-imagenet", size=32)

if __name__ == "__main__":
    main(__doc__, DEFAULTS, ["tiny-imagenet"])
