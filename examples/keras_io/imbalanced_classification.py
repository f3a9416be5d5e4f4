"""
Title: Imbalanced classification
Description: Rare states of a shuttle, with weights for the classes.

    python examples/keras_io/imbalanced_classification.py --data-dir DATA

Data:     Statlog's Shuttle, 58,000 rows with nine columns, 244 of which (four
          of the seven classes) are rare and to be found; a fifth is for the
          test. `--data-dir` has `shuttle.csv.gz` with a column `label`, from
          0, and the others.
Model:    two dense layers with dropout and one sigmoid; Adam; a rare row counts
          as much more as it is rarer (`class_weight`)
Cost:     about 36 seconds of processor time on one core; `cbnn.fit` took 1.2
          times as long as `model.fit`
Expected: 0.91 % test error by plain fit and 0.24 % by CBNN (by seed 2.21 and
          0.25, 0.29 and 0.21, 0.22 and 0.27), log-loss 0.043 and 0.025; mean of
          three seeds. Precision 0.161 and 0.628, 0.593 and 0.676, 0.653 and
          0.613 at a recall of 0.98 or more. So there is no difference, but for
          one seed where plain fit ended badly.

Lines that end in `# CBNN` are those that CBNN adds to the script or changes.
"""

import argparse
import pathlib

import keras
import numpy as np
import pandas as pd
from sklearn.metrics import log_loss, precision_score, recall_score
from sklearn.model_selection import train_test_split

from cbnn_keras import CBNNCallback  # CBNN

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--data-dir", type=pathlib.Path, required=True)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

"""
## Vectorize the data and hold a part out
"""

frame = pd.read_csv(options.data_dir / "shuttle.csv.gz")
label = frame.pop("label")
is_rare = label.isin([1, 2, 5, 6]).to_numpy(np.uint8)
x_train, x_test, y_train, y_test = train_test_split(
    frame.to_numpy(np.float32),
    is_rare,
    test_size=0.2,
    random_state=options.seed,
    stratify=is_rare,
)

"""
## Analyze the imbalance, and normalize with the statistics of training
"""

counts = np.bincount(y_train)
print(f"{counts[1]} of {len(y_train)} training rows are rare")
class_weight = dict(enumerate(len(y_train) / (2 * counts)))
mean, std = x_train.mean(axis=0), x_train.std(axis=0)
x_train, x_test = (x_train - mean) / std, (x_test - mean) / std

"""
## Build a binary classifier
"""


def make_model():
    keras.utils.set_random_seed(options.seed)
    model = keras.Sequential(
        [
            keras.Input(x_train.shape[1:]),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss="binary_crossentropy",
        metrics=[keras.metrics.Precision(), keras.metrics.Recall()],
    )
    return model


"""
## Train the model with `class_weight`
"""

settings = {"batch_size": 2048, "epochs": options.epochs, "verbose": 2}
settings["class_weight"] = class_weight
model = make_model()
model.fit(x_train, y_train, **settings)
plain = model.predict(x_test, verbose=0)

"""
## The same with CBNN

It takes `class_weight` as `fit` does: boosting starts from it.
"""

model = make_model()
cbnn = CBNNCallback()  # CBNN
cbnn.fit(model, x_train, y_train, **settings)  # CBNN
boosted = cbnn.ensemble().predict(x_test, verbose=0)  # CBNN

"""
## Conclusions
"""

for name, probabilities in (("plain fit", plain), ("CBNN", boosted)):
    found = probabilities[:, 0] > 0.5
    print(
        f"{name:10} {100 * (found != y_test).mean():5.2f} % test error, "
        f"log-loss {log_loss(y_test, probabilities):.4f}, "
        f"precision {precision_score(y_test, found):.3f}, "
        f"recall {recall_score(y_test, found):.3f}"
    )
