"""Kernels of infinitely wide networks in scikit-learn: digits, a pipeline and a grid."""

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from shoal.adapters import KernelClassifier

x, y = load_digits(return_X_y=True)
x, new, y, truth = train_test_split(x, y, test_size=0.5, random_state=0)

pipeline = make_pipeline(FunctionTransformer(lambda z: z / 16), KernelClassifier())
grid = {
    "kernelclassifier__recurrent_variance": [0.05, 0.2, 0.6],
    "kernelclassifier__which": ["ck", "ntk"],
    "kernelclassifier__ridge": [1e-4, 1e-2],
}
search = GridSearchCV(pipeline, grid, cv=3).fit(x, y)
print(f"best of {len(search.cv_results_['params'])}: {search.best_params_}")
print(f"cross-validated {search.best_score_:.1%}, on new digits {search.score(new, truth):.1%}")
