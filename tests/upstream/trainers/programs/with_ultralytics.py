"""YOLO from its configuration, on pictures of noise with a box each."""

from pathlib import Path

import numpy as np
from PIL import Image
from ultralytics import YOLO

for number in range(16):
    for folder in ("images", "labels"):
        Path("boxes", folder).mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (320, 320, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(f"boxes/images/{number}.png")
    Path(f"boxes/labels/{number}.txt").write_text("0 0.5 0.5 0.3 0.3\n")
Path("boxes.yaml").write_text(f"path: {Path('boxes').resolve()}\ntrain: images\nval: images\nnames: [box]\n")
YOLO("yolo11n.yaml").train(data="boxes.yaml", epochs=1, imgsz=320, batch=4, workers=0, amp=False, plots=False)
