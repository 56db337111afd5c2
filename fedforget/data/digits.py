"""scikit-learn's digits: 1,797 real images of 8 x 8 pixels that come with the package."""

from __future__ import annotations

import numpy as np

from fedforget.data.records import Corpus, Records
from fedforget.seeds import derive_seed

# Half of the images are public; of the other half, one in four is for testing.
_PUBLIC, _TEST = 0.5, 0.25


def digits(seed: int) -> Corpus:
    """Load the digits and cut them into public, federated and test images.

    Parameters
    ----------
    seed : int
        Data seed of the cut.

    Returns
    -------
    Corpus
        Inputs are float32 of shape ``[n, 8, 8]`` in [0, 1]; 898 public, 674 federated and 225 test images.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)
    ids = tuple(f"digits-{i:04d}" for i in range(len(images)))
    everything = Records(ids, images, bunch.target.astype(np.int64))
    order = np.random.default_rng(derive_seed(seed, "records", "digits")).permutation(len(ids))
    public = int(len(ids) * _PUBLIC)
    test = public + round((len(ids) - public) * _TEST)
    names = [ids[i] for i in order]
    return Corpus(
        public=everything.subset(names[:public]),
        test=everything.subset(names[public:test]),
        federated=everything.subset(names[test:]),
        labels=tuple(str(digit) for digit in range(10)),
        task="image",
    )
