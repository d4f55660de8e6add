"""The flows: prepare, train, evaluate.

from flows import evaluate, prepare, train
"""

from flows.eval import evaluate
from flows.prepare import prepare
from flows.results import EvaluationResult, TrainResult
from flows.train import train

__all__ = ["EvaluationResult", "TrainResult", "evaluate", "prepare", "train"]
