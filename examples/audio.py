"""Audio with few labels: which of nine men says a vowel?

    pip download --no-deps --dest packages aeon     # ships JapaneseVowels; nothing is installed
    python examples/audio.py --packages packages

An utterance is a series of 12 cepstral coefficients, 7 to 29 moments long. Each coefficient becomes five numbers: its
mean in every third of the utterance, its mean and its standard deviation. The classifiers get 10 labelled utterances
of each man and are judged by the 370 of the test part.
"""

import argparse
import zipfile
from pathlib import Path

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss

from isda import ISDAClassifier


def utterances(packages: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """(N, 60) numbers and (N,) speakers, from the file inside the wheel."""
    wheel = next(packages.glob("aeon-*.whl"), None)
    if wheel is None:
        raise SystemExit(f"pip download --no-deps --dest {packages} aeon")
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts").decode()
    features, speakers = [], []
    for line in text.partition("@data\n")[2].splitlines():
        *coefficients, speaker = line.split(":")
        series = [np.array(values.split(","), float) for values in coefficients]
        features.append([f for s in series for f in (*(t.mean() for t in np.array_split(s, 3)), s.mean(), s.std())])
        speakers.append(speaker)
    return np.array(features), np.array(speakers)


def main() -> None:
    """Compare on three draws of labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument("--per-class", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()

    (features, speakers), (test, test_speakers) = (utterances(arguments.packages, part) for part in ("TRAIN", "TEST"))
    for seed in arguments.seeds:
        chance = np.random.default_rng(seed)
        of_each = [np.flatnonzero(speakers == speaker) for speaker in np.unique(speakers)]
        labelled = np.concatenate([chance.permutation(places)[: arguments.per_class] for places in of_each])
        models = {
            "ISDAClassifier": ISDAClassifier(random_state=seed),
            "LDA with shrinkage": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        }
        for name, model in models.items():
            probabilities = model.fit(features[labelled], speakers[labelled]).predict_proba(test)
            error = 100 * np.mean(model.classes_[probabilities.argmax(1)] != test_speakers)
            likelihood = -log_loss(test_speakers, probabilities)
            print(f"seed {seed}  {name:18} error {error:5.2f}%  log-likelihood {likelihood:6.3f}")


if __name__ == "__main__":
    main()
