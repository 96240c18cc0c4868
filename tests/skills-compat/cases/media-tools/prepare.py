"""Makes a clip of four seconds: a test picture, and a tone of 440 Hz."""

import subprocess
import sys
from pathlib import Path

video = ["-f", "lavfi", "-i", "testsrc=size=160x120:rate=10:duration=4"]
sound = ["-f", "lavfi", "-i", "sine=frequency=440:sample_rate=44100:duration=4"]
codecs = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"]
target = Path(sys.argv[1], "clip.mp4")
subprocess.run(["ffmpeg", "-y", "-nostdin", "-v", "error", *video, *sound, *codecs, target], check=True)
