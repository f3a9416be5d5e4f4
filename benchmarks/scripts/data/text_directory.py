"""`text_dataset_from_directory`, the vocabulary in the model.

$ cbnn export run
"""

import keras

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
train = keras.utils.text_dataset_from_directory("reviews", batch_size=16)
words = keras.layers.TextVectorization(output_sequence_length=12)
words.adapt(train.map(lambda text, label: text))
model = keras.Sequential(
    [
        keras.Input((), dtype="string"),
        words,
        keras.layers.Embedding(words.vocabulary_size(), 8),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy")
cbnn = CBNNCallback("run")  # +
# - model.fit(train, epochs=6)
model.fit(cbnn.weighted(train), epochs=6, callbacks=[cbnn])  # +
