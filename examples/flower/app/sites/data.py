"""Where a site's rows come from. Change this to your needs; it runs at the site, and what it returns stays there."""

from pathlib import Path

import numpy as np
from flwr.app import Context


def load_data(context: Context):
    """Training rows (x, y), and test rows (x, y) or None, of the node that `context` speaks of.

    `context.node_config` is what the site gave its SuperNode by --node-config; here `data` names

    - an npz file with x_train, y_train and, if there are test rows, x_test, y_test; or
    - a folder of images, train/<class>/*.png and test/<class>/*.png, where <class> is a number (needs Pillow).

    Images are (rows, channels, height, width) or, with one channel, (rows, height, width): uint8 for pixels 0 .. 255,
    which umbel scales to [0, 1], or float32, which it takes as they are. Labels are whole numbers from 0.
    """
    place = Path(str(context.node_config["data"])).expanduser()
    if place.is_dir():
        shape = tuple(int(side) for side in str(context.run_config["shape"]).split("x"))
        test = place / "test"
        return images(place / "train", shape), images(test, shape) if test.is_dir() else None
    with np.load(place) as rows:
        test = (rows["x_test"], rows["y_test"]) if "x_test" in rows else None
        return (rows["x_train"], rows["y_train"]), test


def images(folder: Path, shape: tuple[int, ...]):
    """All images under folder/<class>/, in the size and colours that the model takes."""
    from PIL import Image

    channels, height, width = shape
    files = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".bmp"))
    pixels = [Image.open(path).convert("L" if channels == 1 else "RGB").resize((width, height)) for path in files]
    x = np.stack([np.asarray(each) for each in pixels]).reshape(len(files), height, width, channels)
    return x.transpose(0, 3, 1, 2), np.array([int(path.parent.name) for path in files])
