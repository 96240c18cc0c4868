"""Transcribe a recording."""
import argparse
import os
import shlex
import shutil
import subprocess
import sys

import whisper


def to_wav(source, target):
    status = os.system(f'ffmpeg -y -loglevel error -i "{source}" -ar 16000 "{target}"')
    if status:
        sys.exit("ffmpeg failed")


def denoise(path):
    command = "sox %s clean.wav noisered profile 0.2" % shlex.quote(path)
    subprocess.check_call(command, shell=True)


def player():
    if shutil.which("mpv"):
        return "mpv"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--model", default="base")
    args = parser.parse_args()
    to_wav(args.source, "tmp.wav")
    denoise("tmp.wav")
    result = whisper.load_model(args.model).transcribe("clean.wav")
    print(result["text"])
    if player():
        subprocess.run(["mpv", "clean.wav"])


main()
