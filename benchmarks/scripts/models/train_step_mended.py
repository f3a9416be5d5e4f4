"""The same with the two lines that the message shows."""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)


class Classifier(keras.Model):
    def train_step(self, data):
        # - x, y = data
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)  # +
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            # - loss = self.compute_loss(y=y, y_pred=y_pred)
            loss = self.compute_loss(x, y, y_pred, weight)  # +
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


inputs = keras.Input((64,))
hidden = keras.layers.Dense(32, "relu")(inputs)
model = Classifier(inputs, keras.layers.Dense(10, "softmax")(hidden))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
cbnn = CBNNCallback("run")  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
