"""`image_dataset_from_directory` by `cbnn.fit`.

$ cbnn export run
$ cbnn verify exports/run/1 --run run
"""

import keras

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
train, val = keras.utils.image_dataset_from_directory(
    "photos",
    validation_split=0.2,
    subset="both",
    seed=1,
    image_size=(24, 24),
    batch_size=16,
)
model = keras.Sequential(
    [
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3, "softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
# - model.fit(train, validation_data=val, epochs=8)
CBNNCallback("run").fit(model, train, validation_data=val, epochs=8)  # +
