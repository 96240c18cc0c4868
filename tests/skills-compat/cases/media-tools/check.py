"""Checks the cut, the tone of the sound and the size of the still picture."""

import array
import json
import subprocess
import sys
import wave
from pathlib import Path

from PIL import Image


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: found {found!r}, expected {wanted!r}")
    print(f"ok: {what}")


out = Path(sys.argv[1], "out")
probe = ["ffprobe", "-v", "error", "-count_frames", "-show_streams", "-of", "json", out / "cut.mp4"]
streams = json.loads(subprocess.run(probe, check=True, capture_output=True).stdout)["streams"]
expect("codecs", [stream["codec_name"] for stream in streams], ["h264", "aac"])
expect("frames", streams[0]["nb_read_frames"], "20")
with wave.open(str(out / "sound.wav")) as sound:
    expect("form of the sound", (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()), (1, 2, 16000))
    samples = array.array("h", sound.readframes(sound.getnframes()))
expect("length of the sound in seconds", round(len(samples) / 16000, 1), 4.0)
middle = samples[16000:32000]
crossings = sum(before < 0 <= after for before, after in zip(middle, middle[1:]))
expect("tone in Hz", abs(crossings - 440) <= 1, True)
with Image.open(out / "still.png") as still:
    expect("size of the still picture", still.size, (160, 120))
    expect("it has colours", len(still.convert("RGB").getcolors(100_000)) > 20, True)
