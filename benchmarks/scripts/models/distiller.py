"""A Distiller whose `compute_loss` ignores the weights."""

import keras
from sklearn.datasets import load_digits

from cbnn_keras import CBNNCallback  # +

keras.utils.set_random_seed(0)
x, y = load_digits(return_X_y=True)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.hard = keras.losses.SparseCategoricalCrossentropy()
        self.soft = keras.losses.KLDivergence()

    def call(self, x):
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        soft = self.soft(self.teacher(x), y_pred)
        return self.hard(y, y_pred) + soft


def network(units):
    hidden = keras.layers.Dense(units, "relu")
    return keras.Sequential([hidden, keras.layers.Dense(10, "softmax")])


teacher = network(64)
teacher.compile("adam", "sparse_categorical_crossentropy")
teacher.fit(x, y, epochs=4)
teacher.trainable = False
model = Distiller(network(8), teacher)
model.compile("adam")
cbnn = CBNNCallback("run", from_logits=False)  # +
# - model.fit(x, y, epochs=6)
model.fit(cbnn.weighted(x, y), epochs=6, callbacks=[cbnn])  # +
