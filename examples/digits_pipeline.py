"""Kernels of infinitely wide networks in scikit-learn: digits, a pipeline and a grid.

Cross-validation chooses the kernel, the recurrent variance and the ridge. Takes about ten seconds.

    python examples/digits_pipeline.py [--output digits_pipeline.png]

It prints:

    cross-validated accuracy
    kernel  recurrent variance    ridge   0.0001   0.001    0.01     0.1     1.0
    CK                    0.05             98.6%   98.6%   98.2%   97.0%   94.7%
    CK                     0.9             98.7%   98.7%   98.3%   97.9%   95.7%
    NTK                   0.05             98.4%   98.4%   98.4%   98.3%   96.3%
    NTK                    0.9             98.4%   98.4%   98.4%   98.4%   97.8%
    best on new digits: 99.1%
"""

import argparse
import itertools

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from shoal.adapters import KernelClassifier
from shoal.core.figures import COLORS, style

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--output", default="digits_pipeline.png", help="where to save the figure")
output = parser.parse_args().output

x, y = load_digits(return_X_y=True)
x, new, y, truth = train_test_split(x, y, test_size=0.5, random_state=0)

# %% The estimator is one of scikit-learn's, with parameters like any other.
pipeline = make_pipeline(Normalizer(), KernelClassifier(standardize=False))
ridges, found = [1e-4, 1e-3, 1e-2, 1e-1, 1.0], {}
print("cross-validated accuracy")
print("kernel  recurrent variance    ridge " + "".join(f"{ridge:8}" for ridge in ridges))
for which, variance in itertools.product(("ck", "ntk"), (0.05, 0.9)):
    pipeline[-1].set_params(which=which, recurrent_variance=variance)
    search = GridSearchCV(pipeline, {"kernelclassifier__ridge": ridges}, cv=3).fit(x, y)
    found[search] = row = search.cv_results_["mean_test_score"]
    print(f"{which.upper():6} {variance:19} {'':9}" + "".join(f"{score:8.1%}" for score in row))
best = max(found, key=lambda search: search.best_score_)
print(f"best on new digits: {best.score(new, truth):.1%}")

# %% The scores, and digits that the best one gets wrong.
with style():
    figure = Figure(figsize=(8, 3.2))
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for (search, row), color in zip(found.items(), COLORS, strict=False):
        model = search.best_estimator_[-1]
        label = f"{model.which.upper()}, variance {model.recurrent_variance}"
        left.semilogx(ridges, row, "o-", color=color, label=label)
    left.set(xlabel="ridge", ylabel="accuracy", title="Cross-validation")
    left.legend()
    guesses = best.predict(new)
    wrong = np.flatnonzero(guesses != truth)[:6]
    tiles = [np.pad(new[k].reshape(8, 8), 1) for k in wrong]
    right.imshow(np.block([tiles[:3], tiles[3:]]), cmap="gray_r")
    right.set_title("Taken for " + ", ".join(str(guesses[k]) for k in wrong))
    right.set_axis_off()
    figure.savefig(output, dpi=160)
