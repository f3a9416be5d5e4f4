"""
Title: Transfer learning and fine-tuning
Description: A head for a frozen backbone, then all of it at a low rate.

    python examples/keras_io/transfer_learning.py --data-dir DATA

Data:     CIFAR-100 at 16x16: the first twenty classes, 10,000 images, to train
          a backbone on, since nothing is to be downloaded, and the last ten,
          5,000 images and 1,000 for the test, to transfer it to. `--data-dir`
          is the folder of TensorFlow Datasets (the default is its own).
Model:    four convolutions with BatchNorm; the head is dropout and softmax;
          Adam at 1e-3, and at 1e-4 for fine-tuning
Cost:     about 109 seconds of processor time on one core; `cbnn.fit` took 1.2
          times as long as `model.fit`
Expected: 28.17 % test error by plain fit and 28.33 % by CBNN (by seed 28.50 and
          28.20, 28.20 and 28.10, 27.80 and 28.70), log-loss 0.832 and 0.826;
          mean of three seeds. No difference.

Lines that end in `# CBNN` are those that CBNN adds to the script or changes.
"""

import argparse

import keras
import numpy as np
import tensorflow_datasets as tfds
from sklearn.metrics import log_loss

from cbnn_keras import CBNNCallback  # CBNN
from cbnn_keras.export import export_saved_model  # CBNN

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--data-dir")
parser.add_argument("--epochs", type=int, default=10, help="of fine-tuning")
parser.add_argument("--head-epochs", type=int, default=5)
parser.add_argument("--backbone-epochs", type=int, default=8)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
keras.utils.set_random_seed(options.seed)

"""
## Get the data
"""


def load(split):
    images, labels = tfds.as_numpy(
        tfds.load(
            "cifar100",
            split=split,
            data_dir=options.data_dir,
            batch_size=-1,
            as_supervised=True,
        )
    )
    small = images.reshape(-1, 16, 2, 16, 2, 3).mean((2, 4))
    return small.astype(np.float32), labels


def only(data, first, end):
    x, y = data
    chosen = (first <= y) & (y < end)
    return x[chosen], y[chosen] - first


train, test = load("train"), load("test")
x_train, y_train = only(train, 90, 100)
x_test, y_test = only(test, 90, 100)

"""
## A pretrained model

`keras.applications` would download one; this one is trained on other classes.
"""

backbone = keras.Sequential(
    [keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 127.5, -1)]
)
for filters, strides in ((32, 1), (64, 2), (64, 1), (128, 2)):
    backbone.add(keras.layers.Conv2D(filters, 3, strides, "same"))
    backbone.add(keras.layers.BatchNormalization())
    backbone.add(keras.layers.ReLU())
backbone.add(keras.layers.GlobalAveragePooling2D())
pretraining = keras.Sequential([backbone, keras.layers.Dense(20, "softmax")])
pretraining.compile("adam", "sparse_categorical_crossentropy")
pretraining.fit(*only(train, 0, 20), 64, options.backbone_epochs, verbose=2)

"""
## Freeze it, and train a head on top
"""


def compile_with(rate):
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )


backbone.trainable = False
inputs = keras.Input((16, 16, 3))
x = keras.layers.RandomFlip("horizontal")(inputs)
x = backbone(x)
x = keras.layers.Dropout(0.2)(x)
model = keras.Model(inputs, keras.layers.Dense(10, "softmax")(x))
compile_with(1e-3)
model.fit(x_train, y_train, 64, options.head_epochs, verbose=2)
with_head = model.get_weights()

"""
## Unfreeze it, and fine-tune all of it at a low learning rate

All but BatchNorm, whose statistics would be destroyed by small batches.
"""

settings = {"batch_size": 64, "epochs": options.epochs, "verbose": 2}
backbone.trainable = True
for layer in backbone.layers:
    if isinstance(layer, keras.layers.BatchNormalization):
        layer.trainable = False
compile_with(1e-4)
model.fit(x_train, y_train, **settings)
plain = model.predict(x_test, verbose=0)

"""
## The same with CBNN, from the same head on
"""

model.set_weights(with_head)
compile_with(1e-4)
cbnn = CBNNCallback()  # CBNN
cbnn.fit(model, x_train, y_train, **settings)  # CBNN
boosted = cbnn.ensemble().predict(x_test, verbose=0)  # CBNN

"""
## Evaluate both on the test data
"""

for name, probabilities in (("plain fit", plain), ("CBNN", boosted)):
    error = 100 * (probabilities.argmax(axis=-1) != y_test).mean()
    loss = log_loss(y_test, probabilities)
    print(f"{name:10} {error:5.2f} % test error, log-loss {loss:.4f}")
export_saved_model(cbnn.ensemble(), "serving/transfer")  # CBNN
