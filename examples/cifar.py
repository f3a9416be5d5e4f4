"""CIFAR-10 or CIFAR-100 with any model and method, on all GPUs there are.

Reproduces a cell of table 1 of Wang et al., "Boost Neural Networks by
Checkpoints", NeurIPS 2021; `reproduce.py` makes the whole table.

    python examples/cifar.py                              # ResNet-20
    python examples/cifar.py --model resnet110 --epochs 200 \\
        --augment autoaugment                             # as in the paper
    python examples/cifar.py --model resnet8 --images 4000 \\
        --test-images 2000 --size 16 --epochs 12          # a quick look

Data:     TensorFlow Datasets downloads them once (160 MB); `--data-dir` says
          where they are or shall be. A tenth of the training images is kept to
          select members with.
Model:    any of recipes/models.py and, with `--method`, any method that the
          paper compares; SGD with Nesterov momentum and the paper's learning
          rate; images padded, cropped and flipped
Devices:  `MirroredStrategy` over all GPUs if there are several; `--cpus` makes
          logical devices of a CPU to try that without any. The batch is
          divided among them and the result is that of one device, but for the
          statistics of BatchNorm.
Cost:     the last command took 40 seconds of CPU time; the others were not
          timed by us and want a GPU
Expected: the last command printed 88.75 % test error for the final model,
          89.80 for all six members and 88.75 for the one that was selected:
          so short a run is no place for an ensemble (one seed). The other
          commands were not run by us. The paper has 27.67 ± 0.25 % for the
          single model and 23.51 ± 0.20 % for CBNN with ResNet-110 on CIFAR-100,
          and 5.63 and 5.25 % on CIFAR-10.

The run is kept under `runs/`. The script can be killed at any moment and
started again, on more or on fewer GPUs too: it goes on where it was.
"""

from recipes.command import main
from recipes.training import Recipe

DEFAULTS = Recipe(model="resnet20", epochs=60, augment="standard")

if __name__ == "__main__":
    main(__doc__, DEFAULTS, ["cifar10", "cifar100"])
